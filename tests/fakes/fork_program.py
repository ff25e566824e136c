"""A program that starts children without end, as fast as the host lets it and no faster than it is told, while a thread of it calls
cuStreamSynchronize at a pace. It counts what it did, and how long its threads slept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.fakes.compiled import program, shared_library

# Entered and left, asked for memory, copied with: something of each set.
_LIBCUDA: Final = """
int cuStreamSynchronize(void *stream) { return 0; }
int cuMemAlloc_v2(unsigned long long *at, unsigned long size) { *at = 4096; return 0; }
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, unsigned long size) { return 0; }
"""

_FORKER: Final = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern int cuStreamSynchronize(void *stream);
static volatile int over;
static long calls, slept_ns;

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static long nap(long ns) { /* how long it was */
    long began = now_ns();
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
    return now_ns() - began;
}

static void *synchronises(void *unused) {
    while (!over) {
        cuStreamSynchronize(NULL);
        calls++;
        __sync_fetch_and_add(&slept_ns, nap(5000000));
    }
    return unused;
}

int main(int argc, char **argv) {
    long count = atol(argv[1]), pause_ns = atol(argv[2]), life_ns = atol(argv[3]);
    pthread_t thread;
    signal(SIGCHLD, SIG_IGN); /* nobody waits for them */
    puts("ready"); fflush(stdout); getchar();
    pthread_create(&thread, NULL, synchronises, NULL);
    long began = now_ns(), forked = 0;
    for (long next = began; forked < count; next += pause_ns) {
        if (next > now_ns()) __sync_fetch_and_add(&slept_ns, nap(next - now_ns()));
        pid_t child = fork();
        if (child == 0) {
            nap(life_ns * (forked % 8) / 4); /* some are gone at once, some live twice as long */
            _exit(0);
        }
        if (child > 0) forked++;
    }
    long took = now_ns() - began;
    over = 1;
    pthread_join(thread, NULL);
    printf("{\"forked\": %ld, \"seconds\": %f, \"calls\": %ld, \"slept_s\": %f}\n", forked, took / 1e9, calls, slept_ns / 1e9);
    fflush(stdout); getchar();
    return 0;
}
"""


class Forker:
    """The program, running: quiet until `begin`."""

    def __init__(self, folder: Path, forks: int, pause_s: float, life_s: float) -> None:
        """Compiles. `pause_s` is from the start of one child to that of the next, `life_s` how long each lives, on average. Skips
        the test on a host without gcc."""
        shared_library(folder / "libcuda.so.1", _LIBCUDA, "-Wl,-soname,libcuda.so.1")
        path = program(folder / "forker", _FORKER, str(folder / "libcuda.so.1"), f"-Wl,-rpath,{folder}", "-pthread")
        numbers = [str(forks), str(round(pause_s * 1e9)), str(round(life_s * 1e9))]
        self._process = subprocess.Popen([path, *numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tgid = self._process.pid
        assert self._line() == "ready"

    def begin(self) -> None:
        """Lets it fork."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def fileno(self) -> int:
        """Readable once it has forked enough."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def says(self) -> dict[str, Any]:
        """What it did, when it is done: `forked`, `seconds`, `calls`, `slept_s`."""
        found: dict[str, Any] = json.loads(self._line())
        return found

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
