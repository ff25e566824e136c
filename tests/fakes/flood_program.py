"""A program that calls cuStreamSynchronize of its own stand-in for libcuda, at full speed or at a pace; what that takes it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from tests.fakes.compiled import program, shared_library

# Only the one function, so that all hits of its set are of it.
PLAIN: Final = "int cuStreamSynchronize(void *stream) { return 0; }"
LANDING_PAD: Final = """
__attribute__((naked)) int cuStreamSynchronize(void *stream) { __asm__("endbr64; push %rbp; xor %eax, %eax; pop %rbp; ret"); }
"""
"""As compilers begin functions where the CPU checks indirect jumps (x86)."""

_FLOOD: Final = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

extern int cuStreamSynchronize(void *stream);
static volatile long calls;
static long pause_ns;

static void *flood(void *unused) {
    for (;;) {
        cuStreamSynchronize(NULL);
        calls++;
        if (pause_ns) nanosleep(&(struct timespec){.tv_sec = pause_ns / 1000000000, .tv_nsec = pause_ns % 1000000000}, NULL);
    }
    return unused;
}

static long now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

int main(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    pthread_t thread;
    clockid_t its_time;
    puts("ready");
    fflush(stdout);
    if (scanf("%ld%*c", &pause_ns) != 1) return 0;
    pthread_create(&thread, NULL, flood, NULL);
    pthread_getcpuclockid(thread, &its_time);
    while (poll(&input, 1, 20) == 0) {
        printf("%ld %ld %ld\n", now_ns(CLOCK_MONOTONIC), calls, now_ns(its_time));
        fflush(stdout);
    }
    return 0;
}
"""


class Slice(NamedTuple):
    """About 20 ms: from when to when by the monotonic clock, calls, and the CPU time of the thread that made them."""

    from_s: float
    to_s: float
    calls: int
    cpu_s: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.to_s - self.from_s

    @property
    def each_s(self) -> float:
        """CPU time of a call."""
        return self.cpu_s / max(self.calls, 1)


def build(folder: Path, libcuda: str = PLAIN) -> Path:
    """The program, with its library beside it. Skips the test on a host without gcc."""
    shared_library(folder / "libcuda.so.1", libcuda, "-Wl,-soname,libcuda.so.1")
    return program(folder / "flood", _FLOOD, str(folder / "libcuda.so.1"), f"-Wl,-rpath,{folder}", "-pthread")


class Flood:
    """The program, running: quiet until `begin`. What it says is read by a thread."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tgid = self._process.pid
        self._lines: list[tuple[int, int, int]] = []
        self._changed = threading.Condition()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def begin(self, pause_s: float = 0.0) -> None:
        """Lets it call, and pause after each call."""
        assert self._process.stdin is not None
        print(round(pause_s * 1e9), file=self._process.stdin, flush=True)

    def slices(self) -> list[Slice]:
        """All so far."""
        lines = self._lines.copy()
        return [Slice(a[0] / 1e9, b[0] / 1e9, b[1] - a[1], (b[2] - a[2]) / 1e9) for a, b in pairwise(lines)]

    def wait_for(self, more: int) -> None:
        """Until it has said something so many times more."""
        with self._changed:
            wanted = len(self._lines) + more
            assert self._changed.wait_for(lambda: len(self._lines) >= wanted, 60)

    def wait_until_each(self, last: int, is_so: Callable[[Slice], bool]) -> None:
        """Until it is so of each of the last slices, all of which have calls."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._holds(last, is_so), 60)

    def _holds(self, last: int, is_so: Callable[[Slice], bool]) -> bool:
        slices = self.slices()[-last:]
        return len(slices) == last and all(each.calls and is_so(each) for each in slices)

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            now_ns, calls, cpu_ns = map(int, line.split())
            with self._changed:
                self._lines.append((now_ns, calls, cpu_ns))
                self._changed.notify()
