"""What an engine gives back when it is asked settles a suspicion; what it keeps does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aie_agent.analysis.leaks.probes import Answer, answers
from aie_telemetry.api import Event, Finding
from tests.fakes.leak_world import GB, HOUR, LEAK_S, MB, World, live_tensors

HOURS = 14.0
RISEN = LEAK_S * HOURS * HOUR


def rises(world: World, given: Callable[[], float] = lambda: 0.0) -> Callable[[float], dict[str, float]]:
    """Physical memory of a CPU engine rises, and nothing of it is the allocator's; `given` was given back."""
    return lambda second: {
        "physical": 6 * GB + LEAK_S * second - given() + world.noise(),
        "allocated": 3 * GB,
        "reserved": 4 * GB,
    }


def answer_of(world: World, collected: float, trimmed: float, *, process: str = "100.a", physical: float = 10 * GB) -> None:
    """So much was given back by gc.collect, and so much by malloc_trim."""
    world.answer(
        process=process,
        physical_bytes=physical,
        gc_collect_seconds=0.2,
        gc_collect_physical_bytes=physical - collected,
        gc_collect_objects=12,
        empty_cache="absent",
        malloc_trim_seconds=0.05,
        malloc_trim_physical_bytes=physical - collected - trimmed,
    )


def suspect(device: str = "cpu") -> World:
    world = World(device)
    world.run(HOURS, rises(world))
    assert "may leak (outside the allocator)" in world.only().summary
    return world


def confirm(world: World, shape: Callable[[float], dict[str, float]], from_s: float = HOURS * HOUR) -> None:
    """Two cells pass that began after the answer."""
    for second in range(16):
        world.tick(**shape(from_s + second))


def evidence(finding: Finding) -> str:
    return "\n".join(each.text for each in finding.evidence)


def test_what_malloc_trim_gives_back_was_retained() -> None:
    world = suspect()
    answer_of(world, collected=2 * MB, trimmed=0.9 * RISEN)
    world.tick(**rises(world, lambda: 0.9 * RISEN)(HOURS * HOUR))
    assert world.only().cause == "memory_leak"
    assert "which the next floors must confirm" in evidence(world.only())
    world.restart_agent()
    confirm(world, rises(world, lambda: 0.9 * RISEN))
    finding = world.only()
    assert (finding.cause, finding.severity, finding.subject) == ("memory_retention", "info", "e")
    assert "retained on cpu, not leaked: malloc_trim gave back" in finding.summary
    assert "by malloc_trim in 0.05 s" in evidence(finding)
    assert "MALLOC_ARENA_MAX" in finding.advice
    assert set(world.states().values()) == {0.0}
    world.restart_agent()
    assert world.only() == finding, "it outlives a restart of the agent"


def test_what_gc_collect_gives_back_was_retained() -> None:
    world = suspect()
    answer_of(world, collected=0.8 * RISEN, trimmed=0.1 * RISEN)
    confirm(world, rises(world, lambda: 0.9 * RISEN))
    assert "gc.collect gave back" in world.only().summary
    assert "cycles" in world.only().advice


def test_retention_is_told_for_a_day_and_the_same_rise_again_is_none() -> None:
    world = suspect()
    answer_of(world, collected=0.0, trimmed=RISEN)
    after = world.now_s
    shape = rises(world, lambda: RISEN)
    world.run(12, lambda second: shape(second + HOURS * HOUR))
    assert world.only().cause == "memory_retention", "it takes again what it had, and that is known"
    assert world.now_s > after
    flat_at = shape(26 * HOUR)["physical"]
    world.run(13, lambda _: {**shape(0.0), "physical": flat_at + world.noise()})
    assert world.found() == []


def test_what_is_kept_stays_a_suspicion_and_says_so() -> None:
    world = suspect()
    answer_of(world, collected=3 * MB, trimmed=0.2 * RISEN)
    world.tick(**rises(world, lambda: 0.2 * RISEN)(HOURS * HOUR))
    finding = world.only()
    assert finding.cause == "memory_leak"
    assert "kept after gc.collect and malloc_trim: they gave back" in evidence(finding)
    world.restart_agent()
    assert "kept after gc.collect" in evidence(world.only())
    world.run(13, lambda second: rises(world, lambda: 0.2 * RISEN)(second + HOURS * HOUR))
    assert world.only().severity == "warning", "and becomes a leak"
    assert "kept after" in evidence(world.only())


def test_an_answer_of_before_the_rise_says_nothing() -> None:
    world = World("cpu")
    world.run(1, rises(world))
    answer_of(world, collected=0.0, trimmed=0.0)
    world.run(13, lambda _: {"physical": 6 * GB + world.noise(), "allocated": 3 * GB, "reserved": 4 * GB})
    world.run(HOURS, rises(world))
    assert world.only().cause == "memory_leak"
    assert "kept after" not in evidence(world.only())


