"""What real programs wait for, as the probes see it. Bounds are of what must hold on any machine, however slow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aie_ebpf.host import HostProbes
from aie_ebpf.lock_kinds import GIL, LOCK
from tests.fakes.wait_programs import SECONDS
from tests.integration.ebpf.conftest import Observed

Observe = Callable[..., Observed]


def test_every_set_of_the_host_is_attached(host: HostProbes) -> None:
    refused = {state.set: state.reason for state in host.states() if not state.loaded}
    assert set(refused) <= {"xid"}, "only a host with an NVIDIA driver has its tracepoint"
    assert host.on == {"locks", "sched", "faults", "block_io", "oom"} - set(refused)


def test_threads_that_fight_for_a_lock(observe: Observe) -> None:
    """Of four threads three wait, for the whole time."""
    seen = observe("lock")
    assert seen.total("lock") == pytest.approx(3 * SECONDS, rel=0.25)
    worst = max((lock for use in seen.uses for lock in use.locks), key=lambda lock: lock.wait_s)
    assert worst.kind == LOCK
    assert max(lock.waiters for use in seen.uses for lock in use.locks if lock.address == worst.address) == 3
    assert seen.total("gil") < 0.2 * seen.total("lock")


def test_threads_that_fight_for_the_gil(observe: Observe) -> None:
    """Of three threads two wait, but for the CPU that a loaded machine may not give them."""
    seen = observe("gil")
    assert seen.total("gil") + seen.total("run_queue") == pytest.approx(2 * SECONDS, rel=0.35)
    assert seen.total("gil") > 0.5 * SECONDS
    assert max((lock for use in seen.uses for lock in use.locks), key=lambda lock: lock.waits).kind == GIL
    assert seen.total("lock") < 0.1 * SECONDS


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


def test_a_process_that_has_half_a_cpu(observe: Observe) -> None:
    """Held against the kernel's own sum, schedstat."""
    seen = observe("starved")
    assert seen.says["run_queue_s"] > 0.2 * SECONDS
    assert seen.total("run_queue") == pytest.approx(seen.says["run_queue_s"], rel=0.1, abs=0.05)


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
    assert seen.total("sleep") == pytest.approx(seen.seconds, abs=0.3)
    for reason in ("lock", "gil", "idle_futex", "page_fault", "disk"):
        assert seen.total(reason) < 0.05
