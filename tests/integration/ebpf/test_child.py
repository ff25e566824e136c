"""The child of the agent, as a process: what it watches, what it survives, what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aie_ebpf.door import online_cpus
from aie_ebpf.messages import OpenWindow, Report, ToAgent, WindowClosed
from tests.fakes.bpf_programs import all_programs, programs_of
from tests.integration.ebpf.bpf_child import Child, running_child
from tests.integration.ebpf.child_maps import entries
from tests.integration.ebpf.conftest import PROGRAMS

pytestmark = pytest.mark.usefixtures("bpf")


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """One child for the tests that leave it alive."""
    with running_child("--period", "0.3", log=tmp_path_factory.mktemp("child") / "stderr") as running:
        yield running


@pytest.fixture
def program() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts one of the programs that wait, up to where it is ready."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, str(PROGRAMS), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _coverage(messages: list[ToAgent], tgid: int) -> dict[str, str]:
    """The state of each set for a process, as last told."""
    told = [message.coverage for message in messages if isinstance(message, Report) and message.coverage is not None]
    return {row.set: row.state for row in told[-1] if row.tgid == tgid} if told else {}


def test_a_process_is_watched_and_released(child: Child, program: Callable[[str], subprocess.Popen[str]]) -> None:
    process = program("gil")
    child.watch(process.pid)
    child.until(lambda message: isinstance(message, Report) and [each.tgid for each in message.processes] == [process.pid])
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    child.until(lambda message: isinstance(message, Report) and any((each.waits.gil or 0) > 0.05 for each in message.processes))
    assert _coverage(child.messages, process.pid)["locks"] == "on"
    report = child.until(lambda message: isinstance(message, Report) and bool(message.costs))
    assert isinstance(report, Report)
    assert {cost.engine for cost in report.costs} == {"under-test"}
    child.watch()
    child.until(lambda message: isinstance(message, Report) and message.coverage == ())
    assert child.reports(1)[0].processes == ()


def test_a_process_that_ended_before_it_was_looked_at(child: Child) -> None:
    """Between discovery and attaching anything may happen: the process may be gone, or another have its number."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    child.watch(gone.pid, os.getpid())
    child.until(lambda message: isinstance(message, Report) and bool(message.coverage))
    assert set(_coverage(child.messages, gone.pid).values()) == {"none"}
    assert _coverage(child.messages, os.getpid())["sched"] == "on"
    assert [each.tgid for each in child.reports(1)[0].processes] == [os.getpid()]
    child.watch()


def test_a_process_that_ends_while_it_is_watched(child: Child, program: Callable[[str], subprocess.Popen[str]]) -> None:
    """Seen at the next report, long before it is due to be looked at again."""
    process = program("sleeper")
    child.watch(process.pid)
    child.until(lambda message: isinstance(message, Report) and [each.tgid for each in message.processes] == [process.pid])
    process.kill()
    process.wait()
    # One report may have been under way; one more has what it did until it ended.
    last = child.reports(3)[-1]
    assert last.processes == ()
    assert set(_coverage(child.messages, process.pid).values()) == {"none"}
    child.watch()


def test_nothing_is_kept_of_threads_whose_process_is_released(
    child: Child, program: Callable[[str], subprocess.Popen[str]]
) -> None:
    """They run, or wait for a CPU, when it is: the next time one gets it, it is forgotten."""
    code = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nfor _ in range(3): os.fork()\nwhile True: pass"
    others = program("sleeper")
    with subprocess.Popen([sys.executable, "-c", code], process_group=0) as spinning:
        try:
            family = [spinning.pid]
            while len(family) < 8:
                family = _family(spinning.pid)
            child.watch(others.pid, *family)
            child.until(lambda message: isinstance(message, Report) and len([p for p in message.processes if p.run_queue]) >= 8)
            assert entries(child.process.pid)["threads"] >= 8
            child.watch(others.pid)
            for _ in range(100):
                child.reports(1)
                if entries(child.process.pid)["threads"] <= 1:
                    break
            assert entries(child.process.pid)["threads"] <= 1
        finally:
            os.killpg(spinning.pid, signal.SIGKILL)
    child.watch()


def _family(tgid: int) -> list[int]:
    """A process and all whom it started."""
    found = [tgid]
    for each in found:
        found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


