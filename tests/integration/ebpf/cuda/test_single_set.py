"""The child of `aie-agent probe` has one set and no other: what the agent has attached already is not attached a second time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from aie_agent.commands.probe import WINDOW_SETS, section_of
from aie_agent.sources.bpf.source import arguments
from aie_ebpf.messages import OpenWindow, Ready, Report, WindowClosed
from tests.fakes.bpf_programs import programs_of
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.bpf_child import Child, running_child

pytestmark = [needs_gcc, pytest.mark.usefixtures("bpf")]


def is_open(child: Child, tgid: int) -> None:
    """Waits until the window is said to see something."""
    child.until(
        lambda message: (
            isinstance(message, Report)
            and any((row.tgid, row.set, row.state) == (tgid, "cuda_launch", "on") for row in message.coverage or ())
        )
    )


def launches(child: Child) -> Counter[str]:
    """All that were told."""
    seen: Counter[str] = Counter()
    for report in child.messages:
        for each in report.processes if isinstance(report, Report) else ():
            seen.update(each.cuda.launches if each.cuda else {})
    return seen


def test_launches_are_counted_without_any_other_set(stand_in: StandIn, tmp_path: Path) -> None:
    with (
        stand_in.start("engine") as program,
        running_child(*arguments(section_of("cuda_launch")), log=tmp_path / "stderr") as child,
    ):
        ready = next(message for message in child.messages if isinstance(message, Ready))
        assert {state.set for state in ready.sets if state.loaded} == {"cuda_launch"}
        child.watch(program.tgid)
        child.until(lambda message: isinstance(message, Report) and bool(message.coverage))
        assert programs_of(child.process.pid) == set(), "nothing is attached before the window"
        program.run("launch")
        child.tell(OpenWindow(set="cuda_launch", engine="under-test", seconds=100))
        is_open(child, program.tgid)
        program.step()
        child.until(lambda _: launches(child).total() >= 81)  # a report may come in the middle of them
        program.kill()
        closed = child.until(lambda message: isinstance(message, WindowClosed))
    assert launches(child) == {"cuLaunchKernel": 70, "cuGraphLaunch": 11}
    assert isinstance(closed, WindowClosed)
    assert closed.hits == 81


@pytest.mark.parametrize("name", WINDOW_SETS)
def test_each_set_is_the_only_one(name: str) -> None:
    assert name not in section_of(name).without
    assert {"locks", "sched"} <= set(section_of(name).without)
