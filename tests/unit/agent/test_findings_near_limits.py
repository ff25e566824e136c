"""What stays near a limit is one finding, through the whole diagnosis and a quarter of an hour; what is mended is soon gone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes.cause_world import BEGIN_S, Rate
from fakes.engine_world import EngineWorld

from aie_agent.analysis.causes import STEADINESS
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.engine_causes.kv_full import kv_full
from aie_agent.analysis.engine_causes.kv_preemption import kv_preemption
from aie_agent.analysis.engine_causes.outcomes import client_flood, error_rate, requests_rejected
from aie_agent.analysis.engine_causes.prefill_interference import prefill_interference
from aie_agent.analysis.engine_causes.python_gc import python_gc
from aie_agent.analysis.engine_causes.queue_saturation import HELD_S, queue_saturation
from aie_agent.analysis.engine_causes.readings import RUNNING
from aie_agent.analysis.findings import EngineCause
from aie_agent.samples import Batch
from aie_telemetry.api import Finding

CAUSES: tuple[EngineCause, ...] = (
    error_rate, client_flood, requests_rejected, kv_preemption, kv_full, queue_saturation, prefill_interference, python_gc,
)  # fmt: skip
QUARTER_S = 900
E_M = "engine=e model=m"
LONG = {"queue_seconds": {4.0: 3}, "time_to_first_token_seconds": {4.5: 3}}
PROMPTS: dict[str, float] = {"prompt_tokens_total": 1500, "generation_tokens_total": 100}
SHORT = {"queue_seconds": {0.002: 3}, "time_to_first_token_seconds": {0.1: 3}}

Life = dict[str, Any]
"""What an `EngineWorld` serves."""


def shown(world: EngineWorld, diagnosis: Diagnosis, seconds: int, cause: str, **life: Any) -> list[Finding | None]:
    """The finding of a cause at each second, if it is news."""
    told: list[Finding | None] = []
    for _ in range(seconds):
        world.serve(1, **life)
        found = diagnosis.update(world.view, world.now_s)
        told.append(next((each for each in found if each.cause == cause and not each.explained_by), None))
    return told


def news(told: list[Finding | None]) -> list[str]:
    """The severity at each moment at which an alert would change: it comes, goes, or is of another severity."""
    severities = [each.severity if each else "" for each in told]
    return [now for before, now in zip(["", *severities], severities, strict=False) if now != before]


def failing(share: float) -> Callable[[random.Random], Life]:
    def life(noise: random.Random) -> Life:
        return {"outcomes": {"ok": 3 * (1 - share), "error": lambda _: sum(noise.random() < share for _ in range(3))}}

    return life


def queue_empty_at(share: float) -> Callable[[random.Random], Life]:
    def life(noise: random.Random) -> Life:
        waiting = lambda _: 0 if noise.random() < share else noise.randint(1, 8)  # noqa: E731
        return {"requests_running": 8, "requests_waiting": waiting, "kv_usage_ratio": 0.4, "observes": LONG}

    return life


def queue_of_half_the_time(noise: random.Random) -> Life:
    observes = {
        "queue_seconds": lambda _: {max(noise.gauss(2.0, 0.6), 0.1): 1},
        "time_to_first_token_seconds": lambda _: {noise.gauss(4.0, 0.5): 1},
    }
    return {"requests_running": 8, "requests_waiting": 5, "kv_usage_ratio": 0.4, "observes": observes}


def stuttering(longest: Callable[[random.Random], dict[float, float]]) -> Callable[[random.Random], Life]:
    """Of about a hundred gaps a second some are longer, while prompts are computed."""

    def life(noise: random.Random) -> Life:
        observes = {"inter_token_seconds": lambda _: {0.02: 99} | longest(noise), "step_tokens": {8.0: 45, 1500.0: 5}}
        return {"observes": observes, **PROMPTS}

    return life


def one_step_of_a_hundred(noise: random.Random) -> Life:
    """A gap is long because its step has a prompt: both are as rare."""
    rare = [noise.random() < 0.01 * 50 for _ in range(QUARTER_S + 1)]
    observes = {
        "inter_token_seconds": lambda second: {0.02: 49, 0.5 if rare[second] else 0.02001: 1},
        "step_tokens": lambda second: {8.0: 49, 1500.0 if rare[second] else 8.0001: 1},
    }
    return {"observes": observes, **PROMPTS}


NEAR: dict[str, tuple[str, Callable[[random.Random], Life]]] = {
    "one of twenty fails": ("error_rate", failing(0.05)),
    "6 % fail": ("error_rate", failing(0.06)),
    "a queue that is empty at one look of twenty": ("queue_saturation", queue_empty_at(0.05)),
    "a queue that is empty at one look of ten": ("queue_saturation", queue_empty_at(0.1)),
    "waits are half of the time to the first token": ("queue_saturation", queue_of_half_the_time),
    "llama.cpp: now and then fewer wait than run": (
        "queue_saturation",
        lambda noise: {
            "requests_running": 4,
            "requests_waiting": lambda _: 4 + 2 * (noise.random() < 0.5) - 5 * (noise.random() < 0.03),
        },
    ),
    "a cache that is full, and nearly": (
        "kv_full",
        lambda noise: {
            "requests_running": 8,
            "requests_waiting": 5,
            "kv_usage_ratio": lambda second: 0.88 + 0.03 * math.sin(second / 15) + noise.gauss(0, 0.01),
            "observes": LONG,
        },
    ),
    "five preemptions in half a minute": (
        "kv_preemption",
        lambda noise: {"requests_running": 4, "preemptions_total": lambda _: noise.random() < 0.17},
    ),
    "gaps of about six times the median": ("prefill_interference", stuttering(lambda noise: {noise.choice((0.05, 0.3)): 2})),
    "one gap of a hundred is long": ("prefill_interference", stuttering(lambda noise: {0.5: 2 * (noise.random() < 0.5)})),
    "one step of a hundred has a prompt": ("prefill_interference", one_step_of_a_hundred),
    "collections of a twentieth of the time": (
        "python_gc",
        lambda noise: {"requests_running": 4, "observes": {"gc_pause_seconds": lambda _: {0.07: noise.choice((0, 1, 1, 2))}}},
    ),
    "a tenth is refused": (
        "requests_rejected",
        lambda noise: {
            "outcomes": {"ok": 0.8, "rejected": lambda _: float(noise.random() < 0.09)},
            "requests_refused_full_total": 0,
        },
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_what_stays_near_a_limit_is_one_finding(name: str) -> None:
    cause, life = NEAR[name]
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    told = shown(world, diagnosis, QUARTER_S, cause, **life(random.Random(3)))
    assert len([each for each in news(told) if each]) == 1, news(told)
    last = told[-1]
    assert last is not None, "it goes on"
    begun = next(second for second, each in enumerate(told) if each)
    assert world.now_s - last.since_s >= QUARTER_S - begun - 1, "it is as old as it is"


def test_where_half_of_all_fail_it_is_not_critical_again_and_again() -> None:
    told = shown(
        EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=()), QUARTER_S, "error_rate", **failing(0.5)(random.Random(3))
    )
    assert sum(each == "critical" for each in news(told)) == 1
    assert len(news(told)) <= 3


@pytest.mark.parametrize(("a_second", "share"), [(0.5, 0.2), (0.6, 0.15), (0.4, 0.1)])
def test_few_requests_of_a_window_that_only_keeps_it_page_nobody(a_second: float, share: float) -> None:
    """Three of five are 60 %, and enough for it to go on. It is as grave as it would be if it were found anew."""
    noise, world, diagnosis = random.Random(1), EngineWorld(), Diagnosis(engine_causes=(error_rate,), subject_causes=())
    told: list[Finding] = []
    for _ in range(QUARTER_S):
        came = [noise.random() < share for _ in range(sum(noise.random() < a_second / 4 for _ in range(4)))]
        world.serve(1, outcomes={"ok": len(came) - sum(came), "error": sum(came)})
        anew = error_rate(world.view, "e", world.now_s)
        goes_on = error_rate(replace(world.view, held_since_s=lambda *_: BEGIN_S), "e", world.now_s)
        assert (goes_on is not None and goes_on.severity == "critical") == (anew is not None and anew.severity == "critical")
        told += diagnosis.update(world.view, world.now_s)
    begun = [before is None or each.since_s != before.since_s for before, each in zip([None, *told], told, strict=False)]
    assert sum(begun) <= 2, "it stays one"
    assert {each.severity for each in told} == {"warning"}


@pytest.mark.parametrize("every_s", [1.1, 2, 3, 7, 12])
def test_all_of_few_that_fail_are_critical_and_stay_so(every_s: float) -> None:
    """Whichever window holds first: of few a short one never has enough."""
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(error_rate,), subject_causes=())
    told = shown(world, diagnosis, 300, "error_rate", outcomes={"ok": 0, "error": lambda second: second % every_s < 1})
    assert news(told) in (["warning", "critical"], ["", "warning", "critical"])
    assert told[60] is not None


@pytest.mark.parametrize("every_s", [1, 2])
def test_all_that_are_refused_are_a_warning_however_few_come(every_s: int) -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(requests_rejected,), subject_causes=())
    told = shown(world, diagnosis, 300, "requests_rejected", outcomes={"ok": 0, "rejected": lambda second: second % every_s == 0})
    assert [each for each in news(told) if each] == ["info", "warning"]


def test_a_limit_that_is_not_reached_any_more_is_told_with_the_half_that_keeps_it() -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    shown(world, diagnosis, 60, "error_rate", outcomes={"ok": 9.0, "error": 1.0})
    last = shown(world, diagnosis, 240, "error_rate", outcomes={"ok": 9.7, "error": 0.3})[-1]
    assert last is not None
    assert "(3%, limit 5% and 5 requests, and half of that for as long as it goes on)" in last.evidence[0].text
    assert shown(world, diagnosis, 300, "error_rate", outcomes={"ok": 9.85, "error": 0.15})[-1] is None, "below half"


def test_what_never_reached_the_limit_is_not_kept_by_half_of_it() -> None:
    """The null of the lower end: 3 % of requests fail, and the queue is empty at half of the looks."""
    life: Life = {"outcomes": {"ok": 9.7, "error": 0.3, "rejected": 0.3}, "requests_running": 4, "preemptions_total": 0.1}
    life |= {"requests_waiting": lambda second: second % 2, "kv_usage_ratio": 0.85}
    life["observes"] = LONG | {"gc_pause_seconds": {0.03: 1}}
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    for _ in range(QUARTER_S):
        world.serve(1, **life)
        assert diagnosis.update(world.view, world.now_s) == ()


REPAIRED: dict[str, tuple[str, Life, Life, int]] = {
    "a queue": (
        "queue_saturation",
        {"requests_running": 8, "requests_waiting": 9, "observes": LONG},
        {"requests_running": 8, "requests_waiting": 0, "observes": SHORT},
        20,
    ),
    "a full cache": (
        "kv_full",
        {"requests_running": 8, "requests_waiting": 9, "kv_usage_ratio": 0.95, "observes": LONG},
        {"requests_running": 8, "requests_waiting": 0, "kv_usage_ratio": 0.3, "observes": SHORT},
        20,
    ),
    "preemptions": (
        "kv_preemption",
        {"requests_running": 1, "preemptions_total": 2},
        {"requests_running": 1, "preemptions_total": 0},
        45,
    ),
    "tokens that stutter": (
        "prefill_interference",
        {"observes": {"inter_token_seconds": {0.02: 90, 0.5: 10}, "step_tokens": {8.0: 45, 1500.0: 5}}, **PROMPTS},
        # In buckets a mixed step of 1.8 usual ones may look like four: 100 to 200 ms after 40 to 60.
        {"observes": {"inter_token_seconds": {0.058: 90, 0.104: 10}, "step_tokens": {8.0: 45, 256.0: 5}}, **PROMPTS},
        45,
    ),
    "a storm of collections": (
        "python_gc",
        {"requests_running": 1, "observes": {"gc_pause_seconds": {0.15: 2}}},
        {"requests_running": 1, "observes": {"gc_pause_seconds": {0.0002: 2}}},
        25,
    ),
    "refused requests": (
        "requests_rejected",
        {"outcomes": {"ok": 1, "rejected": 3}, "requests_waiting": 0},
        {"outcomes": {"ok": 3, "rejected": 0}, "requests_waiting": 0},
        75,
    ),
    "errors": ("error_rate", {"outcomes": {"ok": 2, "error": 1}}, {"outcomes": {"ok": 3, "error": 0}}, 135),
}


@pytest.mark.parametrize("name", REPAIRED)
def test_what_is_mended_is_soon_gone(name: str) -> None:
    cause, broken, mended, within_s = REPAIRED[name]
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    world.serve(60, **mended)
    assert shown(world, diagnosis, 120, cause, **broken)[-1] is not None
    assert shown(world, diagnosis, within_s, cause, **mended)[-1] is None


def test_a_flood_that_is_over_is_no_queue_that_is_full() -> None:
    """Its refusals stand in the last minute for longer than more come than before."""
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    healthy: Life = {"outcomes": {"ok": 20, "rejected": 0}, "requests_refused_full_total": 0, "requests_received_total": 20}
    flood: Life = {"outcomes": {"ok": 20, "rejected": 80}, "requests_refused_full_total": 80, "requests_received_total": 100}
    shown(world, diagnosis, 120, "client_flood", **healthy)
    assert shown(world, diagnosis, 60, "client_flood", **flood)[-1] is not None
    assert not any(shown(world, diagnosis, 90, "queue_saturation", **healthy))


@pytest.mark.parametrize(("burst_s", "every_s"), [(10, 60), (15, 55), (20, 90), (6, 45)])
def test_bursts_of_refusals_are_a_flood_and_a_queue_by_turns_a_few_times_only(burst_s: int, every_s: int) -> None:
    """Within a burst more come than before, and from one to the next no more."""
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    burst = lambda second: 60 if second % every_s < burst_s else 0  # noqa: E731
    life: Life = {"outcomes": {"ok": 20, "rejected": burst}, "requests_refused_full_total": burst}
    life |= {"requests_received_total": lambda second: 20 + burst(second), "requests_running": 8}
    calm: Life = {"outcomes": {"ok": 20, "rejected": 0}, "requests_refused_full_total": 0, "requests_received_total": 20}
    world.serve(120, **calm, requests_running=8)
    tops: list[str] = []
    for _ in range(2 * QUARTER_S):
        world.serve(1, **life)
        found = diagnosis.update(world.view, world.now_s)
        tops.append(found[0].cause if found else "")
    changes = sum(now != before for before, now in zip(["", *tops], tops, strict=False))
    assert set(tops[300:]) <= {"client_flood", "queue_saturation"}
    assert changes <= 8, [(second, top) for second, top in enumerate(tops) if second == 0 or top != tops[second - 1]]


def test_an_engine_that_refuses_some_each_minute_is_one_finding() -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    burst = lambda second: 10 if second % 55 < 15 else 0  # noqa: E731
    life: Life = {"outcomes": {"ok": 20, "rejected": burst}, "requests_refused_full_total": burst}
    told = shown(world, diagnosis, 600, "queue_saturation", **life, requests_received_total=lambda second: 20 + burst(second))
    assert news(told)[-1:] == ["warning"]
    assert sum(bool(each) for each in news(told)) == 1


@pytest.mark.parametrize("every_s", [1, 11, 60])
def test_an_engine_that_refuses_as_many_as_ever_is_one_finding_however_seldom_it_is_read(every_s: int) -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(queue_saturation,), subject_causes=())
    served = {f"requests_total {E_M} outcome={name}": number for name, number in (("ok", 4), ("rejected", 1))}
    served |= {f"requests_refused_full_total {E_M}": 1, f"requests_received_total {E_M}": 5}
    told: list[Finding | None] = []
    for second in range(600):
        if second % every_s == 0:
            points = [world._point(f"aie_engine_{row}", float(every_s * number)) for row, number in served.items()]
            world.store.apply(Batch("scrape:e", world.now_s, points, period_s=float(every_s)))
        found = diagnosis.update(world.view, world.now_s)
        told.append(found[0] if found else None)
        world.now_s += 1.0
    assert news(told)[-1:] == ["warning"]
    assert sum(bool(each) for each in news(told)) == 1


def test_a_burst_that_is_nearly_worked_off_gets_no_graver() -> None:
    """What is left of its queue goes up and down."""
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=CAUSES, subject_causes=())
    waiting = lambda second: max(40 - 2 * second, (0, 2, 1, 3)[second % 4])  # noqa: E731
    told = shown(world, diagnosis, 60, "queue_saturation", requests_running=8, requests_waiting=waiting, observes=LONG)
    assert news(told) == ["info"]
    told = shown(world, diagnosis, 60, "queue_saturation", requests_running=8, requests_waiting=3, observes=LONG)
    assert news(told) == ["info", "warning"], "another queue that stays"


LLAMA_CPP: Life = {"requests_running": 1, "requests_waiting": 6, "kv_usage_ratio": 0.6}
"""Its page tells neither the size of its cache nor how long requests wait."""


def rising(least: float, most: float, period_s: int) -> Callable[[int], float]:
    """What a request holds grows as it generates, and is given back when it ends."""
    return lambda second: least + (most - least) * (second % period_s) / period_s


@pytest.mark.parametrize("usage", [0.6, rising(0.55, 0.85, 20), rising(0.5, 0.9, 40), rising(0.55, 0.85, 60)])
def test_a_cache_without_room_stays_so_when_it_is_forgotten_that_two_ran(usage: Rate) -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(kv_full, queue_saturation), subject_causes=())
    shown(world, diagnosis, 40, "kv_full", **LLAMA_CPP | {"requests_running": 2})
    told = shown(world, diagnosis, 800, "kv_full", **LLAMA_CPP | {"kv_usage_ratio": usage})
    assert [each for each in news(told) if each] == ["warning"]
    last = told[-1]
    assert last is not None
    assert [each.text for each in last.evidence if each.metric == RUNNING] == [
        "2 ran at a time, while this is so or minutes before: it has places for more"
    ]


@pytest.mark.parametrize("usage", [0.6, rising(0.55, 0.85, 20)])
@pytest.mark.parametrize("full_s", [60, 400])
def test_an_engine_with_one_place_lacks_memory_only_while_its_cache_is_full(full_s: int, usage: Rate) -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(kv_full, queue_saturation), subject_causes=())
    assert shown(world, diagnosis, full_s, "kv_full", **LLAMA_CPP | {"kv_usage_ratio": 0.95})[-1] is not None
    told = shown(world, diagnosis, 400, "kv_full", **LLAMA_CPP | {"kv_usage_ratio": usage})
    assert not any(told[int(HELD_S + STEADINESS["kv_full"].lingers_s) :])


@pytest.mark.parametrize(("outage_s", "stays_s"), [(20, 60), (30, 120), (180, 120)])
def test_an_outage_that_is_over_is_told_for_a_minute_and_for_two_where_it_was_a_tenth_of_the_last_four(
    outage_s: int, stays_s: int
) -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(error_rate,), subject_causes=())
    world.serve(300, outcomes={"ok": 10.0, "error": 0.0})
    assert shown(world, diagnosis, outage_s, "error_rate", outcomes={"ok": 0.0, "error": 10.0})[-1] is not None
    told = shown(world, diagnosis, 140, "error_rate", outcomes={"ok": 10.0, "error": 0.0})
    looks = stays_s - 1 + STEADINESS["error_rate"].lingers_s - 1  # at the end of each it is over
    assert sum(each is not None for each in told) == looks