def test_a_process_in_another_pid_namespace(child: Child) -> None:
    """A container: the kernel's programs see it by the number that we see, whatever it calls itself."""
    code = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(0.01)"
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        try:
            assert outer.stdout.readline() == "1\n"
            (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            child.watch(int(inner))
            child.until(
                lambda message: isinstance(message, Report) and any((each.waits.sleep or 0) > 0.05 for each in message.processes)
            )
        finally:
            outer.kill()
    child.watch()


def test_a_window_that_cannot_be_opened_says_why(child: Child, program: Callable[[str], subprocess.Popen[str]]) -> None:
    child.watch(program("sleeper").pid)
    for asked, why in (
        (OpenWindow(set="cuda_launch", engine="under-test", seconds=1), "libcuda"),
        (OpenWindow(set="cuda_launch", engine="somebody", seconds=1), "no process"),
        (OpenWindow(set="locks", engine="under-test", seconds=1), "no set for a window"),
        (OpenWindow(set="gc", engine="under-test", seconds=1e9), "at most"),
    ):
        child.tell(asked)
        closed = child.until(lambda message: isinstance(message, WindowClosed))
        assert isinstance(closed, WindowClosed)
        assert why in closed.reason
        assert closed.hits == 0
    child.watch()


def test_a_window_on_the_garbage_collector(child: Child) -> None:
    """Debian's interpreter has USDT probes; 20 collections are 20."""
    code = (
        "import gc, os, sys\ngc.disable()\nprint('ready', flush=True)\nsys.stdin.readline()\n[gc.collect() for _ in range(20)]\n"
        "print('done', flush=True)\nsys.stdin.readline()\nos._exit(0)"  # which collects nothing once more
    )
    with subprocess.Popen(["/usr/bin/python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as python:
        assert python.stdin is not None
        assert python.stdout is not None
        python.stdout.readline()
        child.watch(python.pid)
        child.until(lambda message: isinstance(message, Report) and _coverage(child.messages, python.pid).get("gc") == "window")
        child.tell(OpenWindow(set="gc", engine="under-test", seconds=100))
        child.until(lambda message: isinstance(message, Report) and _coverage(child.messages, python.pid).get("gc") == "on")
        seen_before = len(child.messages)
        python.stdin.write("\n")
        python.stdin.flush()
        assert python.stdout.readline() == "done\n"

        def collections() -> int:
            reports = [message for message in child.messages[seen_before:] if isinstance(message, Report)]
            return sum(sum(each.gc.slots) for report in reports for each in report.processes if each.gc)

        child.until(lambda _: collections() >= 20)
        python.stdin.close()
        # Of a process that is gone there is no more to see.
        closed = child.until(lambda message: isinstance(message, WindowClosed))
    assert collections() == 20
    assert isinstance(closed, WindowClosed)
    assert closed.hits == 40
    assert closed.stolen_s > 0
    assert 0 < closed.open_s < 100
    child.watch()


def test_memory_after_everything_is_compiled(child: Child) -> None:
    """The budget of DESIGN 4."""
    assert child.reports(1)[0].resident_bytes < 125 << 20


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Neither programs nor events in tracefs, whether the child ends by itself or is killed."""
    for ending in (lambda child: child.close(), lambda child: child.process.send_signal(signal.SIGKILL)):
        with running_child("--period", "0.3", log=tmp_path / "stderr") as child:
            child.watch(os.getpid())
            child.until(lambda message: isinstance(message, Report) and bool(message.processes))
            held = programs_of(child.process.pid)
            assert len(held) >= len(online_cpus())
            ending(child)
            child.process.wait(timeout=60)
        deadline_s = time.monotonic() + 60
        while (left := held & all_programs()) and time.monotonic() < deadline_s:
            time.sleep(0.1)  # the kernel frees a program after a grace period
        assert left == set()
        assert "aie_" not in Path("/sys/kernel/tracing/uprobe_events").read_text()


def test_a_child_whose_agent_was_killed_ends(tmp_path: Path) -> None:
    """The agent here is a process that starts a child as the agent does, and is killed with SIGKILL."""
    code = (
        "import socket, subprocess, sys, time\nours, its = socket.socketpair()\n"
        "child = subprocess.Popen([sys.executable, '-m', 'aie_ebpf'], stdin=its, stderr=subprocess.DEVNULL)\n"
        "its.close()\nours.recv(1)\nprint(child.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        child_pid = int(agent.stdout.readline())
        agent.kill()
    deadline_s = time.monotonic() + 60
    while _is_running(child_pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not _is_running(child_pid)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sets_that_are_left_out_take_no_others_with_them(tmp_path: Path) -> None:
    """Without locks and scheduling the garbage collector is still counted, and waits are not known rather than none."""
    code = "import gc, sys\nprint('ready', flush=True)\nwhile True: gc.collect()"
    with (
        running_child("--period", "0.3", "--without", "locks,sched", log=tmp_path / "stderr") as child,
        subprocess.Popen(["/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, text=True) as python,
    ):
        try:
            assert python.stdout is not None
            python.stdout.readline()
            child.watch(python.pid)
            child.until(lambda message: isinstance(message, Report) and bool(message.coverage))
            child.tell(OpenWindow(set="gc", engine="under-test", seconds=1))
            seen = child.until(lambda message: isinstance(message, Report) and any(each.gc for each in message.processes))
            closed = child.until(lambda message: isinstance(message, WindowClosed))
        finally:
            python.kill()
    assert isinstance(seen, Report)
    assert seen.processes[0].waits.lock is None
    assert seen.processes[0].waits.run_queue is None
    assert isinstance(closed, WindowClosed)
    assert closed.hits > 0
    assert closed.open_s >= 1
