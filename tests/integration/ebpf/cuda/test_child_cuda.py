"""The whole way: the agent's child finds the driver in a process that it is told of, attaches, and reports."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from aie_ebpf.lives import start_ticks
from aie_ebpf.messages import Coverage, OpenWindow, ProcessReport, Report, Target, ToAgent, Watch, WindowClosed
from aie_ebpf.uprobe_links import Way
from tests.fakes.bpf_programs import all_programs, programs_of
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.bpf_child import Child, running_child
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = [needs_gcc, pytest.mark.usefixtures("bpf")]

ENGINE = "under-test"
PERIOD_S = 0.3
MIB = 1 << 20


@pytest.fixture
def child(tmp_path: Path, way: Way) -> Iterator[Child]:
    """A child whose budget is no matter here."""
    with running_child("--period", str(PERIOD_S), "--budget", "1", "--uprobes", way, log=tmp_path / "stderr") as running:
        yield running


def process_of(message: ToAgent) -> ProcessReport | None:
    """The one process that a report has."""
    return message.processes[0] if isinstance(message, Report) and message.processes else None


def until(child: Child, reached: Callable[[ProcessReport], bool]) -> ProcessReport:
    """The process in the first report in which it is as wanted."""
    message = child.until(lambda each: (process := process_of(each)) is not None and reached(process))
    process = process_of(message)
    assert process is not None
    return process


def launches(messages: Iterable[ToAgent]) -> Counter[str]:
    """What these reports say was launched, by function."""
    found: Counter[str] = Counter()
    for each in filter(None, map(process_of, messages)):
        found.update(each.cuda.launches if each.cuda is not None else {})
    return found


def coverage_of(child: Child, tgid: int) -> dict[str, Coverage]:
    """By set, as soon as it is told of this process."""

    def told(message: ToAgent) -> bool:
        return isinstance(message, Report) and any(row.tgid == tgid for row in message.coverage or ())

    message = child.until(told)
    assert isinstance(message, Report)
    return {row.set: row for row in message.coverage or () if row.tgid == tgid}


def until_open(child: Child, tgid: int, name: str) -> None:
    """A window is open when it is said to see something."""
    child.until(
        lambda message: (
            isinstance(message, Report)
            and any((row.tgid, row.set, row.state) == (tgid, name, "on") for row in message.coverage or ())
        )
    )


@both_ways
def test_an_engine_from_its_first_allocation_to_its_end(stand_in: StandIn, child: Child) -> None:
    with stand_in.start("engine") as program:
        child.watch(program.tgid)
        coverage = coverage_of(child, program.tgid)
        assert {name: coverage[name].state for name in ("cuda_memory", "cuda_sync", "cuda_copy", "cuda_launch")} == {
            "cuda_memory": "on", "cuda_sync": "on", "cuda_copy": "on", "cuda_launch": "window",
        }  # fmt: skip

        assert until(child, lambda of: of.waits.gpu_sync is not None).waits.gpu_sync == 0.0, "attached, and nothing synchronised"
        program.step()
        loaded = until(child, lambda of: of.cuda is not None and bool(of.cuda.copies)).cuda
        assert loaded is not None
        assert {(row.kind, row.module, row.outstanding_bytes) for row in loaded.allocations} == {
            ("device", "engine", 100 * MIB), ("device", "engine", 50 * MIB),
        }  # fmt: skip
        assert (loaded.contexts, loaded.copies[0].direction, loaded.copies[0].bytes) == (1, "htod", 100 * MIB)

        child.tell(OpenWindow(set="cuda_launch", engine=ENGINE, seconds=8))
        until_open(child, program.tgid, "cuda_launch")
        before = len(child.messages)
        program.step()
        child.until(lambda _: launches(child.messages[before:]).total() >= 81)  # a report may come in the middle of them
        closed = child.until(lambda message: isinstance(message, WindowClosed))
        assert launches(child.messages[before:]) == {"cuLaunchKernel": 70, "cuGraphLaunch": 11}
        assert isinstance(closed, WindowClosed)
        assert closed.hits == 81

        program.step()
        hung = until(child, lambda of: of.cuda is not None and any(each.longest_wait_s > 1 for each in of.cuda.syncs))
        assert hung.cuda is not None
        (sync,) = hung.cuda.syncs
        assert (sync.call, sync.waiting) == ("cuStreamSynchronize", 1)
        assert hung.waits.gpu_sync == pytest.approx(sync.blocked_s)
    child.watch()
    child.until(lambda message: isinstance(message, Report) and not message.processes)


def test_memory_after_all_modules_are_compiled(stand_in: StandIn, child: Child) -> None:
    """The budget of DESIGN 4, with what CUDA, its launches and the garbage collector need."""
    with (
        stand_in.start("engine") as program,
        subprocess.Popen(["/usr/bin/python3", "-c", "input()"], stdin=subprocess.PIPE) as python,
    ):
        targets = (("cuda", program.tgid), ("python", python.pid))
        child.tell(
            Watch(targets=tuple(Target(engine=name, tgid=tgid, start_ticks=start_ticks(tgid) or 0) for name, tgid in targets))
        )
        coverage_of(child, program.tgid)
        for engine, name in (("cuda", "cuda_launch"), ("python", "gc")):
            child.tell(OpenWindow(set=name, engine=engine, seconds=0.1))
            closed = child.until(lambda message: isinstance(message, WindowClosed))
            assert isinstance(closed, WindowClosed)
            assert (closed.engine, closed.set, closed.reason) == (engine, name, "")
        assert child.reports(2)[-1].resident_bytes < 125 << 20
        python.kill()


@both_ways
def test_a_killed_child_takes_its_probes_with_it(stand_in: StandIn, child: Child) -> None:
    """The engine runs on, and nothing of ours is in the kernel."""
    with stand_in.start("engine") as program:
        child.watch(program.tgid)
        assert coverage_of(child, program.tgid)["cuda_memory"].state == "on"
        held = programs_of(child.process.pid)
        child.process.kill()
        child.process.wait()
        deadline_s = time.monotonic() + 60
        while (left := held & all_programs()) and time.monotonic() < deadline_s:
            time.sleep(0.1)  # the kernel frees a program after a grace period
        assert held
        assert left == set()
        program.step()
