"""A program watched by our probes and by others at the same time: the same answers. The others are bpftrace, which reads the
kernel's own types, with scripts of ours and with its own runqlat.bt; and the kernel's schedstat, read by the program itself.

BCC's offcputime and cpudist need kprobes, and its runqlat needs the headers of the running kernel: not every host has those.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.compiled import program as compiled
from tests.integration.ebpf.conftest import Observed

RUNQLAT: Final = Path("/usr/sbin/runqlat.bt")

# Run queue: from the wake-up, or from being preempted, to running. Off the CPU: from leaving it asleep to the wake-up.
_SCHED = """
tracepoint:sched:sched_switch {
    if (args->prev_comm == "aie-watched") {
        @left[args->prev_pid] = nsecs;
        if ((args->prev_state & 255) == 0) { @ready[args->prev_pid] = nsecs; } else { delete(@ready[args->prev_pid]); }
    }
    if (args->next_comm == "aie-watched" && @left[args->next_pid]) {
        $ready = @ready[args->next_pid] ? @ready[args->next_pid] : nsecs;
        @queued_ns = sum(nsecs - $ready);
        @slept_ns = sum($ready - @left[args->next_pid]);
        @switches = count();
        delete(@left[args->next_pid]);
    }
}
tracepoint:sched:sched_wakeup /@left[args->pid] && !@ready[args->pid]/ { @ready[args->pid] = nsecs; }
END { clear(@left); clear(@ready); }
"""
_FUTEX = """
tracepoint:syscalls:sys_enter_futex /comm == "aie-watched" && ((args->op & 127) == 9 || (args->op & 127) == 0)/ { @in[tid] = 1; }
tracepoint:syscalls:sys_exit_futex /@in[tid]/ { if (args->ret != -11) { @waits = count(); } delete(@in[tid]); }
END { clear(@in); }
"""


def _end(tracer: subprocess.Popen[str]) -> None:
    """bpftrace heeds a signal only where that interrupts its waiting: one that comes at another moment is sent again."""
    while tracer.poll() is None:
        tracer.terminate()
        with suppress(subprocess.TimeoutExpired):
            tracer.wait(1)


@pytest.fixture
def bpftrace() -> Callable[[str], Any]:
    """Runs a script while a block runs; afterwards the dictionary has its maps."""
    if shutil.which("bpftrace") is None:
        pytest.skip("bpftrace is missing: make setup-system")

    @contextmanager
    def run(script: str) -> Iterator[dict[str, int]]:
        found: dict[str, int] = {}
        command = ["bpftrace", "-f", "json", "-e", f'BEGIN {{ printf("begun\\n"); }}\n{script}']
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stdout is not None
            while "begun" not in tracer.stdout.readline():
                assert tracer.poll() is None, tracer.stderr and tracer.stderr.read()
            time.sleep(0.2)  # BEGIN runs a moment before the rest is attached
            try:
                yield found
            finally:
                _end(tracer)
                for line in filter(str.strip, tracer.stdout):
                    message = json.loads(line)
                    if message.get("type") in ("map", "hist"):
                        found.update({name.lstrip("@"): value for name, value in message["data"].items()})

    return run


# Each thread sleeps, computes and waits for the others, and notes what of the time the kernel says that it ran or waited for a CPU.
# The account of the main one begins where ours does, with the signal that lets it go on; those of others when they do.
_ACCOUNTS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define THREADS 4
struct account { long at, ran, queued; };
static pthread_barrier_t all;
static struct account of_main;
static long queued_ns, off_ns;
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
static struct account account(void) {
    struct account found = {now()};
    char text[100] = "";
    int fd = open("/proc/thread-self/schedstat", O_RDONLY);
    if (read(fd, text, sizeof text - 1) < 0 || sscanf(text, "%ld %ld", &found.ran, &found.queued) != 2) abort();
    close(fd);
    return found;
}
static void note(struct account from) {
    struct account to = account();
    __sync_fetch_and_add(&queued_ns, to.queued - from.queued);
    __sync_fetch_and_add(&off_ns, to.at - from.at - (to.ran - from.ran) - (to.queued - from.queued));
}
static void goes_on(int unused) { of_main = account(); }
static void *work(void *unused) {
    struct account from = account();
    for (int i = 0; i < 150; i++) {
        usleep(5000);
        for (long until = now() + 1000000; now() < until;) ;
        if (i % 10 == 0) pthread_barrier_wait(&all);
    }
    note(from);
    return unused;
}
int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&all, NULL, THREADS);
    signal(SIGCONT, goes_on);
    puts("ready"); fflush(stdout); getchar();
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    note(of_main);
    printf("{\"queued_s\": %f, \"off_s\": %f}\n", queued_ns / 1e9, off_ns / 1e9); fflush(stdout); getchar();
    return 0;
}
"""


