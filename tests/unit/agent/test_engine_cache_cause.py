"""When a cache that stops hitting is a finding, and all the hit rates that are normal."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fakes.engine_world import EngineWorld
from scipy.stats import binom

from aie_agent.analysis.engine_causes.cache import CHANCE, HIGH, LOW, Block, cache_hit_collapse, chance, collapse
from aie_telemetry.catalogue import CATALOGUE


def live(world: EngineWorld, seconds: int, queries: float, ratio: float, cache: str = "response") -> None:
    """Seconds of lookups at a hit rate."""
    world.serve(seconds, **{f"{cache}_cache_queries_total": queries, f"{cache}_cache_hits_total": queries * ratio})


@pytest.mark.parametrize(("cache", "queries"), [("response", 5.0), ("prefix", 4000.0)])
def test_a_cache_that_stops_hitting(cache: str, queries: float) -> None:
    world = EngineWorld()
    live(world, 200, queries, 0.6, cache)
    assert world.engine(cache_hit_collapse) is None
    after = None
    for second in range(1, 40):
        live(world, 1, queries, 0.0, cache)
        if world.engine(cache_hit_collapse):
            after = second
            break
    assert after is not None
    assert after <= 15
    finding = world.engine(cache_hit_collapse)
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity) == ("cache_hit_collapse", "e", "warning")
    assert f"{cache} cache hits" in finding.summary
    assert "60% before" in finding.evidence[0].text
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def test_it_is_told_for_three_minutes_and_then_the_time_before_is_forgotten() -> None:
    world = EngineWorld()
    live(world, 300, 5.0, 0.6)
    told = []
    for second in range(300):
        live(world, 1, 5.0, 0.0)
        if world.engine(cache_hit_collapse):
            told.append(second)
    assert told[0] <= 20
    assert 180 <= told[-1] <= 270
    assert len(told) >= 0.95 * (told[-1] - told[0]), "without gaps to speak of"


def test_it_goes_when_the_cache_hits_again() -> None:
    world = EngineWorld()
    live(world, 200, 5.0, 0.6)
    live(world, 40, 5.0, 0.0)
    assert world.engine(cache_hit_collapse)
    live(world, 10, 5.0, 0.6)
    assert world.engine(cache_hit_collapse) is None


NORMAL: dict[str, Callable[[int], tuple[float, float]]] = {
    "always low": lambda second: (10.0, 0.05),
    "never any": lambda second: (10.0, 0.0),
    "it goes up": lambda second: (10.0, min(second / 250, 0.9)),
    "it goes down slowly": lambda second: (10.0, max(0.9 - second / 600, 0.4)),
    "it goes up and down": lambda second: (10.0, 0.05 if second // 20 % 2 else 0.6),
    "it falls by half": lambda second: (10.0, 0.6 if second < 200 else 0.3),
    "hardly anything is looked up any more": lambda second: (10.0, 0.6) if second < 200 else (0.05, 0.0),
    "nothing is looked up any more": lambda second: (10.0, 0.6) if second < 200 else (0.0, 0.0),
    "new prompts for five seconds": lambda second: (10.0, 0.1 if 200 <= second < 205 else 0.6),
}


@pytest.mark.parametrize("name", NORMAL)
def test_hit_rates_that_are_normal(name: str) -> None:
    world = EngineWorld()
    for second in range(400):
        queries, ratio = NORMAL[name](second)
        live(world, 1, queries, ratio)
        assert world.engine(cache_hit_collapse) is None, second


def test_chance_makes_no_finding() -> None:
    """Independent lookups at one rate, a thousand times: at the stated 1e-4, one in ten such runs might have one."""
    rng = random.Random(1)
    for rate in (0.2, 0.3, 0.5, 0.9):
        for _ in range(1000):
            counts = [rng.choice([3, 10, 60, 200]) for _ in range(30)]
            blocks = [Block(float(n), float(sum(rng.random() < rate for _ in range(n)))) for n in counts]
            assert collapse(blocks, 1.0) is None


@pytest.mark.parametrize("usual", [HIGH, 0.5, 0.9])
@pytest.mark.parametrize("queries", [5, 20, 200])
def test_the_bound_of_chance_is_a_bound(usual: float, queries: int) -> None:
    for hits in range(int(usual * queries * LOW) + 1):
        exact = float(binom.cdf(hits, queries, usual))
        bound = chance(queries, hits, usual)
        assert exact <= bound * (1 + 1e-9)
        if bound <= CHANCE:
            assert exact <= CHANCE


def test_nothing_is_said_of_what_is_not_known() -> None:
    world = EngineWorld()
    assert world.engine(cache_hit_collapse) is None
    world.serve(100, response_cache_queries_total=5)
    assert world.engine(cache_hit_collapse) is None
    world = EngineWorld()
    live(world, 200, 5.0, 0.6)
    live(world, 30, 5.0, 0.0)
    assert world.engine(cache_hit_collapse)
    world.live(10, {})
    assert world.engine(cache_hit_collapse) is None, "what was said is old"