def test_several_processes_give_back_together() -> None:
    world = suspect()
    answer_of(world, 0.0, 0.3 * RISEN, process="100.a")
    world.tick(**rises(world)(HOURS * HOUR))
    assert "kept after" in evidence(world.only())
    answer_of(world, 0.0, 0.4 * RISEN, process="101.b")
    confirm(world, rises(world, lambda: 0.7 * RISEN))
    assert world.only().cause == "memory_retention"


def test_an_answer_is_taken_once() -> None:
    """The event stays in the list of events; three tenths twice would be more than half."""
    world = suspect()
    answer_of(world, 0.0, 0.3 * RISEN)
    for _ in range(3):
        world.tick(**rises(world, lambda: 0.3 * RISEN)(HOURS * HOUR))
    assert world.only().cause == "memory_leak"


def test_tensors_in_cycles() -> None:
    """gc.collect frees them; the caching allocator keeps their memory, which is no leak either."""
    world = World("cuda0")
    world.run(1.5, live_tensors(world))
    assert "live tensors" in world.only().summary
    risen = LEAK_S * 1.5 * HOUR
    before: dict[str, Any] = {"device": "cuda0", "physical_bytes": 2 * GB, "allocated_bytes": 12 * GB, "reserved_bytes": 13 * GB}
    collected: dict[str, Any] = {
        "gc_collect_seconds": 0.3,
        "gc_collect_allocated_bytes": 12 * GB - risen,
        "gc_collect_reserved_bytes": 13 * GB,
    }
    world.answer(**before, **collected, empty_cache="busy")
    shape = live_tensors(world)
    held = shape(1.5 * HOUR)  # the allocator keeps it, and needs no more
    confirm(world, lambda second: {**held, "allocated": shape(second)["allocated"] - risen}, 1.5 * HOUR)
    finding = world.only()
    assert (finding.cause, finding.device) == ("memory_retention", "cuda0")
    assert "gc.collect" in finding.summary


def test_fragmentation_that_empty_cache_cannot_give_back() -> None:
    world = World("cuda0")

    def shape(second: float) -> dict[str, float]:
        reserved = GB + 138 * MB * (second // 20)
        return {"allocated": 186 * MB + world.noise(30), "reserved": reserved, "physical": reserved + 0.4 * GB}

    world.run(26, shape)
    reserved = shape(26 * HOUR)["reserved"]
    numbers: dict[str, Any] = {"device": "cuda0", "allocated_bytes": 186 * MB, "reserved_bytes": reserved}
    after: dict[str, Any] = {
        "empty_cache_seconds": 0.1,
        "empty_cache_allocated_bytes": 186 * MB,
        "empty_cache_reserved_bytes": 0.9 * reserved,
    }
    world.answer(**numbers, gc_collect="failed", **after)
    world.tick(**shape(26 * HOUR))
    finding = world.only()
    assert finding.cause == "memory_fragmentation"
    assert "kept after empty_cache" in evidence(finding)
    assert any("what gc.collect would give back: it raised an error" in each for each in finding.not_visible)
    world.answer("2", **numbers, **{**after, "empty_cache_reserved_bytes": 1.2 * GB})
    confirm(world, lambda second: {**shape(second), "reserved": 1.2 * GB, "physical": 1.6 * GB}, 26 * HOUR)
    assert world.only().cause == "memory_retention"
    assert "empty_cache" in world.only().summary


def test_memory_of_a_gpu_outside_the_allocator_is_told_by_its_floors() -> None:
    world = World("cuda0")
    world.run(HOURS, rises(world))
    world.answer(device="cuda0", physical_bytes=GB, gc_collect_seconds=0.1, gc_collect_physical_bytes=0.0)
    world.tick(**rises(world)(HOURS * HOUR))
    finding = world.only()
    assert finding.cause == "memory_leak", "what the process gave back on the CPU is nothing of the GPU's"
    assert "the engine was asked for it, and it rises after gc.collect" in evidence(finding)


def test_a_restart_forgets_the_answer() -> None:
    world = suspect()
    answer_of(world, 0.0, RISEN)
    confirm(world, rises(world, lambda: RISEN))
    assert world.only().cause == "memory_retention"
    world.tgids = [300]
    world.tick(**rises(world, lambda: RISEN)(HOURS * HOUR))
    assert world.found() == []


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"id": "1"},
        {"id": 1.0, "process": "p", "gc_collect_seconds": 1.0},
        {"id": "1", "process": "p"},
        {"id": "1", "process": "p", "gc_collect": "busy"},
        {"id": "1", "process": "p", "gc_collect_seconds": "fast"},
        {"id": "1", "process": "p", "gc_collect_seconds": float("nan")},
        {"id": "1", "process": "p", "gc_collect_seconds": 1.0, "device": 3.0},
    ],
)
def test_what_is_no_answer(details: dict[str, Any]) -> None:
    assert answers([Event(time_s=1.0, kind="memory_probe", engine="e", summary="", details=details)], "e") == []


