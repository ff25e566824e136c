"""What real programs wait for, as the probes see it. Bounds are of what must hold on any machine, however slow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aie_ebpf.host import HostProbes
from aie_ebpf.lock_kinds import GIL, LOCK
from tests.fakes.pythons import interpreters, one_of_each
from tests.fakes.wait_programs import SECONDS
from tests.integration.ebpf.conftest import Observed

Observe = Callable[..., Observed]

_HOG = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int over;
static void nap(long ns) { struct timespec t = {ns / 1000000000, ns % 1000000000}; nanosleep(&t, NULL); }
static void *hog(void *arg) {
    while (!over) { pthread_mutex_lock(&mutex); nap(5000000); pthread_mutex_unlock(&mutex); }
    return arg;
}
static void *victim(void *arg) {
    while (!over) { pthread_mutex_lock(&mutex); pthread_mutex_unlock(&mutex); nap(1000000); }
    return arg;
}
int main(int argc, char **argv) {
    pthread_t threads[4];
    puts("ready"); fflush(stdout); getchar();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, i ? victim : hog, NULL);
    nap((long)(atof(argv[1]) * 1e9)); over = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    puts("{}"); fflush(stdout); getchar();
    return 0;
}
"""


# Eight workers, each woken ten times a second for a fifth of a millisecond of work.
_SEMAPHORES = r"""
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static struct { atomic_int word; char rest[60]; } semaphores[8];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void take(atomic_int *word) {
    int was = 0;
    if (atomic_compare_exchange_strong(word, &was, 1)) return;
    if (was != 2) was = atomic_exchange(word, 2);
    while (was) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0); was = atomic_exchange(word, 2); }
}
static void give(atomic_int *word) { if (atomic_exchange(word, 0) == 2) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0); }
static void *work(void *word) {
    for (;;) {
        take(word);
        for (double until = now() + 0.0002; now() < until;) ;
    }
}
int main(int argc, char **argv) {
    pthread_t thread;
    for (int i = 0; i < 8; i++) { semaphores[i].word = 1; pthread_create(&thread, 0, work, &semaphores[i].word); }
    puts("ready"); fflush(stdout); getchar();
    double until = now() + atof(argv[1]);
    while (now() < until) {
        usleep(100000);
        for (int i = 0; i < 8; i++) give(&semaphores[i].word);
    }
    puts("{}"); fflush(stdout); getchar();
    return 0;
}
"""


# Two threads that work for 1 or 11 ms, and meet at a barrier: one of them waits for the other then.
_BARRIER = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static pthread_barrier_t barrier;
static volatile int over;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void nap(long ns) { struct timespec t = {0, ns}; nanosleep(&t, NULL); }
static double end, waited[2];
static void *work(void *arg) {
    int me = arg != NULL;
    unsigned seed = me + 1;
    while (!over) {
        nap(rand_r(&seed) & 64 ? 11000000 : 1000000);
        double since = now();
        pthread_barrier_wait(&barrier);
        if (!me) over = now() > end;
        pthread_barrier_wait(&barrier);
        waited[me] += now() - since;
    }
    return NULL;
}
int main(int argc, char **argv) {
    pthread_t threads[2];
    pthread_barrier_init(&barrier, NULL, 2);
    puts("ready"); fflush(stdout); getchar();
    end = now() + atof(argv[1]);
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("{\"waited\": %f}\n", waited[0] + waited[1]); fflush(stdout); getchar();
    return 0;
}
"""

# The same of an OpenMP runtime whose threads sleep while they wait.
_OPENMP = r"""
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void nap(long ns) { struct timespec t = {0, ns}; nanosleep(&t, NULL); }
int main(int argc, char **argv) {
    puts("ready"); fflush(stdout); getchar();
    double waited = 0, until = now() + atof(argv[1]);
    unsigned seeds[2] = {3, 77};
    while (now() < until) {
        #pragma omp parallel num_threads(2) reduction(+ : waited)
        for (int k = 0; k < 10; k++) {
            nap(rand_r(&seeds[omp_get_thread_num()]) & 64 ? 11000000 : 1000000);
            double since = now();
            #pragma omp barrier
            waited += now() - since;
        }
    }
    printf("{\"waited\": %f}\n", waited); fflush(stdout); getchar();
    return 0;
}
"""


def _compiled(folder: Path, source: str, *flags: str) -> Path:
    program = folder / "program"
    command = ["gcc", "-O1", "-pthread", *flags, "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source.encode(), check=True)
    return program


def test_every_set_of_the_host_is_attached(host: HostProbes) -> None:
    refused = {state.set: state.reason for state in host.states() if not state.loaded}
    assert set(refused) <= {"xid"}, "only a host with an NVIDIA driver has its tracepoint"
    assert host.on == {"locks", "sched", "faults", "block_io", "oom"} - set(refused)


def test_threads_that_fight_for_a_lock(observe: Observe) -> None:
    """Of five threads three wait, for the whole time; on a loaded machine up to four, and a part of it for a CPU. What they
    waited before the second hand-off is not a lock's yet."""
    seen = observe("lock")
    assert seen.total("lock") + seen.total("run_queue") > 0.75 * 3 * SECONDS
    assert 0.5 * SECONDS < seen.total("lock") < 4.1 * seen.seconds
    waited = seen.waited_by_address()
    worst = max(waited, key=lambda address: sum(waited[address].values()))
    # The first reading may not have seen two hand-offs yet, and where the host stands still it is long.
    assert waited[worst][LOCK] > 0.75 * sum(waited[worst].values())
    assert max(lock.waiters for use in seen.uses for lock in use.locks if lock.address == worst) in (3, 4)
    assert seen.total("gil") < 0.2 * seen.total("lock")


