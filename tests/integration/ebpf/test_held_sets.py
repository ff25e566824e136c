"""Sets of the host that took too much of an engine: they leave it alone, and are detached while nobody may have them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aie_ebpf.lives import start_ticks
from aie_ebpf.messages import ProcessReport, Report, Target, ToAgent, Watch
from aie_ebpf.probes import TRACEPOINTS
from tests.integration.ebpf.bpf_child import Child, running_child
from tests.integration.ebpf.child_maps import descriptors

pytestmark = pytest.mark.usefixtures("bpf")

# Threads that wait for each other at each step: calls of futex as fast as they can be made.
FIGHTS = """
import threading
one, other = threading.Semaphore(1), threading.Semaphore(0)
def work(mine, its):
    while True:
        mine.acquire()
        its.release()
threading.Thread(target=work, args=(one, other), daemon=True).start()
print("ready", flush=True)
work(other, one)
"""
WAITS = "print('ready', flush=True)\ninput()"
TRACEPOINTS_OF_LOCKS = sum(row.set == "locks" for row in TRACEPOINTS)


@pytest.fixture
def started() -> Iterator[Callable[[str], int]]:
    """Starts a program; returns its tgid when it is ready."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str) -> int:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.communicate()


def watch(child: Child, *tgids: int) -> None:
    """Each is an engine of its own."""
    targets = tuple(Target(engine=f"engine-{tgid}", tgid=tgid, start_ticks=start_ticks(tgid) or 0) for tgid in tgids)
    child.tell(Watch(targets=targets))


def seen(message: ToAgent, tgid: int) -> ProcessReport | None:
    """What a report says of a process."""
    rows = message.processes if isinstance(message, Report) else ()
    return next((row for row in rows if row.tgid == tgid), None)


def sees_locks(tgid: int, yes: bool) -> Callable[[ToAgent], bool]:
    return lambda message: (row := seen(message, tgid)) is not None and (row.waits.lock is not None) == yes


def events(child: Child) -> int:
    """Perf events that the child holds: one for each tracepoint that it is attached to, and others that stay."""
    return descriptors(child.process.pid)["[perf_event]"]


def test_a_set_that_nobody_may_have_is_detached_until_one_may(tmp_path: Path, started: Callable[[str], int]) -> None:
    fights, waits = started(FIGHTS), started(WAITS)
    arguments = "--period", "0.3", "--budget", "0.001", "--without", "sched,faults,block_io,oom,xid"
    with running_child(*arguments, log=tmp_path / "stderr") as child:
        watch(child, fights)
        child.until(sees_locks(fights, False))
        assert events(child) == 0
        assert any(
            (row.set, row.state) == ("locks", "off") and row.reason.startswith("detached: took ")
            for message in child.messages
            if isinstance(message, Report)
            for row in message.coverage or ()
        )

        watch(child, fights, waits)
        message = child.until(sees_locks(waits, True))
        assert events(child) == TRACEPOINTS_OF_LOCKS
        other = seen(message, fights)
        assert other is not None
        assert other.waits.lock is None, "not seen is not 0"
        assert other.locks == ()

        watch(child, fights)
        child.until(lambda each: seen(each, waits) is None and seen(each, fights) is not None)
        assert events(child) == 0


def test_a_set_that_keeps_within_its_budget_stays(tmp_path: Path, started: Callable[[str], int]) -> None:
    """Nobody is left alone whom probes cost nothing."""
    waits = started(WAITS)
    with running_child("--period", "0.3", "--budget", "0.001", log=tmp_path / "stderr") as child:
        watch(child, waits)
        child.until(sees_locks(waits, True))
        before = events(child)
        reports = child.reports(10)
        assert all(sees_locks(waits, True)(report) for report in reports)
        assert not any(row.reason for report in reports for row in report.coverage or () if row.set == "locks")
        assert events(child) == before