def test_answers_of_others() -> None:
    fine: dict[str, float | str] = {"id": "1", "process": "p", "gc_collect_seconds": 1.0}
    events = [
        Event(time_s=3.0, kind="memory_probe", engine="e", summary="", details=fine),
        Event(time_s=2.0, kind="memory_probe", engine="another", summary="", details=fine),
        Event(time_s=1.0, kind="oom", engine="e", summary="", details=fine),
    ]
    assert [each.time_s for each in answers(events, "e")] == [3.0]


def test_what_is_no_saved_answer() -> None:
    world = suspect()
    answer_of(world, 1.0, 1.0)
    world.tick(**rises(world)(HOURS * HOUR))
    good = answers(world.events, "e")[0]
    assert Answer.restored(good.dump()) == good
    for broken in ([], [*good.dump()[:4], [["exec", 1.0, [1, 2, 3]]], []], [*good.dump()[:4], 5, []]):
        with pytest.raises((ValueError, TypeError)):
            Answer.restored(broken)


def test_floors_that_are_faster_than_the_answer() -> None:
    """The memory is gone at one look, the answer is there at the next."""
    world = World("cpu")
    world.run(1.5, lambda second: {"physical": 6 * GB + LEAK_S * second})
    assert world.only().cause == "memory_leak"
    for _ in range(6):
        world.tick(physical=6 * GB)
    assert world.found() == []
    answer_of(world, 0.0, LEAK_S * 1.5 * HOUR)
    world.tick(physical=6 * GB)
    assert world.only().cause == "memory_retention"


def busy(world: World, rate: float, activations: float) -> Callable[[float], dict[str, float]]:
    """A leak of live tensors, of an engine that serves: four looks in five fall into a step."""

    def shape(second: float) -> dict[str, float]:
        allocated = 10 * GB + rate * second + activations * (int(second) % 5 > 0)
        return {"allocated": allocated, "reserved": allocated + GB, "physical": allocated + 1.4 * GB}

    return shape


@pytest.mark.parametrize(
    ("hours", "rate", "activations"), [(1.5, LEAK_S, 300 * MB), (14.0, 0.6 * MB, 300 * MB), (1.5, LEAK_S, 80 * MB)]
)
def test_a_true_leak_of_a_busy_engine_is_no_retention(hours: float, rate: float, activations: float) -> None:
    """Read in a step before, between two steps after: as if it had given back what the step held."""
    world = World("cuda0")
    shape = busy(world, rate, activations)
    world.run(hours, shape)
    assert world.only().cause == "memory_leak"
    high = shape(hours * HOUR + 1)["allocated"]
    before: dict[str, Any] = {"device": "cuda0", "allocated_bytes": high, "reserved_bytes": high + GB}
    low = high - activations
    world.answer(**before, gc_collect_seconds=0.3, gc_collect_allocated_bytes=low, gc_collect_reserved_bytes=low + GB)
    for second in range(30):
        world.tick(**shape(hours * HOUR + second))
        assert world.only().cause == "memory_leak"
    assert "which the next floors do not confirm: it is kept" in evidence(world.only())
    world.restart_agent()
    assert "which the next floors do not confirm: it is kept" in evidence(world.only())


def test_more_than_there_was_is_no_claim() -> None:
    world = suspect()
    answer_of(world, 0.0, 90 * GB, physical=100 * GB)
    confirm(world, rises(world, lambda: RISEN))
    assert "memory_retention" not in [each.cause for each in world.found()]


@pytest.mark.parametrize(
    ("number", "process", "asked"),
    [
        ("1", "100.a", None),
        ("forged", "100.a", "1"),
        ("1", "31337.x", "1"),
        ("1", "x", "1"),
        ("1", "", "1"),
        ("1", "\u00b2.a", "1"),
    ],
)
def test_an_answer_that_nobody_asked_for_or_that_another_process_gives_settles_nothing(
    number: str, process: str, asked: str | None
) -> None:
    """Even where the floors fall just then: it ends as returned, and nobody is said to have given it back."""
    world = suspect()
    world.asked = asked
    facts: dict[str, Any] = {"physical_bytes": 10 * GB, "gc_collect_seconds": 0.1, "gc_collect_physical_bytes": 10 * GB - RISEN}
    world.answer(number, process, asked=False, **facts)
    world.tick(**rises(world)(HOURS * HOUR))
    assert "floors must confirm" not in evidence(world.only())
    confirm(world, rises(world, lambda: 0.9 * RISEN))
    assert "memory_retention" not in [each.cause for each in world.found()]
