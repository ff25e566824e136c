"""When a cache that stops hitting is a finding, and all the hit rates that are normal."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from fakes.engine_world import EngineWorld
from scipy.stats import binom

from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.engine_causes.cache import CHANCE, HELD_S, HIGH, LOW, Block, chance, collapse
from aie_agent.analysis.engine_causes.cache_watch import WARM_UP_S, CacheAnalyser
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import CATALOGUE


class CacheWorld(EngineWorld):
    """An engine with caches, and the analyser that looks at it once a second."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.analyser = CacheAnalyser()

    def look(self) -> Finding | None:
        """What the analyser finds now."""
        self.analyser.observe(self.view, self.now_s)
        return next(iter(self.analyser.findings(self.now_s)), None)

    def cached(
        self, seconds: int, queries: float, ratio: float, cache: str = "response", ended: float = 0.0
    ) -> list[Finding | None]:
        """Seconds of lookups at a hit rate, and what was found in each."""
        found = []
        for _ in range(seconds):
            rows = {f"{cache}_cache_queries_total": queries, f"{cache}_cache_hits_total": queries * ratio}
            self.serve(1, outcomes={"ok": ended}, **rows)
            found.append(self.look())
        return found


@pytest.mark.parametrize(("cache", "queries"), [("response", 5.0), ("prefix", 4000.0)])
def test_a_cache_that_stops_hitting(cache: str, queries: float) -> None:
    world = CacheWorld()
    assert not any(world.cached(200, queries, 0.6, cache))
    found = world.cached(40, queries, 0.0, cache)
    after = next(second for second, each in enumerate(found) if each)
    assert after < 12
    finding = found[-1]
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity) == ("cache_hit_collapse", "e", "info")
    assert f"{cache} cache hits 0%, and hit 60% before" in finding.summary
    assert "60% before" in finding.evidence[0].text
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def _prefix(world: CacheWorld, seconds: int, ratio: float, tokens: float) -> list[str]:
    """Five prompts a second, each of so many tokens: the severity in each second that has a finding."""
    told: list[str] = []
    for _ in range(seconds):
        rows = {"prefix_cache_queries_total": 5 * tokens, "prefix_cache_hits_total": 5 * tokens * ratio}
        world.serve(1, observes={"time_to_first_token_seconds": {0.05: 5}}, outcomes={"ok": 5}, **rows)
        finding = world.look()
        told += [finding.severity] if finding else []
    return told


def test_it_is_an_alarm_once_it_has_held_for_minutes() -> None:
    world = CacheWorld()
    assert _prefix(world, 200, 0.6, 400.0) == []
    assert set(_prefix(world, int(HELD_S) - 15, 0.0, 400.0)) == {"info"}
    assert set(_prefix(world, 60, 0.0, 400.0)[30:]) == {"warning"}


@pytest.mark.parametrize("tokens", [1500.0, 100.0])
def test_other_prompts_that_nobody_sent_before_are_no_alarm(tokens: float) -> None:
    world = CacheWorld()
    _prefix(world, 200, 0.6, 400.0)
    told = _prefix(world, 600, 0.0, tokens)
    assert len(told) > 500
    assert set(told) == {"info"}
    finding = world.look()
    assert finding is not None
    assert f"prompts have {tokens:.0f} tokens on average" in finding.evidence[2].text


def test_a_batch_beside_the_usual_traffic_is_no_alarm() -> None:
    """Four times as many lookups, and as many hits as before: nothing that was found is lost."""
    world = CacheWorld()
    world.cached(300, 5.0, 0.6)
    told = [each for each in world.cached(600, 20.0, 0.15) if each]
    assert len(told) > 500
    assert {each.severity for each in told} == {"info"}
    assert "as often a second as before" in told[-1].evidence[-1].text


