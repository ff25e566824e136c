"""What readers found of one process, as a row of the report."""

from __future__ import annotations

import msgspec

from aie_ebpf.messages import Cuda, Histogram, ProcessReport, Target, Waits
from aie_ebpf.readers.waits import HostUse


def process_report(
    target: Target, use: HostUse | None, faults: int | None, cuda: Cuda | None, gc: Histogram | None, *, sees_syncs: bool
) -> ProcessReport:
    """One watched process. `sees_syncs`: cuda_sync is attached to it, so that no synchronisation means none."""
    waits = use.waits if use is not None else Waits()
    if sees_syncs or (cuda is not None and cuda.syncs):
        # What a synchronisation spent in the run queue is counted there.
        synced_s = sum(each.blocked_s for each in cuda.syncs) if cuda is not None else 0.0
        in_queue_s = use.sync_run_queue_s if use is not None else 0.0
        waits = msgspec.structs.replace(waits, gpu_sync=max(synced_s - in_queue_s, 0.0))
    if use is None:
        return ProcessReport(engine=target.engine, tgid=target.tgid, cuda=cuda, gc=gc, waits=waits)
    return ProcessReport(
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
