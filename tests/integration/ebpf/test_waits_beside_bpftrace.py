"""A program watched by our probes and by bpftrace, which reads the kernel's own types, at the same time: the same answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.ebpf.conftest import Observed

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
                tracer.terminate()
                for line in filter(str.strip, tracer.stdout):
                    message = json.loads(line)
                    if message.get("type") == "map":
                        found.update({name.lstrip("@"): value for name, value in message["data"].items()})

    return run


@pytest.mark.parametrize("program", ["lock", "gil"])
def test_time_in_the_run_queue_and_off_the_cpu(observe: Callable[..., Observed], bpftrace: Any, program: str) -> None:
    with bpftrace(_SCHED) as theirs:
        ours = observe(program, "--name", "aie-watched")
    run_queue = sum(use.run_queue.total for use in ours.uses if use.run_queue)
    off_cpu = sum(use.off_cpu.total for use in ours.uses if use.off_cpu)
    switches = sum(sum(use.run_queue.slots) for use in ours.uses if use.run_queue)
    # bpftrace also saw the program's last moments, in which it waits to be ended: some switches, and a sleep that has no end.
    assert switches == pytest.approx(theirs["switches"], rel=0.02, abs=10)
    assert run_queue == pytest.approx(theirs["queued_ns"] / 1e9, rel=0.03, abs=0.1)
    assert off_cpu == pytest.approx(theirs["slept_ns"] / 1e9, rel=0.02, abs=0.5)


def test_the_count_of_futex_waits(observe: Callable[..., Observed], bpftrace: Any) -> None:
    with bpftrace(_FUTEX) as theirs:
        ours = observe("lock", "--name", "aie-watched")
    waits = sum(lock.waits for use in ours.uses for lock in use.locks)
    assert waits == pytest.approx(theirs["waits"], rel=0.02, abs=3)