def test_time_in_the_run_queue_and_off_the_cpu_by_the_kernels_own_account(observe: Callable[..., Observed], tmp_path: Path) -> None:
    ours = observe("accounts", python=str(compiled(tmp_path / "accounts", _ACCOUNTS, "-pthread")), script="")
    run_queue = sum(use.run_queue.total for use in ours.uses if use.run_queue)
    off_cpu = sum(use.off_cpu.total for use in ours.uses if use.off_cpu)
    assert run_queue == pytest.approx(ours.says["queued_s"], rel=0.05, abs=0.02)
    assert off_cpu == pytest.approx(ours.says["off_s"], rel=0.03, abs=0.1)


def runqlat() -> str:
    """The script that comes with bpftrace, for threads of one name. As it is, it needs headers, and does not see who is preempted:
    since Linux 4.14 the tracepoint has a state of its own for that."""
    script = RUNQLAT.read_text()
    for theirs, here in (
        (r"#include <linux/sched.h>", ""),
        (r"args->prev_state == TASK_RUNNING", "(args->prev_state & 0xff) == 0"),
        (r"BEGIN\s*\{[^}]*\}", ""),
        (r"if \(\$ns\)", 'if ($ns && args->next_comm == "aie-watched")'),
    ):
        script, found = re.subn(theirs, here, script)
        assert found == 1, f"{RUNQLAT} is another one: it has no {theirs}"
    return script


@pytest.mark.skipif(not RUNQLAT.exists(), reason="bpftrace's own tools are missing: make setup-system")
def test_delays_in_the_run_queue_beside_runqlat(observe: Callable[..., Observed], bpftrace: Any) -> None:
    """How many there were, and how many of them were no longer than 16, 32, 64 ... us."""
    with bpftrace(runqlat()) as theirs:
        ours = observe("lock", "--name", "aie-watched")
    slots = [sum(column) for column in zip(*(use.run_queue.slots for use in ours.uses if use.run_queue), strict=True)]
    within = dict(zip((1 << slot for slot in range(len(slots))), itertools.accumulate(slots), strict=True))
    rows = theirs["usecs"]
    total = sum(row["count"] for row in rows)
    assert total > 100
    assert sum(slots) == pytest.approx(total, rel=0.02, abs=10), "it counts the first CPU of a new thread, too"
    slack = 0.02 * total + 10
    for bound, count in within.items():
        # Both cut microseconds off; theirs are below a power of two, and ours up to it. The second of two programs on a tracepoint
        # reads the clock up to a microsecond later than the first: below some more it matters which was first.
        if bound < 16:
            continue
        below, below_next = (sum(row["count"] for row in rows if row["max"] < least) for least in (bound, 2 * bound))
        assert below - slack <= count <= below_next + slack


@pytest.mark.parametrize("program", ["lock", "gil"])
def test_time_in_the_run_queue_and_off_the_cpu(observe: Callable[..., Observed], bpftrace: Any, program: str) -> None:
    with bpftrace(_SCHED) as theirs:
        ours = observe(program, "--name", "aie-watched")
    run_queue = sum(use.run_queue.total for use in ours.uses if use.run_queue)
    off_cpu = sum(use.off_cpu.total for use in ours.uses if use.off_cpu)
    switches = sum(sum(use.run_queue.slots) for use in ours.uses if use.run_queue)
    # bpftrace also saw the program's first and last moments, in which it waits to begin and to be ended: some switches, and sleep.
    assert switches == pytest.approx(theirs["switches"], rel=0.02, abs=10)
    assert run_queue == pytest.approx(theirs["queued_ns"] / 1e9, rel=0.03, abs=0.1)
    assert 0.98 * off_cpu - 0.5 <= theirs["slept_ns"] / 1e9 <= 1.02 * off_cpu + 0.5 + ours.outside_s


def test_the_count_of_futex_waits(observe: Callable[..., Observed], bpftrace: Any) -> None:
    with bpftrace(_FUTEX) as theirs:
        ours = observe("lock", "--name", "aie-watched")
    waits = sum(lock.waits for use in ours.uses for lock in use.locks)
    assert waits == pytest.approx(theirs["waits"], rel=0.02, abs=3)
