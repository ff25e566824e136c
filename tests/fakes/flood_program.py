"""A program whose threads call functions of its own stand-in for libcuda, at full speed or at a pace; what that takes it. By
default one thread calls cuStreamSynchronize."""

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

SYNCHRONISE: Final = "cuStreamSynchronize(0);"
"""What a flood does by default, in C; each time it counts as one call."""

_FLOOD: Final = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile struct { long count; char rest[56]; } calls[THREADS];
static volatile long pause_ns;

static void nap(long ns) { nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL); }

static void *flood(void *at) {
    for (;;) {
        FLOOD
        calls[(long)at].count++;
        if (pause_ns) nap(pause_ns);
    }
}

static void *be_calm(void *unused) {
    for (;;) {
        CALM
        nap(20000000);
    }
}

static long now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

int main(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    pthread_t threads[THREADS], calm;
    clockid_t its_time[THREADS];
    puts("ready");
    fflush(stdout);
    if (scanf("%ld%*c", &pause_ns) != 1) return 0;
    pthread_create(&calm, NULL, be_calm, NULL);
    for (long i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, flood, (void *)i);
        pthread_getcpuclockid(threads[i], &its_time[i]);
    }
    while (poll(&input, 1, 20) == 0 || scanf("%ld%*c", &pause_ns) == 1) {
        long sum = 0, took_ns = 0, now = now_ns(CLOCK_MONOTONIC);
        for (int i = 0; i < THREADS; i++) {
            sum += calls[i].count;
            took_ns += now_ns(its_time[i]);
        }
        printf("%ld %ld %ld\n", now, sum, took_ns);
        fflush(stdout);
    }
    return 0;
}
"""


class Slice(NamedTuple):
    """About 20 ms: from when to when by the monotonic clock, calls, and the CPU time of the threads that made them."""

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


def build(folder: Path, libcuda: str = PLAIN, flood: str = SYNCHRONISE, threads: int = 1, calm: str = "") -> Path:
    """The program, with its library beside it. `flood` is what each of its threads does without end, `calm` what another does each
    20 ms. Skips the test on a host without gcc."""
    shared_library(folder / "libcuda.so.1", libcuda, "-Wl,-soname,libcuda.so.1")
    source = _FLOOD.replace("THREADS", str(threads)).replace("FLOOD", flood).replace("CALM", calm)
    flags = f"-Wl,-rpath,{folder}", "-pthread", "-w"  # functions are called without having been declared
    return program(folder / "flood", source, str(folder / "libcuda.so.1"), *flags)


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
        """Lets it call, and pause after each call; or, when it does already, pause for so long from now on."""
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
        """Until it is so of each of the last slices that have calls: a thread without a CPU has none."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._holds(last, is_so), 60)

    def _holds(self, last: int, is_so: Callable[[Slice], bool]) -> bool:
        slices = [each for each in self.slices() if each.calls][-last:]
        return len(slices) == last and all(is_so(each) for each in slices)

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
