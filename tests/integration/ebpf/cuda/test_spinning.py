"""A synchronisation that spins is on a CPU all the time: it is told apart, so that its time is not counted twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aie_ebpf.messages import Report, ToAgent, Waits
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.bpf_child import Child, running_child

pytestmark = [needs_gcc, pytest.mark.usefixtures("bpf")]

SECONDS = 2.0


def is_covered(message: ToAgent) -> bool:
    return isinstance(message, Report) and any(row.set == "cuda_sync" and row.state == "on" for row in message.coverage or ())


def waits_of_call(child: Child) -> list[Waits]:
    """In the reports of one call, until it is over."""
    found: list[Waits] = []
    while not found or found[-1].gpu_sync:
        for report in child.reports(1):
            waits = report.processes[0].waits
            if found or waits.gpu_sync:
                found.append(waits)
    return found


def test_spinning_and_sleeping(stand_in: StandIn, tmp_path: Path) -> None:
    """By the program's own CPU clock; what it waited for a CPU is in neither."""
    with (
        stand_in.start("spins") as program,
        running_child("--period", "0.3", "--budget", "1", log=tmp_path / "stderr") as child,
    ):
        child.watch(program.tgid)
        child.until(is_covered)
        for is_spinning in (True, False):
            began_s = time.monotonic()
            cpu_s = int(program.step()) / 1000
            waits = waits_of_call(child)
            took_s = time.monotonic() - began_s
            spun_s, synced_s, queued_s = (
                sum(getattr(each, name) or 0.0 for each in waits) for name in ("gpu_spin", "gpu_sync", "run_queue")
            )
            assert spun_s == pytest.approx(cpu_s, abs=0.1)
            assert spun_s <= synced_s <= took_s + 0.2
            assert synced_s + queued_s > SECONDS - 0.2, "what is not in it was spent waiting for a CPU"
            assert (spun_s > 0.1 * SECONDS) is is_spinning