PYTHONS = one_of_each(interpreters())


@pytest.mark.parametrize("python", PYTHONS.values(), ids=[f"{major}.{minor}" for major, minor in PYTHONS])
def test_threads_that_fight_for_the_gil(observe: Observe, python: str) -> None:
    """Of three threads two wait; where a loaded machine gives no CPU, all three do, and the main one. Of every version there is:
    where the GIL lies, and which futex calls wait for it, are theirs to choose."""
    seen = observe("gil", python=python)
    assert 1.8 * SECONDS < seen.total("gil") + seen.total("run_queue") < 4.1 * seen.seconds
    assert seen.total("gil") > 0.1 * SECONDS
    assert max((lock for use in seen.uses for lock in use.locks), key=lambda lock: lock.waits).kind == GIL
    assert seen.total("lock") < 0.1 * SECONDS


def test_a_mutex_whose_owner_takes_it_again_at_once(observe: Observe, tmp_path: Path) -> None:
    """The owner never waits, so that nobody who waited ever hands it on: three threads starve."""
    seen = observe(str(SECONDS), python=str(_compiled(tmp_path, _HOG)), script="")
    assert seen.total("lock") > 2 * SECONDS
    assert seen.total("idle_futex") < 1.5 * SECONDS, "the main thread waits for the others"


def test_workers_that_sleep_on_semaphores_of_their_own_wait_for_no_lock(observe: Observe, tmp_path: Path) -> None:
    """oneTBB's binary_semaphore: its word is 2 while somebody sleeps, as a mutex's that is fought for."""
    seen = observe(str(SECONDS), python=str(_compiled(tmp_path, _SEMAPHORES)), script="")
    assert seen.total("idle_futex") > 0.7 * 8 * SECONDS
    assert seen.total("lock") < 0.02 * seen.total("idle_futex")


@pytest.mark.parametrize(("source", "flags"), [(_BARRIER, ()), (_OPENMP, ("-fopenmp",))], ids=["pthread", "openmp"])
def test_threads_that_meet_at_a_barrier_wait_for_no_lock(
    observe: Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, flags: tuple[str, ...]
) -> None:
    """Of two, who comes last wakes the other, where it waited itself before: as if it handed on what it held."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    seen = observe(str(SECONDS), python=str(_compiled(tmp_path, source, *flags)), script="")
    assert seen.says["waited"] > 0.1 * SECONDS
    assert seen.total("idle_futex") + seen.total("run_queue") > 0.8 * seen.says["waited"]
    assert seen.total("lock") < 0.02 * seen.says["waited"]


def test_workers_without_work_wait_for_no_lock(observe: Observe) -> None:
    """The null of the lock: eight threads wait all the time, and none of it is contention."""
    seen = observe("idle_pool")
    assert seen.total("idle_futex") > 0.7 * 8 * SECONDS
    assert seen.total("lock") < 0.02 * seen.total("idle_futex")


def test_workers_with_some_work_wait_for_no_lock(observe: Observe) -> None:
    """The nearest null: who has waited for work wakes the next to wait, at once."""
    seen = observe("busy_pool")
    assert seen.total("idle_futex") > 0.2 * 16 * SECONDS
    assert seen.total("lock") < 0.02 * seen.total("idle_futex")


@pytest.mark.parametrize("program", ["starved", "starved_in_kernel"])
def test_a_process_that_has_half_a_cpu(observe: Observe, program: str) -> None:
    """Held against the kernel's own sum, schedstat. Who is preempted inside the kernel does not sleep."""
    seen = observe(program)
    assert seen.run_queue_s > 0.2 * SECONDS
    assert seen.total("run_queue") == pytest.approx(seen.run_queue_s, rel=0.1, abs=0.05)


def test_pages_that_come_from_the_disk(observe: Observe, tmp_path: Path) -> None:
    """As many as rusage counts; and some of the time went there."""
    file = tmp_path / "weights"
    file.write_bytes(b"\1" * (4 << 20))
    with file.open("rb") as written:
        os.fsync(written.fileno())
    seen = observe("faults", str(file))
    assert seen.says["major_faults"] > 0
    assert seen.major_faults == seen.says["major_faults"]
    assert seen.total("page_fault") > 0


def test_sleep_is_only_sleep(observe: Observe) -> None:
    """The null of all reasons."""
    seen = observe("sleeper")
    assert seen.total("sleep") >= 0.5
    # Before and after, it sleeps until it is told to go on, for as long as this process takes for that.
    assert seen.says["took_s"] - 0.05 < seen.total("sleep") + seen.total("run_queue") < seen.seconds + 0.05
    for reason in ("lock", "gil", "idle_futex", "page_fault", "disk"):
        assert seen.total(reason) < 0.05
