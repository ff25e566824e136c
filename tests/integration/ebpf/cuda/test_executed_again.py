"""A process that executes another program keeps its number and its start, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from aie_ebpf.messages import ProcessReport, Report, ToAgent
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.bpf_child import Child, running_child

pytestmark = [needs_gcc, pytest.mark.usefixtures("bpf")]

_MIB = 1 << 20


def _state(message: ToAgent, name: str) -> str | None:
    rows = (message.coverage or ()) if isinstance(message, Report) else ()
    return next((row.state for row in rows if row.set == name), None)


def _held(process: ProcessReport) -> tuple[int, int, int | None]:
    """Bytes and allocations that are outstanding, and contexts."""
    if process.cuda is None:
        return 0, 0, 0
    allocations = process.cuda.allocations
    bytes_, count = sum(row.outstanding_bytes for row in allocations), sum(row.outstanding for row in allocations)
    return bytes_, count, process.cuda.contexts


def _until_it_holds(child: Child, what: tuple[int, int, int]) -> Report:
    message = child.until(lambda each: isinstance(each, Report) and any(_held(process) == what for process in each.processes))
    assert isinstance(message, Report)
    return message


def test_memory_ends_with_the_program_that_asked_for_it(stand_in: StandIn, tmp_path: Path) -> None:
    with (
        stand_in.start("again") as program,
        running_child("--period", "0.3", "--budget", "1", log=tmp_path / "stderr") as child,
    ):
        child.watch(program.tgid)
        child.until(lambda message: _state(message, "cuda_memory") == "on")
        program.step()
        _until_it_holds(child, (100 * _MIB, 1, 1))
        assert program.step() == "allocate again"
        child.until(lambda message: _state(message, "cuda_memory") == "none")
        child.until(lambda message: _state(message, "cuda_memory") == "on")
        program.step()
        _until_it_holds(child, (50 * _MIB, 1, 1))
        seen = [_held(process) for report in child.reports(3) for process in report.processes]
    # A report has an allocation's row while it changes.
    assert all(bytes_ <= 50 * _MIB and count <= 1 and contexts in (0, 1) for bytes_, count, contexts in seen)
