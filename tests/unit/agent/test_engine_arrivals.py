"""Whether more requests come or fewer are served: a flood, an engine that became slow, one that is too small, what is not known."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from fakes.cause_world import BEGIN_S
from fakes.engine_world import E, EngineWorld

from aie_agent.analysis.causes import EXPLAINS
from aie_agent.analysis.engine_causes.arrivals import RECEIVED, Arrivals, Counted, arrivals
from aie_agent.analysis.engine_causes.outcomes import client_flood
from aie_agent.analysis.engine_causes.queue_saturation import queue_saturation
from aie_agent.analysis.engine_causes.tokenizer_bound import tokenizer_bound
from aie_agent.analysis.explain import explain
from aie_agent.samples import Batch, Point
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import CATALOGUE, Kind

QUICK = {"tokenize_seconds": {0.005: 20}, "time_to_first_token_seconds": {0.1: 20}}
SLOW = {"tokenize_seconds": {1.5: 5}, "time_to_first_token_seconds": {2.0: 5}}


def serve(world: EngineWorld, seconds: int, ok: Any, rejected: Any, came: Any = None, **more: Any) -> None:
    """So many seconds in which so many requests end well and are refused for want of a place."""
    received = {} if came is None else {"requests_received_total": came}
    ended = {"ok": ok, "error": 0, "timeout": 0, "rejected": rejected, "cancelled": 0}
    world.serve(seconds, requests_refused_full_total=rejected, requests_waiting=0, outcomes=ended, **received, **more)


def found(world: EngineWorld) -> list[Finding]:
    return [each for cause in (client_flood, queue_saturation, tokenizer_bound) if (each := world.engine(cause))]


def test_an_engine_that_became_slow_under_the_same_load_is_not_flooded() -> None:
    world = EngineWorld()
    serve(world, 120, 20, 0, came=20, observes=QUICK)
    assert found(world) == []
    serve(world, 20, 5, 15, came=20, observes=SLOW)
    slow, tokenizer = found(world)
    assert (slow.cause, slow.severity) == ("queue_saturation", "warning")
    assert slow.summary == "engine e: it serves fewer requests than before, 75% are refused"
    texts = [each.text for each in slow.evidence]
    assert "150 were refused (75%" in texts[0]
    assert "20.0 requests a second came since it refuses some; 20.0 in the" in texts[1]
    assert "5.0 requests a second were served since it refuses some; 20.0 in the" in texts[2]
    assert slow.not_visible == ()
    assert 20 <= world.now_s - slow.since_s <= 22
    assert {each.metric for each in slow.evidence} <= CATALOGUE.keys()
    told = {each.cause: each.explained_by for each in explain([slow, tokenizer], EXPLAINS, lambda _a, _b: True)}
    assert told == {"queue_saturation": "tokenizer_bound", "tokenizer_bound": ""}


@pytest.mark.parametrize(
    "cause",
    [
        *(
            "gpu_thermal",
            "gpu_power_brake",
            "pcie_bound",
            "cpu_throttled",
            "cpu_starved",
            "cpu_steal",
            "gil_contention",
            "python_gc",
        ),
        *("lock_contention", "page_faults", "swapping", "tokenizer_bound", "kv_full", "kv_preemption", "cache_hit_collapse"),
    ],
)
def test_what_makes_an_engine_slow_explains_what_it_refuses(cause: str) -> None:
    assert "queue_saturation" in EXPLAINS[cause]


def test_clients_that_ask_again_because_they_are_refused_are_not_the_cause() -> None:
    world = EngineWorld()
    serve(world, 120, 20, 0, came=20)
    serve(world, 20, 5, 95, came=100)
    (slow,) = found(world)
    assert (slow.cause, slow.summary) == (
        "queue_saturation",
        "engine e: more requests come and it serves fewer than before, 95% are refused",
    )


def test_what_fills_the_queue_before_anything_is_refused_is_part_of_the_flood() -> None:
    world = EngineWorld()
    serve(world, 60, 20, 0, came=20)
    serve(world, 20, 20, 0, came=60)
    serve(world, 5, 20, 40, came=60)
    (flood,) = found(world)
    assert flood.cause == "client_flood"
    assert flood.evidence[1].text.startswith(
        "60.0 requests a second came since it refuses some; 20.0 in the 49 s known before that"
    )


@pytest.mark.parametrize("filled_first", [True, False])
def test_where_more_come_only_after_the_first_refusal_they_may_be_asked_again(filled_first: bool) -> None:
    """A little too much, refused, and asked again at once: by what is counted this is no other than a flood that comes at once."""
    world = EngineWorld()
    serve(world, 120, 20, 0, came=20)
    serve(world, 10, 20, 0, came=100 if filled_first else 21)
    serve(world, 20, 20, 80, came=100)
    (flood,) = found(world)
    assert flood.cause == "client_flood"
    asked_again = [each for each in flood.not_visible if "asked again: no more came before it refused any" in each]
    assert len(asked_again) == (0 if filled_first else 1)


def look(world: EngineWorld, totals: dict[str, float], apart_s: float, ok: int, rejected: int, came: int) -> None:
    """One look at a page that is read every so many seconds; so many a second came, and ended so, since the look before."""
    rates = {
        "requests_received_total": came,
        "requests_refused_full_total": rejected,
        "requests_total outcome=ok": ok,
        "requests_total outcome=rejected": rejected,
    }
    world.now_s += apart_s
    points = []
    for row, rate in rates.items():
        totals[row] = totals.get(row, 0.0) + rate * apart_s
        name, *labels = row.split()
        tags = tuple(sorted((*E, *(("outcome", label.split("=")[1]) for label in labels))))
        points.append(Point(f"aie_engine_{name}", Kind.COUNTER, tags, totals[row]))
    world.store.apply(Batch("scrape:e", world.now_s, points, period_s=apart_s))


@pytest.mark.parametrize("filled_first", [True, False])
@pytest.mark.parametrize("apart_s", [6.0, 10.0, 20.0])
def test_a_page_that_is_seldom_read_tells_what_came_before_the_first_refusal_too(apart_s: float, filled_first: bool) -> None:
    world = EngineWorld()
    totals: dict[str, float] = {}
    for ok, rejected, came, looks in ((20, 0, 20, 12), (20, 0, 100 if filled_first else 21, 2), (20, 80, 100, 2)):
        for _ in range(looks):
            look(world, totals, apart_s, ok, rejected, came)
    flood = world.engine(client_flood)
    assert flood is not None
    asked_again = ("whether these are new requests, or the same asked again: no more came before it refused any",)
    assert flood.not_visible == (() if filled_first else asked_again)


def test_where_nobody_looked_before_the_first_refusal_nobody_says_that_no_more_came() -> None:
    world = EngineWorld()
    serve(world, 60, 20, 0, came=20)
    world.now_s += 40.0
    serve(world, 1, 20, 0, came=20)
    serve(world, 20, 20, 80, came=100)
    (flood,) = found(world)
    assert flood.cause == "client_flood"
    assert flood.not_visible == ("whether these are new requests, or the same asked again: what came just before is not known",)


def test_an_engine_that_was_idle_and_is_slow_from_its_first_load_is_not_flooded() -> None:
    world = EngineWorld()
    now_and_then = lambda second: second % 30 == 0  # noqa: E731
    serve(world, 120, now_and_then, 0, came=now_and_then)
    serve(world, 20, 5, 15, came=20)
    (slow,) = found(world)
    assert (slow.cause, slow.summary) == ("queue_saturation", "engine e: more requests come than it takes in, 75% are refused")
    assert slow.not_visible == ("whether it is slower than it was: before, it was next to idle",)


def test_a_flood_of_an_engine_that_had_a_little_to_do_is_one() -> None:
    world = EngineWorld()
    serve(world, 120, 2, 0, came=2)
    serve(world, 20, 10, 190, came=200)
    assert [each.cause for each in found(world)] == ["client_flood"]


def test_a_flood_that_is_there_from_the_start_is_not_called_one() -> None:
    world = EngineWorld()
    serve(world, 60, 5, 195, came=200)
    (unknown,) = found(world)
    assert (unknown.cause, unknown.summary) == (
        "queue_saturation",
        "engine e: more requests come than it takes in, 98% are refused",
    )
    assert "whether more come than before" in unknown.not_visible[0]


def test_an_engine_that_is_too_small_for_what_comes_as_ever() -> None:
    """The load reaches what the engine can do: neither did more come at once, nor is it slower."""
    world = EngineWorld()
    serve(world, 120, 20, 0, came=20)
    serve(world, 60, 20, 4, came=24)
    (small,) = found(world)
    assert (small.cause, small.summary) == ("queue_saturation", "engine e: more requests come than it takes in, 17% are refused")
    assert small.not_visible == ()


def test_where_the_page_does_not_tell_what_came_what_ended_is_it() -> None:
    world = EngineWorld()
    serve(world, 120, 20, 0)
    serve(world, 5, 20, 100)
    (flood,) = found(world)
    assert flood.cause == "client_flood"
    assert flood.evidence[1].metric == "aie_engine_requests_total"


def filled(world: EngineWorld, seconds: int, ok: int, rejected: int, grows: int, queue: float | None = None) -> None:
    """A page that does not tell what came. Its queue grows by so many a second, from what it is or from `queue` on."""
    begin = int(world.now_s - BEGIN_S)
    least = (world.store.current("aie_engine_requests_waiting", world.now_s) or 0.0) if queue is None else queue
    waiting = lambda second: least + grows * (second - begin + 1)  # noqa: E731
    outcomes = {"ok": ok, "rejected": rejected}
    world.serve(seconds, outcomes=outcomes, requests_refused_full_total=rejected, requests_running=8, requests_waiting=waiting)


def test_an_engine_that_became_slow_is_not_flooded_when_it_is_forgotten_that_it_was_faster() -> None:
    """All that is remembered of the time before it refused any is then that its queue filled, while little ended."""
    world = EngineWorld()
    filled(world, 120, 20, 0, 0)
    filled(world, 60, 5, 0, 15)
    for _ in range(17):
        filled(world, 20, 5, 15, 0)
        assert [each.cause for each in found(world)] == ["queue_saturation"]


def test_what_fills_a_queue_came_before_anything_is_refused() -> None:
    """So nobody asked again yet."""
    world = EngineWorld()
    filled(world, 120, 5, 0, 0)
    filled(world, 20, 5, 0, 15)
    filled(world, 20, 5, 15, 0)
    flood = world.engine(client_flood)
    assert flood is not None
    assert flood.not_visible == ()


def test_what_waits_in_an_engine_that_was_restarted_came_since() -> None:
    """What waited in the old one is not taken off."""
    world = EngineWorld()
    filled(world, 61, 5, 0, 15)
    world._totals.clear()
    filled(world, 60, 5, 0, 15, queue=0.0)
    came = arrivals(world.view, "e", [], world.now_s).came_before
    assert came == Counted(20.0 * 90 + 8, 90.0), "and what runs in the new one"


@pytest.mark.parametrize("held", [True, False])
def test_a_flood_stays_one_longer_than_what_was_before_is_remembered(held: bool) -> None:
    since_s = (lambda cause, _engine: 1.0 if cause == "client_flood" else None) if held else (lambda _cause, _engine: None)
    world = EngineWorld(held_since_s=since_s)
    serve(world, 60, 20, 0, came=20)
    serve(world, 320, 20, 180, came=200)
    assert [each.cause for each in found(world)] == (["client_flood"] if held else ["queue_saturation"])
    serve(world, 61, 5, 15, came=20)
    assert [each.cause for each in found(world)] == ["queue_saturation"], "it is over, and the engine refuses still"


def test_while_an_engine_was_away_nothing_came_and_that_is_not_before() -> None:
    world = EngineWorld()
    serve(world, 60, 20, 0, came=20)
    world.now_s += 120.0
    serve(world, 50, 20, 0, came=20)
    serve(world, 10, 15, 5, came=20)
    assert [each.cause for each in found(world)] == ["queue_saturation"]


def test_requests_that_come_by_chance_are_no_flood() -> None:
    """The stated rate: of looks at Poisson counts at most 3 in 100000, and none in these worlds."""
    rng = np.random.default_rng(1)
    for mean in (0.2, 2.0, 20.0):
        for seconds in (1.0, 10.0, 60.0):
            before = rng.poisson(mean * 60.0, 100_000)
            now = rng.poisson(mean * seconds, 100_000)
            nothing = Counted(0.0, 0.0)
            grew = sum(
                Arrivals(Counted(a, 60.0), nothing, Counted(b, seconds), nothing, nothing, 0.0, RECEIVED).grew
                for a, b in zip(before[:20_000].tolist(), now[:20_000].tolist(), strict=True)
            )
            assert grew <= 4, (mean, seconds)
    for seed in range(5):
        chance, world = random.Random(seed), EngineWorld()
        counts = [sum(chance.random() < 0.02 for _ in range(100)) for _ in range(400)]
        serve(world, 60, lambda second, counts=counts: counts[second], 0, came=lambda second, counts=counts: counts[second])
        for _ in range(60):
            serve(world, 1, 1, lambda second, counts=counts: max(counts[second] - 1, 0), came=lambda s, counts=counts: counts[s])
            assert world.engine(client_flood) is None
