"""Programs in C and C++ whose threads wait for a lock by calls that are known, built in several ways.

Each is started as `PROGRAM MODE THREADS`. `fight`: its threads hold the lock for 2 ms each, in turns: who had it is away until the
next one has it. `stuck`: the main thread has the lock and keeps it. `idle`: they wait for work at one condition, and there is none.
It prints "ready" and ends with its input.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.compiled import tool

LIBRARY = """
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef OWN_LOCK /* as Rust, Go and many runtimes have */
static unsigned word;
static void lock(void) {
    while (__atomic_exchange_n(&word, 2, __ATOMIC_ACQUIRE)) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
}
static void unlock(void) {
    __atomic_store_n(&word, 0, __ATOMIC_RELEASE);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}
#else
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }
#endif
__attribute__((noinline)) HIDDEN void hold(long us) { lock(); usleep(us); unlock(); __asm__ volatile(""); }
__attribute__((noinline)) void work(long us) { volatile char room[300]; room[us & 7] = 1; hold(us); usleep(us / 4); room[1] = 2; }
void enter(void) { lock(); }
"""

PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void work(long us);
void enter(void);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static void *busy(void *arg) { for (;;) work(2000); return arg; }
static void *idle(void *arg) {
    pthread_mutex_lock(&mutex);
    for (;;) pthread_cond_wait(&condition, &mutex);
    return arg;
}
int main(int argc, char **argv) {
    pthread_t thread;
    if (!strcmp(argv[1], "stuck")) enter();
    for (int i = 0; i < atoi(argv[2]); i++) pthread_create(&thread, NULL, strcmp(argv[1], "idle") ? busy : idle, NULL);
    puts("ready"); fflush(stdout); getchar();
    _Exit(0);
}
"""

CPP_LIBRARY = """
#include <mutex>
#include <unistd.h>
namespace pool {
struct Queue {
    std::mutex mutex;
    __attribute__((noinline)) void take(long us) { std::lock_guard<std::mutex> held(mutex); usleep(us); }
};
static Queue queue;
}
extern "C" __attribute__((noinline)) void work(long us) {
    volatile char room[300]; room[us & 7] = 1; pool::queue.take(us); usleep(us / 4); room[1] = 2;
}
extern "C" void enter() { pool::queue.mutex.lock(); }
"""

OPTIMISED = ("-O2", "-fomit-frame-pointer")
WITHOUT_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions")


def build(directory: Path, *flags: str, source: str = LIBRARY, compiler: str = "gcc") -> Path:
    """The program and, beside it, `libworks.so`, for which the flags are. Skips the test on a host without the compiler."""
    program, library = directory / "waiting", directory / "libworks.so"
    _compile(compiler, library, source, "-shared", "-fPIC", *(flags or OPTIMISED))
    _compile("gcc", program, PROGRAM, *OPTIMISED, "-pthread", f"-L{directory}", "-lworks", "-Wl,-rpath,$ORIGIN")
    return program


def strip(path: Path) -> None:
    """Takes the names out of a file that nobody needs to run it."""
    subprocess.run([tool("strip"), "--strip-all", path], check=True)


def _compile(compiler: str, path: Path, source: str, *flags: str) -> None:
    text = path.with_suffix(".cc" if compiler == "g++" else ".c")
    text.write_text(source)
    hidden = [] if any(flag.startswith("-DHIDDEN") for flag in flags) else ["-DHIDDEN="]
    command: list[str | Path] = [tool(compiler), *hidden, "-o", path, text, *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@contextlib.contextmanager
def running(program: Path, mode: str, threads: int = 3) -> Iterator[int]:
    """The pid of the program, once it is ready. It is killed in the end."""
    with subprocess.Popen([program, mode, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()
