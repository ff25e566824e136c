"""What probes tell of engines, for aie-top's tests: a fight for the GIL, one for a lock, a CUDA engine, and what is not seen.

Deterministic.
"""

from __future__ import annotations

import math

import msgspec

from aie_telemetry.api import Coverage, CudaCopies, CudaSyncs, CudaUse, Engine, Lock, Snapshot, Waits

GIB = float(1 << 30)
MIB = float(1 << 20)
HOST_SETS = ("locks", "sched", "faults")
CUDA_SETS = ("cuda_memory", "cuda_sync", "cuda_copy")
WINDOWS = tuple(Coverage(set=name, state="window") for name in ("cuda_launch", "gc"))
NO_CUDA = "the process has not loaded CUDA's driver library (libcuda.so.1)"
AS_ROOT = "run as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE"
"""As `aie_ebpf.prerequisites` has it."""


def seen(*sets: str) -> tuple[Coverage, ...]:
    return tuple(Coverage(set=name, state="on") for name in sets)


def unseen(reason: str, *sets: str, remedy: str = "") -> tuple[Coverage, ...]:
    return tuple(Coverage(set=name, state="off", reason=reason, remedy=remedy) for name in sets)


def nothing(reason: str, *sets: str) -> tuple[Coverage, ...]:
    return tuple(Coverage(set=name, state="none", reason=reason) for name in sets)


def sway(tick: int, level: float, swing: float = 0.1) -> float:
    return round(level * (1.0 + swing * math.sin(tick / 3.0)), 4)


def gil_fight(engine: Engine, tick: int = 0) -> Engine:
    """Six threads that run Python code, so five of them wait."""
    waits = Waits(
        running=sway(tick, 0.98, 0.02),
        run_queue=0.04,
        lock=0.02,
        gil=sway(tick, 4.71),
        idle=11.0,
        page_fault=0.0,
        disk=0.0,
        sleep=3.2,
    )
    gil = Lock(
        tgid=41_877,
        address="0x7f3a9c4e21f8",
        kind="gil",
        waiting_threads=sway(tick, 4.71),
        waits_per_second=812.0,
        longest_seconds=0.0414,
        waiters=5,
        line="tokenizer.py:118 (encode)",
    )
    return msgspec.structs.replace(
        engine,
        waits=waits,
        run_queue_threads=waits.run_queue,
        locks=(gil,),
        coverage=(*seen(*HOST_SETS), *nothing(NO_CUDA, *CUDA_SETS), *WINDOWS),
        probe_overhead_ratio=0.0041,
    )


def lock_fight(engine: Engine, tick: int = 0) -> Engine:
    """Four threads fight for one lock whose holder sleeps inside; another lock is fought for a little. The CPUs are short, too."""
    waits = Waits(
        running=1.62,
        run_queue=sway(tick, 0.83),
        lock=sway(tick, 2.94),
        gil=0.31,
        idle=4.0,
        page_fault=0.12,
        disk=0.41,
        sleep=1.4,
    )
    worst = Lock(
        tgid=52_110,
        address="0x7ffd10a3c0d0",
        kind="lock",
        waiting_threads=sway(tick, 2.72),
        waits_per_second=19.3,
        longest_seconds=0.204,
        waiters=3,
        line="prefix_cache.py:204 (lookup)",
    )
    other = Lock(
        tgid=52_110,
        address="0x55d0c1e0f3b0",
        kind="lock",
        waiting_threads=0.22,
        waits_per_second=1_904.0,
        longest_seconds=0.0031,
        waiters=0,
    )
    gil = msgspec.structs.replace(
        other, address="0x7f11e04e21f8", kind="gil", waiting_threads=0.31, waits_per_second=240.0, waiters=1
    )
    return msgspec.structs.replace(
        engine,
        waits=waits,
        run_queue_threads=waits.run_queue,
        locks=(worst, gil, other),
        coverage=(
            *seen("locks", "sched"),
            Coverage(set="faults", state="part", missing=("process 52111: its memory map cannot be read",)),
            *nothing(NO_CUDA, *CUDA_SETS),
            *WINDOWS,
        ),
        probe_overhead_ratio=0.0062,
    )


