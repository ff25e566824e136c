"""What readers found of one process, as a row of the report."""

from __future__ import annotations

import msgspec

from aie_ebpf.messages import Cuda, Histogram, ProcessReport, Target, Waits
from aie_ebpf.readers.waits import HostUse


def process_report(
    target: Target,
    use: HostUse | None,
    faults: int | None,
    cuda: Cuda | None,
    gc: Histogram | None,
    *,
    sees_syncs: bool,
    is_last: bool,
) -> ProcessReport:
    """One watched process. `sees_syncs`: cuda_sync is attached to it, so that no synchronisation means none. `is_last`: it has
    ended."""
    waits = use.waits if use is not None else Waits()
    if sees_syncs or (cuda is not None and cuda.syncs):
        waits = msgspec.structs.replace(waits, **_synced(use, cuda))
    if use is None:
        report = ProcessReport(engine=target.engine, tgid=target.tgid, waits=waits, cuda=cuda, gc=gc)
    else:
        report = ProcessReport(
            engine=target.engine,
            tgid=target.tgid,
            waits=waits,
            locks=use.locks,
            run_queue=use.run_queue,
            off_cpu=use.off_cpu,
            major_faults=faults,
            cuda=cuda,
            gc=gc,
        )
    return _last(report) if is_last else report


def _last(report: ProcessReport) -> ProcessReport:
    """Of a process that has ended: what it did before. What it held, and where its threads waited, ended with it."""
    cuda = report.cuda
    if cuda is not None:
        replace = msgspec.structs.replace
        cuda = replace(
            cuda,
            allocations=tuple(replace(row, outstanding_bytes=0, outstanding=0) for row in cuda.allocations),
            syncs=tuple(replace(row, waiting=0, longest_wait_s=0.0) for row in cuda.syncs),
            contexts=None if cuda.contexts is None else 0,
        )
    locks = tuple(msgspec.structs.replace(lock, waiters=0) for lock in report.locks)
    return msgspec.structs.replace(report, cuda=cuda, locks=locks)


def _synced(use: HostUse | None, cuda: Cuda | None) -> dict[str, float]:
    """What of the time in synchronisations is a wait for the GPU: what was spent in the run queue counts there. Where the programs
    of sched see when its threads leave the CPU, the rest of it is spent spinning."""
    blocked_s = sum(each.blocked_s for each in cuda.syncs) if cuda is not None else 0.0
    if use is None:
        return {"gpu_sync": blocked_s}
    synced_s = max(blocked_s - use.sync_run_queue_s, 0.0)
    if use.waits.sleep is None:
        return {"gpu_sync": synced_s}
    return {"gpu_sync": synced_s, "gpu_spin": max(synced_s - use.sync_off_s, 0.0)}
