"""A C program that does one thing many times and says what it took, and a stand-in for libcuda that it calls; and one whose threads
wait for locks all the time."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

# The first instructions differ: the kernel emulates a push, and lets the CPU step over an endbr64.
_LIBCUDA: Final = r"""
__attribute__((naked)) int cuStreamSynchronize(void *stream) { __asm__("push %rbp; xor %eax, %eax; pop %rbp; ret"); }
__attribute__((naked)) int cuEventSynchronize(void *event) { __asm__("endbr64; xor %eax, %eax; ret"); }
"""

_PROGRAM: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint32_t word;
static int there[2], back[2];
static long rounds;
static int (*push_first)(void *), (*step_first)(void *);

static void *echo(void *unused) {
    char c;
    for (long i = 0; i < rounds; i++)
        if (read(there[0], &c, 1) != 1 || write(back[1], &c, 1) != 1) break;
    return unused;
}

static void switches(long count) {
    cpu_set_t all, one;
    pthread_t thread;
    char c = 0;
    rounds = count / 2;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) { CPU_SET(i, &one); break; }
    sched_setaffinity(0, sizeof one, &one); /* the second thread inherits it: every turn is a switch */
    pthread_create(&thread, NULL, echo, NULL);
    for (long i = 0; i < rounds; i++)
        if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1) break;
    pthread_join(thread, NULL);
    sched_setaffinity(0, sizeof all, &all);
}

static void wake(long count) { for (long i = 0; i < count; i++) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0); }
static void wait(long count) { for (long i = 0; i < count; i++) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, 0, 0, 0); }
static void push(long count) { for (long i = 0; i < count; i++) push_first(0); }
static void step(long count) { for (long i = 0; i < count; i++) step_first(0); }

static const struct { const char *name; void (*run)(long); } works[] = {
    {"wake", wake}, {"wait", wait}, {"switch", switches}, {"push", push}, {"step", step}};

int main(int argc, char **argv) {
    char name[16];
    long count;
    void *cuda = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!cuda || pipe(there) || pipe(back)) return 1;
    push_first = dlsym(cuda, "cuStreamSynchronize");
    step_first = dlsym(cuda, "cuEventSynchronize");
    while (scanf("%15s %ld", name, &count) == 2)
        for (unsigned i = 0; i < sizeof works / sizeof *works; i++)
            if (!strcmp(name, works[i].name)) {
                struct timespec began, ended;
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
                works[i].run(count);
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
                printf("%ld\n", (ended.tv_sec - began.tv_sec) * 1000000000L + ended.tv_nsec - began.tv_nsec);
                fflush(stdout);
            }
    return 0;
}
"""


_BUSY: Final = r"""
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t locks[4];
static void *run(void *arg) {
    for (pthread_mutex_t *lock = &locks[(long)arg % 4];;) {
        pthread_mutex_lock(lock);
        usleep(30000);
        pthread_mutex_unlock(lock);
        usleep(60000);
    }
}
int main(void) {
    pthread_t thread;
    for (long i = 0; i < 8; i++) pthread_create(&thread, NULL, run, (void *)i);
    pause();
}
"""


class Work(NamedTuple):
    """One thing the victim does: its name there, what it is, how often a measurement does it."""

    name: str
    what: str
    times: int


WORKS: Final = (
    Work("wake", "futex wake, nobody waits", 100_000),
    Work("wait", "futex wait that need not wait", 100_000),
    Work("switch", "switch between two threads", 40_000),
    Work("push", "call, first instruction emulated", 30_000),
    Work("step", "call, first instruction stepped", 4_000),
)


class Victim:
    """The program, running."""

    def __init__(self, process: subprocess.Popen[str], libcuda: Path) -> None:
        self._process = process
        self.tgid = process.pid
        self.libcuda = libcuda

    def each_ns(self, work: Work) -> float:
        """CPU time of the whole process for doing it once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(work.name, work.times, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()) / work.times


@contextlib.contextmanager
def victim(folder: Path) -> Iterator[Victim]:
    """Compiles into `folder`, and runs. Raises CalledProcessError."""
    libcuda = folder / "libcuda.so.1"
    _compile(libcuda, _LIBCUDA, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    _compile(folder / "victim", _PROGRAM, "-pthread", "-ldl")
    with subprocess.Popen([folder / "victim", libcuda], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Victim(process, libcuda)
        finally:
            process.kill()


@contextlib.contextmanager
def busy(folder: Path, count: int) -> Iterator[list[int]]:
    """So many processes of eight threads each, which share four locks and hold each a third of the time. Compiles into `folder`.
    Raises CalledProcessError."""
    _compile(folder / "busy", _BUSY, "-pthread")
    processes = [subprocess.Popen([folder / "busy"]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _compile(path: Path, source: str, *flags: str) -> None:
    subprocess.run(["gcc", "-O2", "-x", "c", "-", "-o", path, *flags], input=source.encode(), check=True)
