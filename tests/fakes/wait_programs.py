"""Programs whose threads wait for one known thing each. Run as `python wait_programs.py NAME [--name COMM]`: each prints "ready",
does its work when a line comes on stdin, prints one line of JSON about it, and waits for another line to end."""

from __future__ import annotations

import json
import mmap
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SECONDS = 2.0


def _together(work: Callable[[float], None], threads: int) -> None:
    until = time.monotonic() + SECONDS
    running = [threading.Thread(target=work, args=(until,)) for _ in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()


def lock() -> dict[str, float]:
    """Five threads want one lock, and sleep while they hold it and as long again before they want it again: three wait at any time,
    and who gives it back does not take it from the one that he has woken, however long that one waits for a CPU."""
    guarded = threading.Lock()

    def work(until: float) -> None:
        while time.monotonic() < until:
            with guarded:
                time.sleep(0.005)
            time.sleep(0.005)

    _together(work, 5)
    return {}


def gil() -> dict[str, float]:
    """Three threads compute in Python: two wait at any time."""

    def work(until: float) -> None:
        while time.monotonic() < until:
            sum(range(1000))

    _together(work, 3)
    return {}


def idle_pool() -> dict[str, float]:
    """Eight workers of a queue get next to nothing to do: they wait, but for no lock."""
    jobs: queue.Queue[int | None] = queue.Queue()

    def work() -> None:
        while jobs.get() is not None:
            pass

    workers = [threading.Thread(target=work) for _ in range(8)]
    for each in workers:
        each.start()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        jobs.put(1)
        time.sleep(0.01)
    for _ in workers:
        jobs.put(None)
    for each in workers:
        each.join()
    return {}


def busy_pool() -> dict[str, float]:
    """Sixteen workers of an executor have work for half of their time. Their queue's own lock goes from one to the next."""
    until = time.monotonic() + SECONDS
    with ThreadPoolExecutor(16) as pool:
        while time.monotonic() < until:
            for _ in range(16):
                pool.submit(time.sleep, 0.005)
            time.sleep(0.01)
    return {}


def starved() -> dict[str, float]:
    """One process too many for its CPU: this one and a child compute on the same one."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    until = time.monotonic() + SECONDS
    child = os.fork()
    while time.monotonic() < until:
        sum(range(1000))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return {}


def starved_in_kernel() -> dict[str, float]:
    """As `starved`, but this one is nearly always inside a system call: it is preempted there."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    until = time.monotonic() + SECONDS
    child = os.fork()
    if child == 0:
        while time.monotonic() < until:
            sum(range(1000))
        os._exit(0)
    buffer = bytearray(8 << 20)
    with open("/dev/zero", "rb", buffering=0) as zeros:
        while time.monotonic() < until:
            zeros.readinto(buffer)
    os.waitpid(child, 0)
    return {}


def faults() -> dict[str, float]:
    """Touches the pages of a mapped file that has been dropped from the page cache, one by one."""
    with open(sys.argv[2], "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
            touched = sum(mapped[offset] for offset in range(0, len(mapped), mmap.PAGESIZE))
            return {"major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before, "touched": touched}


def reads() -> dict[str, float]:
    """Reads a file past the page cache."""
    descriptor = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 16)
    count = 0
    while os.preadv(descriptor, [buffer], count << 16):
        count += 1
    return {"reads": count}


def sleeper() -> dict[str, float]:
    """Sleeps half a second, in five parts."""
    began_s = time.monotonic()
    for _ in range(5):
        time.sleep(0.1)
    return {"took_s": time.monotonic() - began_s}


def _call_threads(name: str) -> None:
    """Threads are named after the one that starts them: bpftrace finds them so."""
    Path("/proc/self/comm").write_text(name)


if __name__ == "__main__":
    if "--name" in sys.argv:
        _call_threads(sys.argv[sys.argv.index("--name") + 1])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
    sys.stdin.readline()