@pytest.mark.parametrize(("ttft_s", "waiting", "severity"), [(0.05, 0.0, "info"), (0.4, 0.0, "warning"), (0.05, 6.0, "warning")])
def test_a_batch_that_the_usual_traffic_feels_is_an_alarm(ttft_s: float, waiting: float, severity: str) -> None:
    """As many hits a second as before; but requests wait for those that are computed."""
    world = CacheWorld()

    def ask(duration_s: int, queries: float, ratio: float, took_s: float, waiting: float) -> list[Finding]:
        found = []
        for _ in range(duration_s):
            rows = {"response_cache_queries_total": queries, "response_cache_hits_total": queries * ratio}
            world.serve(1, observes={"time_to_first_token_seconds": {took_s: 5}}, requests_waiting=waiting, **rows)
            found += [each] if (each := world.look()) else []
        return found

    assert ask(200, 5.0, 0.6, 0.05, 0.0) == []
    finding = ask(int(HELD_S) + 30, 20.0, 0.15, ttft_s, waiting)[-1]
    assert finding.severity == severity
    assert any("as often a second as before" in each.text for each in finding.evidence) is (severity == "info")
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def _night(world: CacheWorld) -> set[str]:
    """A time in which nothing is found instead of the usual traffic, and what is said of it."""
    return {each.severity for each in world.cached(200, 5.0, 0.0) if each}


def _usual_until(world: CacheWorld, time_s: float) -> None:
    """All is as usual for hours, of which the analyser keeps the last half hour; and it is restarted meanwhile."""
    state = json.loads(json.dumps(world.analyser.dump()))
    state["caches"] = [["e", "response cache", [[50.0, 30.0, 0.0, 0.0, 0.0]] * 180]]
    world.analyser = CacheAnalyser()
    world.analyser.restore(state, time_s)
    world.now_s = time_s
    world.cached(20, 5.0, 0.6)


def test_a_batch_each_night_warns_the_first_night_only() -> None:
    world = CacheWorld()
    world.cached(200, 5.0, 0.6)
    told = []
    for late_s in (0, 600, -900):
        _usual_until(world, world.now_s + 86_400 - 220 + late_s)
        told.append(_night(world))
    assert told == [{"info", "warning"}, {"info"}, {"info"}]
    finding = world.look()
    assert finding is not None
    assert "at this time of the day yesterday" in finding.evidence[-1].text


@pytest.mark.parametrize("after_s", [4 * 3600.0, 86_400.0 + 2 * 3600.0, 16 * 86_400.0])
def test_what_falls_at_another_time_or_after_a_fortnight_is_an_alarm(after_s: float) -> None:
    world = CacheWorld()
    world.cached(200, 5.0, 0.6)
    begin_s = world.now_s
    assert "warning" in _night(world)
    _usual_until(world, begin_s + after_s)
    assert "warning" in _night(world)


def test_it_is_told_for_as_long_as_the_time_before_is_remembered() -> None:
    world = CacheWorld()
    world.cached(900, 5.0, 0.6)
    told = [bool(each) for each in world.cached(900, 5.0, 0.0)]
    assert all(told[20:])


def test_a_cache_that_is_switched_off_while_requests_go_on() -> None:
    world = CacheWorld()
    world.cached(200, 5.0, 0.6, ended=10.0)
    off = []
    for _ in range(30):
        world.serve(1, outcomes={"ok": 10.0})
        off.append(world.look())
    finding = off[-1]
    assert finding is not None
    assert "is not asked any more" in finding.summary


def test_requests_that_are_not_of_the_kind_that_is_looked_up_are_no_alarm() -> None:
    """As in the healthy half hour: questions that repeat come for two minutes, then others again, which no cache keeps."""
    world = CacheWorld()
    for _ in range(4):
        assert not any(world.cached(240, 0.0, 0.0, ended=2.0))
        assert not any(world.cached(120, 2.0, 0.9, ended=2.0))


def test_it_goes_when_the_cache_hits_again() -> None:
    world = CacheWorld()
    world.cached(200, 5.0, 0.6)
    assert world.cached(40, 5.0, 0.0)[-1]
    assert world.cached(10, 5.0, 0.6)[-1] is None


def test_a_cache_is_cold_after_a_restart_and_that_is_normal() -> None:
    world = CacheWorld()
    world.cached(200, 5.0, 0.6)
    world._totals.clear()  # the counters begin anew, as with a new process
    assert not any(world.cached(int(WARM_UP_S) - 10, 5.0, 0.0))
    assert world.cached(60, 5.0, 0.0)[-1], "and if it stays cold, it is told"


