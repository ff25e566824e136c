"""When a queue, a KV cache that is too small or prompts in the way are found, and all that looks like them and is none."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from fakes.cause_world import BEGIN_S
from fakes.engine_world import EngineWorld

from aie_agent.analysis.causes import EXPLAINS, STEADINESS
from aie_agent.analysis.engine_causes.kv_full import kv_full
from aie_agent.analysis.engine_causes.kv_preemption import kv_preemption
from aie_agent.analysis.engine_causes.outcomes import client_flood, requests_rejected
from aie_agent.analysis.engine_causes.prefill_interference import prefill_interference
from aie_agent.analysis.engine_causes.queue_saturation import HELD_S, queue_saturation
from aie_agent.analysis.explain import explain
from aie_agent.analysis.findings import EngineCause
from aie_agent.analysis.steady import Steady
from aie_agent.samples import Batch, HistogramPoint
from aie_telemetry import api
from aie_telemetry.catalogue import CATALOGUE

CAUSES: tuple[EngineCause, ...] = (queue_saturation, kv_preemption, kv_full, prefill_interference)
FAST = {"queue_seconds": {0.002: 4}, "time_to_first_token_seconds": {0.05: 4}}
SLOW = {"queue_seconds": {3.0: 4}, "time_to_first_token_seconds": {3.4: 4}}
STEADY = {"inter_token_seconds": {0.02: 100}, "step_tokens": {8.0: 50}}
STUTTERING = {"inter_token_seconds": {0.02: 90, 0.5: 10}, "step_tokens": {8.0: 45, 1500.0: 5}}


def first_second(world: EngineWorld, cause: EngineCause, seconds: int, **kwargs: Any) -> int | None:
    """After how many such seconds a cause is found."""
    for second in range(1, seconds + 1):
        world.serve(1, **kwargs)
        if world.engine(cause):
            return second
    return None


def test_requests_that_wait_are_found_within_ten_seconds() -> None:
    world = EngineWorld()
    world.serve(60, observes=FAST, requests_running=8, requests_waiting=0, kv_usage_ratio=0.3)
    after = first_second(world, queue_saturation, 30, observes=SLOW, requests_running=16, requests_waiting=40, kv_usage_ratio=0.3)
    assert after is not None
    assert after <= HELD_S + 1
    finding = world.engine(queue_saturation)
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity) == ("queue_saturation", "e", "warning")
    assert "40 wait" in finding.summary
    assert "(limit 500 ms for half of them, and 50% of that)" in finding.evidence[0].text
    assert "40 requests wait now beside 16 that run" in finding.evidence[1].text
    assert "--max-num-seqs" in finding.advice
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


@pytest.mark.parametrize(
    ("running", "usage", "is_full"),
    [(16, 0.97, True), (1, 0.6, True), (2, 0.7, True), (2, 0.6, False), (100, 0.92, True), (16, 0.8, False), (8, 0.05, False)],
)
def test_a_queue_before_a_cache_without_room_asks_for_memory(running: int, usage: float, is_full: bool) -> None:
    world = EngineWorld()
    world.serve(30, observes=SLOW, requests_running=running, requests_waiting=40, kv_usage_ratio=usage, kv_capacity_tokens=64)
    found, queue = world.engine(kv_full), world.engine(queue_saturation)
    assert queue is not None
    assert (found is not None) == is_full
    if found is not None:
        assert (found.cause, found.severity, found.since_s) == ("kv_full", queue.severity, queue.since_s)
        assert "--kv-cache-dtype" in found.advice
        assert f"{usage:.0%} taken" in found.evidence[0].text
        assert "room for 64 tokens" in found.evidence[1].text
        assert {each.metric for each in found.evidence} <= CATALOGUE.keys()
        told = explain([queue, found], EXPLAINS, lambda _cause, _effect: True)
        assert [each.explained_by for each in told] == ["kv_full", ""]


@pytest.mark.parametrize(("usage", "ran_before", "is_full"), [(0.55, 1, False), (0.55, 2, True), (0.95, 1, True)])
def test_an_engine_with_one_place_is_not_short_of_memory(usage: float, ran_before: int, is_full: bool) -> None:
    """llama.cpp: its page tells neither the size of its cache nor how long requests wait."""
    world = EngineWorld()
    world.serve(10, requests_running=ran_before, requests_waiting=0, kv_usage_ratio=usage)
    world.serve(60, requests_running=1, requests_waiting=2, kv_usage_ratio=usage)
    queue, full = world.engine(queue_saturation), world.engine(kv_full)
    assert queue is not None
    assert "llama.cpp --parallel" in queue.advice
    assert (full is not None) == is_full
    if full is not None:
        assert "llama.cpp --ctx-size" in full.advice


@pytest.mark.parametrize(
    ("wait_s", "scatter_s", "more_s"),
    [(2.2, 0.1, 0.4), (0.9, 0.1, 0.2), (0.85, 0.15, 0.3), (2.3, 0.2, 0.5), (2.5, 0.0, 0.1), (1.0, 0.0, 0.1), (4.8, 0.3, 0.5)],
)
def test_waits_are_compared_by_their_sums_and_not_by_buckets_that_differ(wait_s: float, scatter_s: float, more_s: float) -> None:
    noise, world, missed = random.Random(1), EngineWorld(), []
    for second in range(60):
        waits = [noise.gauss(wait_s, scatter_s) for _ in range(4)]
        observes = {"queue_seconds": dict.fromkeys(waits, 1), "time_to_first_token_seconds": {each + more_s: 1 for each in waits}}
        world.serve(1, requests_running=8, requests_waiting=8, observes=observes)
        missed += [second] if second > 15 and world.engine(queue_saturation) is None else []
    assert missed == []


def test_the_evidence_of_a_queue_tells_what_was_waited() -> None:
    world = EngineWorld()
    world.serve(
        60, requests_running=8, requests_waiting=8, observes={"queue_seconds": {4.0: 3}, "time_to_first_token_seconds": {4.5: 3}}
    )
    finding = world.engine(queue_saturation)
    assert finding is not None
    assert "all of them 4.0 s on average; first tokens took 4.5 s on average, of which that is 89%" in finding.evidence[0].text


@pytest.mark.parametrize(("every_s", "long_s"), [(10, 62.0), (5, 32.0)])
def test_a_few_long_prompts_hide_no_queue(every_s: int, long_s: float) -> None:
    def first_tokens(second: int) -> dict[float, float]:
        return {2.2: 2} if second % every_s else {2.2: 1, long_s: 1}

    world, missed = EngineWorld(), []
    for second in range(120):
        observes = {"queue_seconds": {2.0: 2}, "time_to_first_token_seconds": first_tokens}
        world.serve(1, requests_running=8, requests_waiting=8, kv_usage_ratio=0.95, observes=observes)
        found = [cause for cause in (queue_saturation, kv_full) if world.engine(cause) is not None]
        missed += [second] if second >= 60 and len(found) < 2 else []
    assert missed == []
    finding = world.engine(queue_saturation)
    assert finding is not None
    assert "about 1.5 s on average without the longest; first tokens took at most 2.5 s so (" in finding.evidence[0].text
    assert "with them), of which that is 60%" in finding.evidence[0].text


def test_waits_that_are_a_small_part_of_long_prefills_are_no_queue() -> None:
    """22 % of the usual, 25 % of all; what buckets allow at most would be half."""
    observes = {"queue_seconds": {1.1: 8, 19.0: 2}, "time_to_first_token_seconds": {4.9: 8, 75.0: 2}}
    world = EngineWorld()
    assert first_second(world, queue_saturation, 120, observes=observes, requests_running=8, requests_waiting=8) is None


def test_a_queue_on_a_page_without_sums_is_found() -> None:
    world = EngineWorld()
    for second in range(60):
        world.serve(1, requests_running=8, requests_waiting=8)
        for metric in ("aie_engine_queue_seconds", "aie_engine_time_to_first_token_seconds"):
            point = HistogramPoint(metric, (("engine", "e"),), (1.0, 2.5, 5.0), (0.0, 4.0 * second, 0.0, 0.0), 0.0)
            world.store.apply(Batch("scrape:e", world.now_s, histograms=[point]))
    assert world.engine(queue_saturation) is not None


@pytest.mark.parametrize("usage", [0.0, 0.6, 1.0])
def test_a_full_cache_in_front_of_which_nobody_waits_is_none(usage: float) -> None:
    world = EngineWorld()
    level = {"requests_running": lambda second: second % 2, "requests_waiting": lambda second: second % 5 == 0}
    assert first_second(world, kv_full, 120, observes=SLOW, kv_usage_ratio=usage, **level) is None


def test_neither_a_starved_cpu_nor_refused_prompts_hide_a_cache_that_is_too_small() -> None:
    """As the fault lab has it: one request at a time, prompts that are longer than the cache, clients that ask on."""
    world = EngineWorld()
    level = {"requests_running": 1, "requests_waiting": 9, "kv_usage_ratio": 0.7, "requests_refused_full_total": 0}
    world.serve(30, observes=SLOW, outcomes={"ok": 0.5, "rejected": 3, "error": 0, "timeout": 0}, **level)
    found = [each for cause in (kv_full, queue_saturation, client_flood, requests_rejected) if (each := world.engine(cause))]
    assert [each.cause for each in found] == ["kv_full", "queue_saturation", "requests_rejected"]
    starved = api.Finding(cause="cpu_starved", subject="e", severity="warning", since_s=world.now_s, summary="")
    told = explain([starved, *found], EXPLAINS, lambda _cause, _effect: True)
    assert {each.cause for each in told if not each.explained_by} == {"cpu_starved", "kv_full", "requests_rejected"}


def test_without_a_histogram_of_waits_the_queue_must_be_long() -> None:
    world = EngineWorld()
    world.serve(29, requests_running=4, requests_waiting=9)
    assert world.engine(queue_saturation) is None
    world.serve(2, requests_running=4, requests_waiting=9)
    finding = world.engine(queue_saturation)
    assert finding is not None
    assert finding.not_visible
    short = EngineWorld()
    short.serve(60, requests_running=4, requests_waiting=3)
    assert short.engine(queue_saturation) is None


def told_of(world: EngineWorld, seconds: int, waiting: Callable[[int], float]) -> list[str]:
    """The severity in each second that has a finding, with the steadiness that it has in an agent."""
    steady = Steady(STEADINESS)
    told: list[str] = []
    begin = int(world.now_s - BEGIN_S)
    for _ in range(seconds):
        level = lambda second: waiting(second - begin)  # noqa: E731
        world.serve(1, observes=SLOW, requests_running=16, requests_waiting=level, kv_usage_ratio=0.3)
        found = world.engine(queue_saturation)
        told += [each.severity for each in steady.update([found] if found else [], world.now_s)]
    return told


@pytest.mark.parametrize("ended", [lambda second: 2 * second, lambda second: 16 * (second // 5)], ids=["evenly", "in waves"])
def test_a_burst_that_is_worked_off_is_information(ended: Callable[[int], float]) -> None:
    world = EngineWorld()
    world.serve(60, observes=FAST, requests_running=8, requests_waiting=0, kv_usage_ratio=0.3)
    told = told_of(world, 60, lambda second: max(90.0 - ended(second), 0.0))
    assert len(told) > 20
    assert set(told) == {"info"}


def test_a_queue_that_shrinks_too_slowly_or_not_any_more_is_a_warning() -> None:
    shapes: tuple[Callable[[int], float], ...] = (lambda at: 90.0 - 0.5 * at, lambda at: max(90.0 - 4 * at, 50.0))
    for waiting in shapes:
        world = EngineWorld()
        world.serve(60, observes=FAST, requests_running=8, requests_waiting=0, kv_usage_ratio=0.3)
        assert told_of(world, 60, waiting)[-1] == "warning"


def test_a_queue_that_goes_up_and_down_stays_a_warning() -> None:
    noise, world, level = random.Random(3), EngineWorld(), 0.0

    def wander(_: int) -> float:
        nonlocal level
        level = 0.97 * level + noise.gauss(0.0, 1.0)
        return max(round(10.0 + level), 1.0)

    world.serve(60, observes=FAST, requests_running=8, requests_waiting=0, kv_usage_ratio=0.3)
    told = told_of(world, 600, wander)
    assert len(told) > 500
    assert set(told[60:]) == {"warning"}


QUEUES: dict[str, dict[str, Any]] = {
    "an empty queue": {"observes": SLOW, "requests_waiting": 0},
    "a queue that empties every few seconds": {"observes": SLOW, "requests_waiting": lambda second: second % 7},
    "a short queue that is fast": {"observes": FAST, "requests_waiting": 3},
    "long prompts: a first token that takes long, and no wait": {
        "observes": {"queue_seconds": {0.6: 4}, "time_to_first_token_seconds": {6.0: 4}},
        "requests_waiting": 1,
    },
    "waits that are less than half of it, though their buckets say more": {
        "observes": {"queue_seconds": {2.6: 4}, "time_to_first_token_seconds": {5.3: 4}},
        "requests_waiting": 5,
    },
    "long prompts, and a few that are far longer": {
        "observes": {
            "queue_seconds": lambda second: {0.6: 3, 0.6 if second % 3 else 30.0: 1},
            "time_to_first_token_seconds": lambda second: {3.0: 3, 3.0 if second % 3 else 65.0: 1},
        },
        "requests_waiting": 1,
    },
    "no request that is admitted": {"observes": {"queue_seconds": {}}, "requests_waiting": 1},
}


@pytest.mark.parametrize("name", QUEUES)
def test_queues_that_are_normal(name: str) -> None:
    world = EngineWorld()
    assert first_second(world, queue_saturation, 120, requests_running=4, **QUEUES[name]) is None


def test_preemptions_are_found_as_they_come() -> None:
    world = EngineWorld()
    world.serve(60, requests_running=30, kv_usage_ratio=0.8, preemptions_total=0)
    after = first_second(world, kv_preemption, 30, requests_running=30, kv_usage_ratio=1.0, preemptions_total=2)
    assert after == 3
    finding = world.engine(kv_preemption)
    assert finding is not None
    assert finding.severity == "warning"
    assert finding.since_s == pytest.approx(world.now_s - 3, abs=1.01)
    assert "6 times in the last 30 s" in finding.evidence[0].text
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


PREEMPTIONS: dict[str, Callable[[int], float]] = {
    "none": lambda second: 0,
    "one in a while": lambda second: second % 10 == 0,
    "four in half a minute": lambda second: second % 8 == 0,
    "a single burst": lambda second: 8 * (second == 60),
}


@pytest.mark.parametrize("name", PREEMPTIONS)
def test_preemptions_that_are_normal(name: str) -> None:
    world = EngineWorld()
    for second in range(200):
        world.serve(1, preemptions_total=PREEMPTIONS[name](second), kv_usage_ratio=0.99)
        assert world.engine(kv_preemption) is None, second


def test_tokens_that_stutter_while_prompts_are_computed() -> None:
    world = EngineWorld()
    prompts = lambda second: 1500 * (second % 3 == 0)  # noqa: E731
    world.serve(30, observes=STEADY, prompt_tokens_total=prompts, generation_tokens_total=100)
    assert world.engine(prefill_interference) is None
    world.serve(20, observes=STUTTERING, prompt_tokens_total=prompts, generation_tokens_total=100)
    finding = world.engine(prefill_interference)
    assert finding is not None
    assert finding.cause == "prefill_interference"
    assert "(limit 6 times as long and 100 ms, of 300 gaps)" in finding.evidence[0].text
    assert "largest steps" in finding.evidence[1].text
    assert not finding.not_visible
    assert "--max-num-batched-tokens" in finding.advice
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def test_without_the_tokens_of_steps_prompts_must_be_most_of_the_work() -> None:
    gaps = {"inter_token_seconds": STUTTERING["inter_token_seconds"]}
    most, few = EngineWorld(), EngineWorld()
    most.serve(40, observes=gaps, prompt_tokens_total=1000, generation_tokens_total=100)
    few.serve(40, observes=gaps, prompt_tokens_total=100, generation_tokens_total=100)
    finding = most.engine(prefill_interference)
    assert finding is not None
    assert finding.not_visible
    assert few.engine(prefill_interference) is None


GAPS: dict[str, dict[str, Any]] = {
    "steps of one kind": {"observes": STEADY, "prompt_tokens_total": 100},
    "mixed steps within the budget": {
        "observes": {"inter_token_seconds": {0.04: 90, 0.075: 10}, "step_tokens": {8.0: 45, 256.0: 5}},
        "prompt_tokens_total": 500,
    },
    "gaps as long without prompts": {"observes": STUTTERING, "prompt_tokens_total": lambda second: 900 * (second % 10 == 0)},
    "gaps that are long and all alike": {"observes": {"inter_token_seconds": {0.5: 100}, "step_tokens": {8.0: 9, 900.0: 1}}},
    "gaps that nobody notices": {
        "observes": {"inter_token_seconds": {0.002: 90, 0.03: 10}, "step_tokens": {8.0: 45, 900.0: 5}},
        "prompt_tokens_total": 500,
    },
    "steps without prompts": {"observes": {**STUTTERING, "step_tokens": {8.0: 50}}, "prompt_tokens_total": 1},
    "too few tokens to say": {"observes": {"inter_token_seconds": {0.02: 8, 0.5: 1}, "step_tokens": {8.0: 9, 1500.0: 1}}},
}


@pytest.mark.parametrize("name", GAPS)
def test_gaps_that_are_normal(name: str) -> None:
    world = EngineWorld()
    assert first_second(world, prefill_interference, 60, generation_tokens_total=100, **GAPS[name]) is None


@pytest.mark.parametrize("cause", CAUSES)
def test_nothing_is_said_of_what_is_not_known(cause: EngineCause) -> None:
    world = EngineWorld()
    assert world.engine(cause) is None
    world.serve(60, requests_running=9, generation_tokens_total=100)
    assert world.engine(cause) is None
    old = EngineWorld()
    old.serve(
        40, observes={**SLOW, **STUTTERING}, requests_running=9, requests_waiting=9, preemptions_total=5, prompt_tokens_total=900,
        kv_usage_ratio=1.0,
    )  # fmt: skip
    assert old.engine(cause)
    old.live(30, {})
    assert old.engine(cause) is None, "what was said is old"
