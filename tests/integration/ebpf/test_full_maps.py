"""More threads, locks and processes than maps hold: what found no room is counted, what is in stays right, and room comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from aie_ebpf.door import PROGRAMS, Bcc, Module
from aie_ebpf.probes import TRACEPOINTS
from aie_ebpf.readers.lost import OLD_NS, LostReader
from aie_ebpf.readers.waits import WaitsReader
from aie_ebpf.readers.watched import WatchedProcesses

SETS = ("locks", "sched")
THREADS = 20
ROOM = 8
ROOM_OF_LOCKS = 4

# The maps that modules share are another test's, if it runs in the same process.
ALONE = """
BPF_TABLE("hash", u32, struct watched, watched, 64);
BPF_TABLE("hash", u32, u64, in_sync, 64);
"""
# Each line: so many threads wait, each for a lock of its own; the next line lets them go.
WAITERS = """
import sys, threading
print("ready", flush=True)
while line := sys.stdin.readline():
    locks = [threading.Lock() for _ in range(int(line))]
    threads = [threading.Thread(target=lock.acquire) for lock in locks]
    for lock, thread in zip(locks, threads):
        lock.acquire()
        thread.start()
    print("waiting", flush=True)
    sys.stdin.readline()
    for lock in locks:
        lock.release()
    for thread in threads:
        thread.join()
    print("over", flush=True)
"""


@pytest.fixture(scope="module")
def small(bcc: Bcc) -> Iterator[Module]:
    """locks and sched, attached, with little room."""
    names = ("common.h", "watched.h"), ("locks.bpf.c", "sched.bpf.c")
    base, programs = ("".join((PROGRAMS / name).read_text() for name in each) for each in names)
    defines = [
        f"FUTEX_WAITING_ENTRIES={ROOM}",
        f"THREADS_ENTRIES={ROOM}",
        f"LOCKS_ENTRIES={ROOM_OF_LOCKS}",
        f"VISITS_ENTRIES={ROOM}",
    ]
    module = bcc.compile_text(base + ALONE + programs, defines)
    probes = [module.attach_tracepoint(row.tracepoint, row.handler) for row in TRACEPOINTS if row.set in SETS]
    yield module
    for probe in probes:
        module.detach(probe)
    module.close()


@pytest.fixture
def waiters() -> Iterator[tuple[int, Callable[[str], str]]]:
    """The tgid, and what tells it a line and returns its answer."""
    with subprocess.Popen([sys.executable, "-c", WAITERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        assert stdout.readline() == "ready\n"

        def tell(line: str) -> str:
            stdin.write(f"{line}\n")
            stdin.flush()
            return stdout.readline().strip()

        yield process.pid, tell
        process.kill()


def now_ns() -> int:
    """The clock of the programs."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def eventually(holds: Callable[[], bool]) -> None:
    """Threads are under way for a moment after they are told."""
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_threads_and_locks_without_room(small: Module, waiters: tuple[int, Callable[[str], str]]) -> None:
    tgid, tell = waiters
    watched, waits, lost = WatchedProcesses(small), WaitsReader(small, SETS), LostReader(small)
    waiting = small.table("futex_waiting", "I", "4Q2I")
    threads = small.table("threads", "I", "3QII")
    visits = small.table("visits", "2Q", "Q")
    waits.watch(tgid)
    watched.watch(tgid, None, ())
    try:
        lost.read(now_ns())
        found = {"futex_waiting": 0, "locks": 0, "threads": 0, "visits": 0}

        def count() -> None:
            for name, rose in lost.read(now_ns()).items():
                found[name] += rose

        def is_full() -> bool:
            count()
            return found["futex_waiting"] >= THREADS - ROOM

        assert tell(str(THREADS)) == "waiting"
        eventually(is_full)
        assert len(list(waiting.items())) <= ROOM
        assert found["threads"] > 0
        assert len(list(threads.items())) <= ROOM
        assert tell("go") == "over"
        count()
        assert found["locks"] > 0
        use = waits.read(now_ns(), frozenset(SETS))[tgid]
        assert 0 < len(use.locks) <= ROOM_OF_LOCKS + ROOM, "those that ended, and those that are under way"
        # Whoever left made room: what comes now is seen, and nothing is lost.
        count()
        assert tell("2") == "waiting"
        eventually(lambda: len(list(waiting.items())) == 2)
        assert lost.read(now_ns()).get("futex_waiting", 0) == 0
        assert tell("go") == "over"
        eventually(lambda: not list(waiting.items()))
        # Of visits nobody knows that they are over: what is old makes room where there is none.
        assert found["visits"] > 0
        assert len(list(visits.items())) == ROOM
        assert tell("2") == "waiting"
        eventually(lambda: len(list(waiting.items())) == 2)
        assert tell("go") == "over"
        assert lost.read(now_ns() + 2 * OLD_NS)["visits"] > 0
        assert list(visits.items()) == []
        assert tell("2") == "waiting"
        eventually(lambda: len(list(waiting.items())) == 2)
        assert tell("go") == "over"
        assert list(visits.items()) != [], "what comes now is seen"
    finally:
        watched.forget(tgid)
        waits.forget(tgid)


# In a process of its own, whose modules share maps with room for two processes. The third is said not to be seen.
THIRD = """
import json, os, sys, time
from aie_ebpf.door import Bcc, BpfError
from aie_ebpf.host import HostProbes
class Small(Bcc):
    def compile(self, *programs, defines=()):
        return super().compile(*programs, defines=[*defines, "WATCHED_ENTRIES=2"])
host = HostProbes(Small(), frozenset({"faults", "block_io", "oom", "xid"}))
refused = {}
def watch(tgid):
    try:
        host.watch(tgid, None, ())
    except BpfError as error:
        refused[tgid] = str(error)
def seen():
    return sorted(host.waits.read(time.clock_gettime_ns(time.CLOCK_MONOTONIC), host.on))
for tgid in (11, 12, 13):
    watch(tgid)
first = seen()
host.forget(11)
watch(13)
print(json.dumps([first, list(refused.items()), seen()]))
"""


def test_a_process_without_room_is_refused_and_not_reported_as_idle(bpf: None) -> None:
    done = subprocess.run([sys.executable, "-c", THIRD], capture_output=True, text=True, check=True)
    first, refused, then = json.loads(done.stdout)
    assert first == [11, 12]
    assert [tgid for tgid, _ in refused] == [13]
    assert refused[0][1].startswith("a map entry could not be set: ")
    assert then == [12, 13], "who left made room"
