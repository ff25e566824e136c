"""Who of the watched has ended, told of real processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from aie_ebpf.lives import Lives, start_ticks


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


def began(tgid: int) -> int:
    ticks = start_ticks(tgid)
    assert ticks is not None
    return ticks


def test_one_that_ends_is_told_until_it_is_asked_for_no_more() -> None:
    lives = Lives()
    with sleeper() as first, sleeper() as second:
        for process in (first, second):
            lives.begin(process.pid, began(process.pid))
        assert lives.ended() == set()
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it is there still, as a zombie
        assert lives.ended() == {first.pid}
        first.wait()
        assert lives.ended() == {first.pid}
        lives.end(first.pid)
        assert lives.ended() == set()
        lives.end(second.pid)


def test_who_has_the_number_of_another_is_not_that_one() -> None:
    lives = Lives()
    with sleeper() as process:
        lives.begin(process.pid, began(process.pid) - 1)
        assert lives.ended() == {process.pid}
        lives.end(process.pid)
        lives.begin(process.pid, began(process.pid))
        assert lives.ended() == set()


def test_a_process_whose_main_thread_alone_has_ended_lives() -> None:
    code = (
        "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start(); print(flush=True);"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        lives = Lives()
        lives.begin(process.pid, began(process.pid))
        assert lives.ended() == set()
        process.kill()
        process.wait()
        assert lives.ended() == {process.pid}


def pidfds() -> int:
    """How many this process has; other descriptors may come and go with what other tests left to be collected."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[pidfd]"
    return found


def test_descriptors_are_given_back() -> None:
    lives = Lives()
    with sleeper() as process:
        before = pidfds()
        for _ in range(3):
            lives.begin(process.pid, began(process.pid))
            assert pidfds() == before + 1
            lives.end(process.pid)
            lives.end(process.pid)
        assert pidfds() == before


WITHOUT_DESCRIPTORS = """
import os, resource, subprocess
from aie_ebpf.lives import Lives, start_ticks
process = subprocess.Popen(["sleep", "60"])
lives, ticks = Lives(), start_ticks(process.pid)
lowest = os.dup(0)
os.close(lowest)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
lives.begin(process.pid, ticks)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert lives.ended() == set()
process.kill()
process.wait()
assert lives.ended() == {process.pid}
lives.end(process.pid)
assert lives.ended() == set()
"""


def test_without_descriptors_start_times_are_asked_for() -> None:
    """In a process of its own: others must be able to open files meanwhile."""
    subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS], check=True)