def on_cuda(engine: Engine, tick: int = 0) -> Engine:
    """One thread that waits for the GPU nearly all of the time, device memory of three libraries, and a refused allocation."""
    waits = Waits(
        running=1.02, run_queue=0.02, lock=0.0, gil=0.05, idle=38.0, page_fault=0.0, disk=0.0, gpu_sync=sway(tick, 0.81), sleep=6.1
    )
    return msgspec.structs.replace(
        engine,
        device="cuda:0",
        waits=waits,
        run_queue_threads=waits.run_queue,
        cuda=cuda_use(tick),
        coverage=(
            *seen(*HOST_SETS, "cuda_memory", "cuda_copy"),
            Coverage(set="cuda_sync", state="part", missing=("cuEventSynchronize: no such symbol in libcuda.so.1",)),
            *WINDOWS,
        ),
        probe_overhead_ratio=0.0078,
    )


def cuda_use(tick: int = 0) -> CudaUse:
    return CudaUse(
        outstanding_bytes={"device": 61.4 * GIB, "async": 3.1 * GIB, "vmm": 0.5 * GIB, "host": 2.0 * GIB, "registered": 64 * MIB},
        outstanding_allocations=4_127.0 + tick,
        by_module={
            "libtorch_cuda.so": 58.2 * GIB,
            "libnccl.so.2": 4.6 * GIB,
            "libcublasLt.so.12": 1.9 * GIB,
            "libcudart.so.12": 2.2 * GIB,
            "other": 0.2 * GIB,
        },
        by_size_class_bytes={str(1 << 31): 52.0 * GIB, str(1 << 26): 9.1 * GIB, str(1 << 21): 2.2 * GIB},
        allocated_bytes_per_second=21.3 * MIB,
        freed_bytes_per_second=19.9 * MIB,
        allocations_per_second=14.2,
        unknown_frees_per_second=0.1,
        copies={
            "htod": CudaCopies(bytes_per_second=812 * MIB, burst_bytes=24 * MIB),
            "dtoh": CudaCopies(bytes_per_second=3.4 * MIB, burst_bytes=512 * 1024.0),
            "dtod": CudaCopies(bytes_per_second=1.9 * GIB, burst_bytes=96 * MIB),
        },
        syncs={
            "cuStreamSynchronize": CudaSyncs(calls_per_second=46.0, p50_seconds=0.0171, p99_seconds=0.0242),
            "cuEventSynchronize": CudaSyncs(calls_per_second=3.1, p50_seconds=0.0004, p99_seconds=0.0021),
        },
        sync_waiting=1,
        sync_longest_wait_seconds=0.0123,
        contexts=1,
        failures={"cuMemAlloc:2": 3.0, "cuMemHostRegister:712": 1.0},
    )


def at_work(engine: Engine) -> Engine:
    """Threads that run, sleep and wait for work: nothing that anybody has to know of."""
    waits = Waits(running=0.42, run_queue=0.0, lock=0.0, gil=0.0, idle=7.0, page_fault=0.0, disk=0.0, sleep=2.0)
    return msgspec.structs.replace(
        engine, waits=waits, coverage=(*seen(*HOST_SETS), *nothing(NO_CUDA, *CUDA_SETS), *WINDOWS), probe_overhead_ratio=0.0012
    )


def blind(engine: Engine) -> Engine:
    """Only what /proc tells, and why there is no more."""
    return msgspec.structs.replace(
        engine,
        waits=Waits(running=0.42, run_queue=0.01),
        coverage=unseen("privilege: not held by user 1000", "ebpf", remedy=AS_ROOT),
    )


def of_two(snapshot: Snapshot, tick: int = 0) -> Snapshot:
    """With what probes see of the first two engines."""
    first, second, *others = snapshot.engines
    return msgspec.structs.replace(snapshot, engines=(gil_fight(first, tick), lock_fight(second, tick), *others))


def fights(tick: int = 0) -> Snapshot:
    """The fake agent's host with one engine of each kind."""
    import agent_api as fake  # beside this file

    engines = (
        gil_fight(fake.engine("smollm2", tick), tick),
        lock_fight(fake.engine("embedder", tick + 40), tick),
        on_cuda(fake.engine("llama-70b", tick + 20), tick),
        blind(fake.engine("reranker", tick + 60)),
    )
    return fake.snapshot(tick, engines=engines, memory=(fake.memory("smollm2", tick), fake.memory("embedder", tick + 60)))
