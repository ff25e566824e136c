"""GPUs that the configuration expects and that nobody ever saw: no row is theirs, and a host that lacks them is not well."""

from __future__ import annotations

import pytest

from aie_agent.analysis.agent_causes import agent_blind
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.findings import SourceHealth
from aie_agent.analysis.gpu_causes.lost import gpu_lost
from aie_telemetry.api import Finding
from tests.fakes.agent_gpus import gpu, process
from tests.fakes.cause_world import BEGIN_S, CauseWorld


def rows(present: int, expected: int) -> dict[str, float]:
    return {"aie_gpu_present": present, "aie_gpu_expected": expected}


def missing(world: CauseWorld) -> list[tuple[str, str, float]]:
    """Of the finding about them, where there is one: how bad it is, what it says and since when."""
    found = [each for each in world.subjects(gpu_lost) if each.subject == "gpus"]
    return [(each.severity, each.summary, each.since_s) for each in found]


@pytest.mark.parametrize(
    ("up", "down", "expected", "summary"),
    [
        (2, 0, 3, "1 of 3 expected GPUs is missing"),
        (1, 1, 4, "2 of 4 expected GPUs are missing"),  # besides the one that is known to be down
        (0, 0, 8, "8 of 8 expected GPUs are missing"),
    ],
)
def test_they_are_told_together_once_a_driver_has_had_time_to_load(up: int, down: int, expected: int, summary: str) -> None:
    gone = [gpu(up + at, up=False, reason="lost") for at in range(down)]
    world = CauseWorld(gpus=[*(gpu(at) for at in range(up)), *gone])
    world.live(60, rows(up, expected))
    assert missing(world) == []
    world.live(1, rows(up, expected))
    assert missing(world) == [("critical", summary, BEGIN_S + 1)]
    assert len(world.subjects(gpu_lost)) == 1 + down
    world.live(1, rows(expected - down, expected))
    assert missing(world) == []


@pytest.mark.parametrize(
    ("up", "down", "expected"),
    [(3, 0, 3), (2, 1, 3), (2, 0, 0)],  # all; one that has its own finding; as many as there are
)
def test_silent_where_none_is_missing(up: int, down: int, expected: int) -> None:
    world = CauseWorld(gpus=[*(gpu(at) for at in range(up)), *(gpu(up + at, up=False, reason="released") for at in range(down))])
    world.live(120, rows(up, expected))
    assert world.subjects(gpu_lost) == []


def test_where_the_driver_was_never_there_nobody_knows_which_gpus_are() -> None:
    """That is `agent_blind`, with the reason."""
    world = CauseWorld(sources=[SourceHealth("nvml", "the driver is not loaded", BEGIN_S)])
    world.live(120, rows(0, 8))
    assert world.subjects(gpu_lost) == []
    assert [each.subject for each in world.subjects(agent_blind)] == ["nvml"]


def test_one_that_falls_later_does_not_end_it() -> None:
    world = CauseWorld(gpus=[gpu(0), gpu(1)])
    world.live(120, rows(2, 3))
    told = missing(world)
    world.gpus = (gpu(0), gpu(1, up=False, reason="lost"))
    world.live(1, rows(1, 3))
    assert missing(world) == told
    assert told
    world.gpus = (gpu(0), gpu(1))
    world.live(1, rows(2, 3))
    assert missing(world) == told


def test_they_explain_nothing_of_an_engine() -> None:
    """One that hangs on a host that lacks a GPU, maybe for weeks, keeps its own alarm."""

    def hung(_view: object, engine: str, now_s: float) -> Finding:
        return Finding(cause="engine_hung", subject=engine, severity="critical", since_s=now_s, summary="it hangs")

    world = CauseWorld(gpus=[gpu(0, processes=(process(10, engine="e"),))])
    diagnosis = Diagnosis(engine_causes=(hung,), subject_causes=(gpu_lost,))
    for _ in range(70):
        world.live(1, rows(1, 2))
        diagnosis.update(world.view, world.now_s)
    found = diagnosis.update(world.view, world.now_s)
    assert {(each.cause, each.explained_by) for each in found} == {("gpu_lost", ""), ("engine_hung", "")}
