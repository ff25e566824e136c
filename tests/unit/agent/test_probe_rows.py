"""What probes see of an engine as the API shows it, from a store that a batch of reports filled."""

from __future__ import annotations

import pytest

from aie_agent.outputs.probe_rows import probe_fields
from aie_agent.samples import Batch, Point
from aie_agent.sources.bpf.build import NoProbes
from aie_agent.sources.bpf.points import WHOLE, Levels, add_up
from aie_agent.store import Store
from aie_ebpf import messages as m
from aie_telemetry import api
from aie_telemetry.catalogue import Kind

LEVELS = Levels(m.Ready(sets=(), cost_ns={}, bcc_version="1"), (), {})
SIZES = (0, 0, 4, *([0] * (len(m.SIZE_BOUNDS_BYTES) - 2)))
SECONDS = 10


def cuda(second: int) -> m.Cuda:
    """One second: 3 MiB asked for and 1 MiB given back, four copies, eight syncs of a millisecond, one refusal at the end."""
    slots = [0] * (len(m.HISTOGRAM_BOUNDS_S) + 1)
    slots[10] = 8
    took = m.Histogram(slots=tuple(slots), total=8e-3)
    return m.Cuda(
        allocations=(
            m.Allocations(
                kind="device", size_class_bytes=1 << 20, module="libtorch_cuda.so", outstanding_bytes=(2 << 20) * second,
                outstanding=2 * second, allocated_bytes=3 << 20, allocations=3, freed_bytes=1 << 20, frees=1,
            ),
        ),
        failures=(m.CudaFailure(call="cuMemAlloc", code=2, count=1),) if second == SECONDS else (),
        syncs=(m.CudaSync(call="cuStreamSynchronize", seconds=took, waiting=1, longest_wait_s=7.5),),
        copies=(m.CudaCopy(direction="htod", bytes=4096, sizes=m.Histogram(slots=SIZES, total=4096.0), burst_bytes=2048),),
        contexts=1,
    )  # fmt: skip


@pytest.fixture
def store() -> Store:
    store = Store(max_series=10_000, retention_s=300.0)
    for second in range(1, SECONDS + 1):
        waits = m.Waits(lock=0.5, gil=2.0, idle_futex=3.0, sleep=1.0, disk=0.25)
        process = m.ProcessReport(engine="chat", tgid=1, waits=waits, cuda=cuda(second))
        cost = m.Cost(engine="chat", set="locks", hits=1, seconds=1e-6, ratio=0.003)
        sums = add_up([m.Report(period_s=1.0, processes=(process,), costs=(cost,))], LEVELS)
        points = sums.points()
        points.append(Point("aie_process_cpu_seconds_total", Kind.COUNTER, (("engine", "chat"), ("mode", "user")), 1.5 * second))
        store.apply(Batch("bpf", float(second), points, sums.histograms(), whole=WHOLE))
    return store


def fields(store: Store, engine: str = "chat", now_s: float = float(SECONDS)) -> api.Engine:
    return api.Engine(name=engine, state="up", **probe_fields(store, NoProbes(), engine, now_s, now_s - 60.0))


def test_waits_are_threads_on_average(store: Store) -> None:
    waits = fields(store).waits
    assert waits is not None
    assert waits.lock == pytest.approx(0.5)
    assert waits.gil == pytest.approx(2.0)
    assert waits.idle == pytest.approx(3.0)
    assert waits.disk == pytest.approx(0.25)
    assert waits.running == pytest.approx(1.5)
    assert waits.gpu_sync is None
    assert waits.run_queue is None


def spins(cpu_s: float, sync_s: float, spin_s: float | None) -> api.Waits:
    """What a thread's engine shows that took so much of each second."""
    store = Store(max_series=100, retention_s=300.0)
    for second in range(1, SECONDS + 1):
        process = m.ProcessReport(engine="chat", tgid=1, waits=m.Waits(gpu_sync=sync_s, gpu_spin=spin_s))
        points = add_up([m.Report(period_s=1.0, processes=(process,))], LEVELS).points()
        points.append(Point("aie_process_cpu_seconds_total", Kind.COUNTER, (("engine", "chat"), ("mode", "user")), cpu_s * second))
        store.apply(Batch("bpf", float(second), points, [], whole=WHOLE))
    waits = fields(store).waits
    assert waits is not None
    return waits


def test_a_thread_that_spins_in_a_synchronisation_counts_once() -> None:
    """A whole CPU, of which 0.8 spins; and 0.1 sleeps inside: the bar has 1.1 threads."""
    waits = spins(cpu_s=1.0, sync_s=0.9, spin_s=0.8)
    assert (waits.running, waits.gpu_sync) == (pytest.approx(0.2), pytest.approx(0.9))
    unseen = spins(cpu_s=1.0, sync_s=0.9, spin_s=None)
    assert (unseen.running, unseen.gpu_sync) == (pytest.approx(1.0), pytest.approx(0.9))
    assert spins(cpu_s=0.5, sync_s=0.9, spin_s=0.8).running == 0.0, "clocks differ a little: never below nothing"


def test_cuda_over_the_window(store: Store) -> None:
    use = fields(store).cuda
    assert use is not None
    assert use.outstanding_bytes == {"device": (2 << 20) * SECONDS}
    assert use.outstanding_allocations == 2 * SECONDS
    assert use.by_module == {"libtorch_cuda.so": (2 << 20) * SECONDS}
    assert use.by_size_class_bytes == {str(1 << 20): (2 << 20) * SECONDS}
    assert use.allocated_bytes_per_second == pytest.approx(3 << 20)
    assert use.freed_bytes_per_second == pytest.approx(1 << 20)
    assert use.copies["htod"].bytes_per_second == pytest.approx(4096)
    assert use.copies["htod"].burst_bytes == 2048
    sync = use.syncs["cuStreamSynchronize"]
    assert sync.calls_per_second == pytest.approx(8)
    assert sync.p50_seconds is not None
    assert m.HISTOGRAM_BOUNDS_S[9] < sync.p50_seconds <= m.HISTOGRAM_BOUNDS_S[10]
    assert (use.sync_waiting, use.sync_longest_wait_seconds, use.contexts) == (1, 7.5, 1)
    assert use.failures == {"cuMemAlloc:2": 1}
    assert fields(store).probe_overhead_ratio == pytest.approx(0.003)


def test_another_engine_has_nothing(store: Store) -> None:
    engine = fields(store, "other")
    assert (engine.waits, engine.cuda, engine.locks, engine.coverage, engine.probe_overhead_ratio) == (None, None, (), (), None)


def test_what_is_not_reported_any_more_is_gone(store: Store) -> None:
    engine = fields(store, now_s=SECONDS + 30.0)
    assert (engine.waits, engine.cuda, engine.probe_overhead_ratio) == (None, None, None)


def test_no_probes_say_why() -> None:
    engine = probe_fields(Store(max_series=100, retention_s=300.0), NoProbes("BCC: not installed", "install it"), "chat", 1.0, 0.0)
    assert [(each.state, each.reason, each.remedy) for each in engine["coverage"]] == [("off", "BCC: not installed", "install it")]
