"""The host's probes, attached for real, and programs that wait."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from aie_ebpf.door import Bcc
from aie_ebpf.host import OF_PROCESSES, HostProbes
from aie_ebpf.python_runtime import gil_range
from aie_ebpf.readers.waits import HostUse
from aie_ebpf.uprobe_links import Way, choose

_HERE: Final = Path(__file__).parent
_ATTACHED: Final = pytest.StashKey[HostProbes]()
PROGRAMS = Path(__file__).parents[2] / "fakes" / "wait_programs.py"


@pytest.fixture(scope="session")
def bcc(bpf: None) -> Bcc:
    """BCC, imported once."""
    return Bcc()


@pytest.fixture(scope="session")
def way_here(bcc: Bcc) -> Way:
    """How uprobes are attached on this host."""
    return choose(bcc).way


@pytest.fixture
def way(request: pytest.FixtureRequest, way_here: Way) -> Way:
    """That, or the one that a test is marked with."""
    wanted: Way = getattr(request, "param", way_here)
    if wanted is Way.LINKS and way_here is not Way.LINKS:
        pytest.skip("this kernel has no links of uprobes that see all threads")
    return wanted


@pytest.fixture(scope="session")
def host(bcc: Bcc, request: pytest.FixtureRequest) -> HostProbes:
    """All sets of the host, attached for all tests of this folder: they come one after the other."""
    probes = request.session.stash[_ATTACHED] = HostProbes(bcc, frozenset())
    probes.watch_processes(OF_PROCESSES)
    return probes


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Detaches them behind the last: all else that runs on the host would pay for them."""
    goes_on = nextitem is not None and nextitem.path.is_relative_to(_HERE)
    if _ATTACHED in item.session.stash and not goes_on:
        item.session.stash[_ATTACHED].close()


class Observed(NamedTuple):
    """What probes saw of a program between its start and its end, and what it says itself. `run_queue_s` is the kernel's own sum
    of its threads, between the same moments; `seconds` is a moment longer. For `outside_s` it lived, and waited to be told, beside
    these sums."""

    uses: list[HostUse]
    major_faults: int
    run_queue_s: float
    says: dict[str, Any]
    seconds: float
    outside_s: float
    tgid: int

    def total(self, reason: str) -> float:
        """Thread-seconds of one reason."""
        return sum(getattr(use.waits, reason) for use in self.uses)

    def waited_by_address(self) -> dict[int, dict[str, float]]:
        """Thread-seconds at each address, by what the wait was taken for at the reading."""
        waited: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for use in self.uses:
            for lock in use.locks:
                waited[lock.address][lock.kind] += lock.wait_s
        return waited


@pytest.fixture
def observe(host: HostProbes) -> Callable[..., Observed]:
    """Runs one of the programs and reads the probes every 0.2 s while it does."""

    def run(name: str, *arguments: str, python: str = sys.executable, script: str = str(PROGRAMS)) -> Observed:
        command = [python, *([script] if script else []), name, *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            ready_s = time.monotonic()
            host.watch(program.pid, gil_range(program.pid), ())
            # The probes know a thread from when it first leaves a CPU. All sums begin, and end, while it sleeps.
            os.kill(program.pid, signal.SIGSTOP)
            _until_all_are(program.pid, "T")
            began_s = time.monotonic()
            os.kill(program.pid, signal.SIGCONT)
            _until_all_are(program.pid, "S")
            host.waits.read(_now_ns(), host.on)
            queued_before_s = _run_queue_s(program.pid)
            asked_s = time.monotonic()
            program.stdin.write("\n")
            program.stdin.flush()
            uses = []
            says = ""
            while not says:
                time.sleep(0.2)
                uses.append(host.waits.read(_now_ns(), host.on)[program.pid])
                if program.poll() is not None or _has_line(program.stdout):
                    says = program.stdout.readline()
            _until_all_are(program.pid, "S")
            uses.append(host.waits.read(_now_ns(), host.on)[program.pid])
            queued_s = _run_queue_s(program.pid) - queued_before_s
            ended_s = time.monotonic()
            host.watched.hits()
            faults = host.watched.major_faults()[program.pid]
            host.forget(program.pid)
            program.stdin.close()
            outside_s = asked_s - ready_s + time.monotonic() - ended_s
        return Observed(uses, faults, queued_s, json.loads(says), ended_s - began_s, outside_s, program.pid)

    return run


def _tasks(tgid: int, file: str) -> list[str]:
    """What a file says of each thread of a process."""
    said = []
    for task in Path(f"/proc/{tgid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            said.append((task / file).read_text())
    return said


def _until_all_are(tgid: int, state: str) -> None:
    """Waits until no thread of a process is in another state, as /proc/PID/stat has it."""
    deadline_s = time.monotonic() + 60
    while {text.rpartition(")")[2].split()[0] for text in _tasks(tgid, "stat")} != {state}:
        assert time.monotonic() < deadline_s, f"never {state}"
        time.sleep(0.001)


def _run_queue_s(tgid: int) -> float:
    """How long the threads of a process that live now have waited for a CPU since they began."""
    return sum(int(text.split()[1]) for text in _tasks(tgid, "schedstat")) / 1e9


def _has_line(stream: Any) -> bool:
    return bool(select.select([stream], [], [], 0)[0])


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
