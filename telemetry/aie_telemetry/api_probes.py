"""The part of the API's schema (`api.py`, which has all of this too) that tells what probes in the kernel see of an engine."""

from __future__ import annotations

from typing import Literal

import msgspec

CoverageState = Literal["on", "part", "off", "none", "window"]


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine's threads are: how many of them, on average over the window, were in each state. None: not seen.

    `running` is on a CPU, without what spins in a synchronisation where that is seen. `run_queue`: ready, and no CPU. `lock`: for a
    lock that another thread holds. `gil`: for Python's interpreter lock. `idle`: for work, at a queue or a condition. `page_fault`:
    until the disk brought a page. `disk`: otherwise uninterruptible. `gpu_sync`: inside a CUDA synchronisation, asleep or spinning.
    `sleep`: any other sleep, such as for a socket or a timer.
    """

    running: float | None = None
    run_queue: float | None = None
    lock: float | None = None
    gil: float | None = None
    idle: float | None = None
    page_fault: float | None = None
    disk: float | None = None
    gpu_sync: float | None = None
    sleep: float | None = None


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that an engine's threads waited for within the window. `address` is hexadecimal, in the memory of process `tgid`.

    `waiting_threads` is how many threads waited for it on average, `longest_seconds` the longest single wait that ended,
    `waiters` how many wait now. `line` is where in the code most of them wait, where that is clear. `native` says which native
    code waits and who called it, where it was looked at and it is not Python code: `4 threads wait in pthread_mutex_lock, called by
    libfoo.so (work+0x1c)`.
    """

    tgid: int
    address: str
    kind: Literal["lock", "gil"]
    waiting_threads: float
    waits_per_second: float
    longest_seconds: float
    waiters: int
    line: str | None = None
    native: tuple[str, ...] = ()


class CudaCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies that an engine asked for in one direction: htod, dtoh, dtod, peer, unified. `burst_bytes` is the most in 1 ms."""

    bytes_per_second: float
    burst_bytes: float | None = None


class CudaSyncs(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one synchronising function that returned: how many a second, and how long they took."""

    calls_per_second: float
    p50_seconds: float | None = None
    p99_seconds: float | None = None


class CudaUse(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine does with CUDA's driver API, as probes see it since the agent watches it; times and rates over the window.

    `outstanding_bytes` is memory asked for and not freed, by kind: device, managed, async, vmm, host, registered; `by_module` by
    the file whose code asked, `by_size_class_bytes` by the power of two that holds an allocation's size (the five largest amounts).
    `sync_waiting` is how many threads are inside a synchronising function now, and `sync_longest_wait_seconds` for how long the
    one that entered first; how many were on average is `Waits.gpu_sync`. `failures` are calls that the driver refused within the
    window, by function and CUresult ("cuMemAlloc:2").
    """

    outstanding_bytes: dict[str, float] = {}
    outstanding_allocations: float | None = None
    by_module: dict[str, float] = {}
    by_size_class_bytes: dict[str, float] = {}
    allocated_bytes_per_second: float | None = None
    freed_bytes_per_second: float | None = None
    allocations_per_second: float | None = None
    unknown_frees_per_second: float | None = None
    copies: dict[str, CudaCopies] = {}
    syncs: dict[str, CudaSyncs] = {}
    sync_waiting: int | None = None
    sync_longest_wait_seconds: float | None = None
    launches_per_second: dict[str, float] = {}
    contexts: int | None = None
    failures: dict[str, float] = {}


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What probes of one set see of an engine: "on", "part" (`missing` says what is not seen), "off" (`reason`), "none" (there is
    nothing to see, for `reason`), "window" (can be opened for a while). `notes` are worth knowing and hide nothing. `remedy` is
    what to do about it, where something can be done."""

    set: str
    state: CoverageState
    reason: str = ""
    missing: tuple[str, ...] = ()
    remedy: str = ""
    notes: tuple[str, ...] = ()
