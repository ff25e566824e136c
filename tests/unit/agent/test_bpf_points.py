"""Reports as points: what is added up, what is a level, what stays absent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.samples import Batch
from aie_agent.sources.bpf.points import MOST_MODULES, OTHER, WHOLE, Levels, Sums, UnfitError, add_up
from aie_agent.sources.bpf.recent import LOCKS_SHOWN, RecentLocks, summary
from aie_agent.store import Store
from aie_ebpf import messages as m
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.catalogue.buckets import PROBE_SIZE_BUCKETS, PROBE_TIME_BUCKETS

READY = m.Ready(sets=(), cost_ns={}, bcc_version="1")
NOTHING = Levels(READY, (), {})
EMPTY = (0,) * (len(m.HISTOGRAM_BOUNDS_S) + 1)


def report(*processes: m.ProcessReport, **more: object) -> m.Report:
    return m.Report(period_s=1.0, processes=processes, **more)  # type: ignore[arg-type]


def values(sums: Sums) -> dict[tuple[str, tuple[str, ...]], float]:
    """By metric and label values, engine first as in the catalogue."""
    return {(p.name, tuple(dict(p.tags)[label] for label in CATALOGUE[p.name].labels)): p.value for p in sums.points()}


def by_label(sums: Sums, metric: str) -> dict[str, float]:
    """A metric of one engine by its other label."""
    return {labels[1]: value for (name, labels), value in values(sums).items() if name == metric}


def allocations(module: str = "libtorch.so", kind: str = "device", size: int = 1 << 20, held: int = 1 << 20) -> m.Allocations:
    return m.Allocations(
        kind=kind,
        size_class_bytes=size,
        module=module,
        outstanding_bytes=held,
        outstanding=1 if held else 0,
        allocated_bytes=2 << 20,
        allocations=2,
        freed_bytes=1 << 20,
        frees=1,
    )


def test_the_catalogues_buckets_are_those_of_the_programs() -> None:
    assert PROBE_TIME_BUCKETS == m.HISTOGRAM_BOUNDS_S
    assert PROBE_SIZE_BUCKETS == m.SIZE_BOUNDS_BYTES


def test_waits_are_added_over_processes_and_reports_and_absent_where_not_seen() -> None:
    one = m.ProcessReport(engine="chat", tgid=1, waits=m.Waits(lock=0.25, gil=None, sleep=1.0, run_queue=9.0))
    two = m.ProcessReport(engine="chat", tgid=2, waits=m.Waits(lock=0.5, idle_futex=0.0))
    sums = add_up([report(one, two), report(one)], NOTHING)
    assert by_label(sums, "aie_process_wait_seconds_total") == {"lock": 1.0, "sleep": 2.0, "idle": 0.0}
    assert by_label(sums, "aie_process_lock_waits_total") == {"lock": 0.0, "idle": 0.0}


def test_counters_are_deltas_and_levels_are_not() -> None:
    cuda = m.Cuda(allocations=(allocations(),), contexts=1, launches={"cuLaunchKernel": 3}, unknown_frees=2)
    sums = add_up([report(m.ProcessReport(engine="chat", tgid=1, cuda=cuda))] * 2, NOTHING)
    for point in sums.points():
        assert point.delta is (CATALOGUE[point.name].kind is Kind.COUNTER)
    found = values(sums)
    assert found["aie_cuda_memory_outstanding_bytes", ("chat", "device")] == 1 << 20, "of the last report, not of both"
    assert found["aie_cuda_memory_allocated_bytes_total", ("chat", "device")] == 4 << 20
    assert found["aie_cuda_contexts", ("chat",)] == 1
    assert found["aie_cuda_launches_total", ("chat", "cuLaunchKernel")] == 6
    assert found["aie_cuda_unknown_frees_total", ("chat",)] == 4
    assert found["aie_cuda_memory_class_bytes", ("chat", str(1 << 20))] == 1 << 20


def test_without_cuda_there_is_no_cuda_metric() -> None:
    process = m.ProcessReport(engine="chat", tgid=1, waits=m.Waits(lock=0.0))
    assert not [name for name, _ in values(add_up([report(process)], NOTHING)) if name.startswith("aie_cuda_")]
    sync_only = m.ProcessReport(engine="chat", tgid=1, cuda=m.Cuda(contexts=1))
    assert [name for name, _ in values(add_up([report(sync_only)], NOTHING)) if name.startswith("aie_cuda_")] == [
        "aie_cuda_contexts"
    ]


def test_memory_that_was_held_and_is_not_any_more_is_zero() -> None:
    process = m.ProcessReport(engine="chat", tgid=1, cuda=m.Cuda())
    found = values(add_up([report(process)], Levels(READY, (), {"chat": ["host"]})))
    assert found["aie_cuda_memory_outstanding_bytes", ("chat", "host")] == 0


def test_modules_beyond_sixteen_are_one() -> None:
    rows = tuple(allocations(f"lib{n:02}.so", held=1000 - n) for n in range(40))
    sums = add_up([report(m.ProcessReport(engine="chat", tgid=1, cuda=m.Cuda(allocations=rows)))], NOTHING)
    modules = by_label(sums, "aie_cuda_memory_module_bytes")
    assert len(modules) == MOST_MODULES + 1
    assert modules[OTHER] == sum(1000 - n for n in range(MOST_MODULES, 40))
    assert sum(modules.values()) == by_label(sums, "aie_cuda_memory_outstanding_bytes")["device"]


def test_a_name_that_an_engine_chose_reaches_no_terminal() -> None:
    rows = (allocations("evil\x1b[2J\n" + "x" * 500),)
    sums = add_up([report(m.ProcessReport(engine="chat", tgid=1, cuda=m.Cuda(allocations=rows)))], NOTHING)
    (module,) = by_label(sums, "aie_cuda_memory_module_bytes")
    assert module.isprintable()
    assert len(module) <= 100


def test_syncs_and_copies_of_several_processes() -> None:
    slots = (0, 5, *EMPTY[2:])
    sync = m.CudaSync(call="cuStreamSynchronize", seconds=m.Histogram(slots=slots, total=1e-5), waiting=1, longest_wait_s=3.0)
    stuck = m.CudaSync(call="cuCtxSynchronize", seconds=m.Histogram(slots=EMPTY, total=0.0), waiting=2, longest_wait_s=40.0)
    copy = m.CudaCopy(direction="htod", bytes=100, sizes=m.Histogram(slots=EMPTY, total=100.0), burst_bytes=60)
    one = m.ProcessReport(engine="chat", tgid=1, cuda=m.Cuda(syncs=(sync,), copies=(copy,)))
    two = m.ProcessReport(engine="chat", tgid=2, cuda=m.Cuda(syncs=(stuck,), copies=(copy,)))
    sums = add_up([report(one, two)], NOTHING)
    found = values(sums)
    assert found["aie_cuda_sync_waiting", ("chat",)] == 3
    assert found["aie_cuda_sync_longest_wait_seconds", ("chat",)] == 40.0
    assert found["aie_cuda_copy_bytes_total", ("chat", "htod")] == 200
    assert found["aie_cuda_copy_burst_bytes", ("chat", "htod")] == 60
    assert {dict(each.tags)["call"]: sum(each.counts) for each in sums.histograms() if each.name == "aie_cuda_sync_seconds"} == {
        "cuStreamSynchronize": 5,
        "cuCtxSynchronize": 0,
    }


def test_a_histogram_of_another_version_is_refused() -> None:
    process = m.ProcessReport(engine="chat", tgid=1, off_cpu=m.Histogram(slots=(1, 2, 3), total=1.0))
    with pytest.raises(UnfitError, match="3 slots"):
        add_up([report(process)], NOTHING)


def test_what_probes_cost() -> None:
    costs = (
        m.Cost(engine="chat", set="locks", hits=10, seconds=1e-5, ratio=0.001),
        m.Cost(engine="chat", set="sched", hits=20, seconds=2e-5, ratio=0.002),
    )
    coverage = [
        m.Coverage(engine="chat", tgid=1, set="locks", state="on", probes=2),
        m.Coverage(engine="chat", tgid=1, set="gc", state="off"),
    ]
    closed = m.WindowClosed(set="gc", engine="chat", open_s=1.0, hits=1, stolen_s=0.3)
    ready = m.Ready(sets=(), cost_ns={"uprobe": 1500.0}, bcc_version="1")
    found = values(add_up([report(costs=costs, lost={"waits": 3}), closed], Levels(ready, coverage, {})))
    assert found["aie_agent_probe_overhead_ratio", ("chat",)] == pytest.approx(0.003)
    assert found["aie_agent_probe_hits_total", ("chat", "sched")] == 20
    assert found["aie_agent_probe_lost_total", ("waits",)] == 3
    assert found["aie_agent_probe_window_stolen_seconds_total", ("chat", "gc")] == 0.3
    assert found["aie_agent_probe_cost_seconds", ("uprobe",)] == 1.5e-6
    assert found["aie_agent_probes_attached", ("chat", "locks")] == 2
    assert ("aie_agent_probes_attached", ("chat", "gc")) not in found


def test_every_point_fits_the_store() -> None:
    cuda = m.Cuda(allocations=(allocations(),), failures=(m.CudaFailure(call="cuMemAlloc", code=2, count=1),), contexts=1)
    gc = m.Histogram(slots=EMPTY, total=0.0)
    io = m.BlockIo(device="sda", op="read", seconds=m.Histogram(slots=EMPTY, total=0.0), bytes=512)
    process = m.ProcessReport(engine="chat", tgid=1, waits=m.Waits(lock=1.0), run_queue=gc, off_cpu=gc, gc=gc, cuda=cuda)
    sums = add_up([report(process, block_io=(io,), oom_kills=(m.OomKill(tgid=1, command="x"),))], NOTHING)
    store = Store(max_series=10_000, retention_s=300.0)
    store.apply(Batch("bpf", 100.0, sums.points(), sums.histograms(), whole=WHOLE))
    assert store.refused == dict.fromkeys(store.refused, 0)
    for each in (*sums.points(), *sums.histograms()):
        assert tuple(sorted(CATALOGUE[each.name].labels)) == tuple(label for label, _ in each.tags)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_splitting_a_time_over_reports_changes_nothing(parts: list[float]) -> None:
    reports = [report(m.ProcessReport(engine="chat", tgid=1, waits=m.Waits(lock=part))) for part in parts]
    found = values(add_up(reports, NOTHING))["aie_process_wait_seconds_total", ("chat", "lock")]
    assert found == pytest.approx(sum(parts))


def lock(address: int, wait_s: float, kind: str = "lock", waiters: int = 1) -> m.Lock:
    return m.Lock(address=address, kind=kind, waits=10, wait_s=wait_s, longest_s=wait_s, handoffs=5, waiters=waiters)


def watched(*locks: m.Lock) -> m.Report:
    return report(m.ProcessReport(engine="chat", tgid=7, waits=m.Waits(lock=0.0), locks=locks))


def test_locks_are_added_up_over_the_window_the_worst_first() -> None:
    recent = RecentLocks(10.0)
    for second in range(4):
        recent.take(watched(*(lock(0x1000 + n, 0.01 * n) for n in range(20)), lock(0x9, 5.0, "idle")), float(second))
    found = recent.of("chat")
    assert [each.address for each in found] == [f"{0x1000 + n:#x}" for n in (19, 18, 17, 16, 15)]
    assert len(found) == LOCKS_SHOWN
    assert found[0].waiting_threads == pytest.approx(0.19)
    assert found[0].waits_per_second == pytest.approx(10)
    assert (found[0].tgid, found[0].kind, found[0].waiters, found[0].line) == (7, "lock", 1, None)
    assert recent.of("other") == ()


def test_seconds_without_a_wait_count_and_old_ones_do_not() -> None:
    recent = RecentLocks(10.0)
    recent.take(watched(lock(0x1, 1.0)), 0.0)
    for second in range(1, 4):
        recent.take(watched(), float(second))
    (found,) = recent.of("chat")
    assert found.waiting_threads == pytest.approx(0.25)
    assert found.waiters == 0, "who waited then does not wait now"
    recent.take(watched(), 10.0)
    assert recent.of("chat") == ()
    recent.take(report(), 30.0)
    assert recent._seen == {}


def test_coverage_of_processes_that_differ() -> None:
    def covers(tgid: int, state: str, **more: object) -> m.Coverage:
        return m.Coverage(engine="chat", tgid=tgid, set="cuda_sync", state=state, **more)  # type: ignore[arg-type]

    (same,) = summary([covers(1, "on"), covers(2, "on")], "chat")
    assert (same.state, same.missing) == ("on", ())
    (mixed,) = summary([covers(1, "on"), covers(2, "off", reason="static cudart", remedy="link it dynamically")], "chat")
    assert (mixed.state, mixed.missing, mixed.remedy) == ("part", ("process 2: static cudart",), "link it dynamically")
    (off,) = summary([covers(1, "off", reason="no libcuda")], "chat")
    assert (off.state, off.reason) == ("off", "no libcuda")
    (many,) = summary([covers(n, "off" if n else "on", reason=f"r{n}") for n in range(50)], "chat")
    assert len(many.missing) == 13
    assert many.missing[-1] == "and 37 more"
    assert summary([covers(1, "on")], "other") == ()
