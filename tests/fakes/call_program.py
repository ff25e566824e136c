"""A program that does one thing as often as it is told and says what CPU time that took: calls of its own stand-in for libcuda,
whose functions differ in their first instruction, and futex calls that wake nobody."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.fakes.compiled import program, shared_library

EMULATED: Final = "cuStreamSynchronize"
STEPPED: Final = "cuEventSynchronize"
WAKE: Final = "wake"

# In x86's assembler: the kernel emulates a push, and lets the CPU step over a move.
_LIBCUDA: Final = """
__attribute__((naked)) int cuStreamSynchronize(void *stream) { __asm__("push %rbp; xor %eax, %eax; pop %rbp; ret"); }
__attribute__((naked)) int cuEventSynchronize(void *event) { __asm__("mov %rdi, %rdx; xor %eax, %eax; ret"); }
"""

_CALLER: Final = r"""
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern int cuStreamSynchronize(void *), cuEventSynchronize(void *);
static uint32_t word;
static int wake(void *unused) { return syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0); }

static const struct { const char *name; int (*function)(void *); } functions[] = {
    {"cuStreamSynchronize", cuStreamSynchronize}, {"cuEventSynchronize", cuEventSynchronize}, {"wake", wake}};

int main(void) {
    char name[64];
    long count;
    while (scanf("%63s %ld", name, &count) == 2)
        for (unsigned at = 0; at < sizeof functions / sizeof *functions; at++)
            if (!strcmp(name, functions[at].name)) {
                struct timespec began, ended;
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
                for (long i = 0; i < count; i++) functions[at].function(0);
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
                printf("%ld\n", (ended.tv_sec - began.tv_sec) * 1000000000L + ended.tv_nsec - began.tv_nsec);
                fflush(stdout);
            }
    return 0;
}
"""


def build(folder: Path) -> Path:
    """The program, with its library beside it. Skips the test on a host without gcc."""
    shared_library(folder / "libcuda.so.1", _LIBCUDA, "-Wl,-soname,libcuda.so.1")
    return program(folder / "caller", _CALLER, str(folder / "libcuda.so.1"), f"-Wl,-rpath,{folder}")


class Caller:
    """The program, running."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tgid = self._process.pid

    def call(self, name: str, count: int) -> float:
        """Has it do something so often. Returns the CPU time of it, in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, count, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()) / 1e9

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()