def test_a_restart_of_the_agent_forgets_nothing() -> None:
    before, after = CacheWorld(), CacheWorld()
    before.cached(300, 5.0, 0.6)
    after.store, after.now_s, after._totals = before.store, before.now_s, before._totals
    after.analyser.restore(json.loads(json.dumps(before.analyser.dump())), after.now_s)
    assert after.cached(30, 5.0, 0.0)[-1]
    assert len(json.dumps(before.analyser.dump())) < 10_000


@pytest.mark.parametrize("state", [{}, {"caches": 3}, {"caches": [["e", "c", [["x", 1, 2]]]]}, {"caches": [["e"]]}])
def test_a_state_that_is_none(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        CacheAnalyser().restore(state, 0.0)


NORMAL: dict[str, Callable[[int], tuple[float, float]]] = {
    "always low": lambda second: (10.0, 0.05),
    "never any": lambda second: (10.0, 0.0),
    "it goes up": lambda second: (10.0, min(second / 250, 0.9)),
    "it goes down slowly": lambda second: (10.0, max(0.9 - second / 600, 0.4)),
    "it goes up and down": lambda second: (10.0, 0.05 if second // 20 % 2 else 0.6),
    "it falls by half": lambda second: (10.0, 0.6 if second < 200 else 0.3),
    "hardly anything is looked up any more": lambda second: (10.0, 0.6) if second < 200 else (0.05, 0.0),
    "nothing comes any more": lambda second: (10.0, 0.6) if second < 200 else (0.0, 0.0),
    "new prompts for five seconds": lambda second: (10.0, 0.1 if 200 <= second < 205 else 0.6),
}


@pytest.mark.parametrize("name", NORMAL)
def test_hit_rates_that_are_normal(name: str) -> None:
    world = CacheWorld()
    for second in range(400):
        queries, ratio = NORMAL[name](second)
        assert world.cached(1, queries, ratio, ended=queries) == [None], second


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
    world = CacheWorld()
    assert world.look() is None
    world.serve(100, response_cache_queries_total=5)
    assert world.look() is None
    world = CacheWorld(state="down")
    world.cached(200, 5.0, 0.6)
    assert world.cached(30, 5.0, 0.0)[-1] is None


def _both(world: CacheWorld, seconds: int, prefix: float, response: float) -> list[Finding]:
    """Lookups in both caches at these hit rates, and what an agent shows in each second that has a finding."""
    diagnosis = Diagnosis([world.analyser], engine_causes=(), subject_causes=())
    told: list[Finding] = []
    for _ in range(seconds):
        rows = {"prefix_cache_queries_total": 4000.0, "prefix_cache_hits_total": 4000.0 * prefix}
        rows |= {"response_cache_queries_total": 5.0, "response_cache_hits_total": 5.0 * response}
        world.serve(1, outcomes={"ok": 5}, **rows)
        told += diagnosis.update(world.view, world.now_s)
    return told


def test_two_caches_of_one_engine_that_fell_are_one_finding_that_names_both() -> None:
    world = CacheWorld()
    assert _both(world, 200, 0.6, 0.6) == []
    first = _both(world, int(HELD_S) + 40, 0.0, 0.6)[-1]
    assert (first.severity, "prefix" in first.summary, "response" in first.summary) == ("warning", True, False)
    told = _both(world, 40, 0.0, 0.0)
    assert len(told) == 40, "one finding at each look"
    both = told[-1]
    assert both.severity == "warning"
    assert both.summary == (
        "engine e: its prefix cache hits 0%, and hit 60% before; its response cache hits 0%, and hit 60% before"
    )
    assert {each.metric for each in both.evidence} >= {
        "aie_engine_prefix_cache_hits_total",
        "aie_engine_response_cache_hits_total",
    }
    assert both.evidence[: len(first.evidence)][0].metric == "aie_engine_prefix_cache_hits_total", "the graver first"
    assert "chat template" in both.advice
    assert "--response-cache-bytes" in both.advice
    assert both.since_s <= first.since_s + 10.0
