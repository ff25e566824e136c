"""Reports of the BPF child as points for the store. Pure: the same reports give the same points.

Several reports make one batch, so everything is added up before it becomes a point: counters and histograms over the reports and an
engine's processes, levels over the processes of the last report.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.samples import HistogramPoint, Point, own_tags
from aie_ebpf.messages import Coverage, Cuda, Histogram, ProcessReport, Ready, Report, WindowClosed
from aie_telemetry.catalogue import CATALOGUE, Kind

MOST_MODULES: Final = 16
OTHER: Final = "other"
_LABEL_CHARS: Final = 100

_REASONS: Final = ("lock", "gil", "idle", "page_fault", "disk", "gpu_sync", "sleep")
"""The run queue is not among them: /proc has it, for kernels without BPF too."""

_LOCK_KINDS: Final = ("lock", "gil", "idle")

_FIELDS: Final = {"idle": "idle_futex"}
"""Of `Waits`, where it is not called as the reason is."""

_waits_of: Final = operator.attrgetter(*(_FIELDS.get(reason, reason) for reason in _REASONS))

_Key = tuple[str, tuple[str, ...]]


class _WaitKeys(NamedTuple):
    """Of one reason for which an engine's threads wait: its seconds, and where it is a lock the number of waits."""

    seconds: _Key
    waits: _Key | None


@functools.lru_cache(maxsize=256)
def _wait_keys(engine: str) -> tuple[_WaitKeys, ...]:
    return tuple(
        _WaitKeys(
            ("aie_process_wait_seconds_total", (engine, reason)),
            ("aie_process_lock_waits_total", (engine, reason)) if reason in _LOCK_KINDS else None,
        )
        for reason in _REASONS
    )


class UnfitError(Exception):
    """A report holds what no version of ours sends: one line."""


class Sums:
    """Amounts by metric and label values, in the catalogue's order of labels."""

    def __init__(self) -> None:
        self._amounts: dict[_Key, float] = {}
        self._histograms: dict[_Key, tuple[list[float], float]] = {}

    def add(self, name: str, labels: tuple[str, ...], amount: float) -> None:
        """Counters: what they rose. Gauges: parts of a level."""
        self.add_to((name, labels), amount)

    def add_to(self, key: _Key, amount: float) -> None:
        """As `add`."""
        self._amounts[key] = self._amounts.get(key, 0.0) + amount

    def most(self, name: str, labels: tuple[str, ...], amount: float) -> None:
        """Gauges of which the largest part counts."""
        self._amounts[name, labels] = max(self._amounts.get((name, labels), 0.0), amount)

    def observe(self, name: str, labels: tuple[str, ...], histogram: Histogram | None) -> None:
        """Histograms. Raises UnfitError for one with other buckets than the catalogue's."""
        if histogram is None:
            return
        if len(histogram.slots) != len(CATALOGUE[name].buckets) + 1:
            raise UnfitError(f"a histogram of {len(histogram.slots)} slots for {name}")
        counts, total = self._histograms.get((name, labels), ([0.0] * len(histogram.slots), 0.0))
        self._histograms[name, labels] = (list(map(operator.add, counts, histogram.slots)), total + histogram.total)

    def points(self) -> list[Point]:
        """All amounts; those of counters as deltas."""
        return [
            Point(name, CATALOGUE[name].kind, own_tags(name, labels), amount, CATALOGUE[name].kind is Kind.COUNTER)
            for (name, labels), amount in self._amounts.items()
        ]

    def histograms(self) -> list[HistogramPoint]:
        """All distributions, as deltas."""
        return [
            HistogramPoint(name, own_tags(name, labels), CATALOGUE[name].buckets, tuple(counts), total, True)
            for (name, labels), (counts, total) in self._histograms.items()
        ]


class Levels(NamedTuple):
    """What stays as it was said last: the costs of a probe, what is attached, and the kinds of memory that an engine ever held."""

    ready: Ready
    coverage: Sequence[Coverage]
    kinds: Mapping[str, Iterable[str]]


WHOLE: Final = (
    "aie_cuda_memory_class_bytes",
    "aie_cuda_memory_module_bytes",
    "aie_agent_probe_overhead_ratio",
    "aie_agent_probes_attached",
)
"""Metrics of which a report that came has every series there is."""


def add_up(messages: Sequence[Report | WindowClosed], levels: Levels) -> Sums:
    """All that the messages tell, in the order in which they came. Raises UnfitError."""
    sums = Sums()
    reports = [each for each in messages if isinstance(each, Report)]
    for each in messages:
        if isinstance(each, WindowClosed):
            sums.add("aie_agent_probe_window_stolen_seconds_total", (_label(each.engine), _label(each.set)), each.stolen_s)
    for report in reports:
        _host(report, sums)
        _costs(report, sums)
        _waits(report.processes, sums)
        for process in report.processes:
            _process(process, sums)
    if reports:
        _levels(reports[-1], levels, sums)
    for kind, cost_ns in levels.ready.cost_ns.items():
        sums.most("aie_agent_probe_cost_seconds", (_label(kind),), cost_ns / 1e9)
    return sums


def kinds_held(report: Report) -> Iterable[tuple[str, str]]:
    """Engine and kind of all memory that a report tells of."""
    return {(each.engine, row.kind) for each in report.processes if each.cuda for row in each.cuda.allocations}


def _host(report: Report, sums: Sums) -> None:
    for io in report.block_io:
        labels = (_label(io.device), _label(io.op))
        sums.observe("aie_host_block_io_seconds", labels, io.seconds)
        sums.add("aie_host_block_io_bytes_total", labels, io.bytes)
    for _ in report.oom_kills:
        sums.add("aie_agent_events_total", ("oom_kill",), 1.0)


def _costs(report: Report, sums: Sums) -> None:
    for cost in report.costs:
        labels = (cost.engine, _label(cost.set))
        sums.add("aie_agent_probe_hits_total", labels, cost.hits)
        sums.add("aie_agent_probe_seconds_total", labels, cost.seconds)
    for name, count in report.lost.items():
        sums.add("aie_agent_probe_lost_total", (_label(name),), count)
    sums.add("aie_agent_bpf_cpu_seconds_total", (), report.cpu_s)
    sums.add("aie_agent_bpf_read_seconds_total", (), report.read_s)


def _waits(processes: Iterable[ProcessReport], sums: Sums) -> None:
    """Added up by engine first: one has dozens of processes, and a sum has a name and labels."""
    of_engines: dict[str, list[float | None]] = {}
    for process in processes:
        totals = of_engines.setdefault(process.engine, [None] * len(_REASONS))
        for place, seconds in enumerate(_waits_of(process.waits)):
            if seconds is not None:
                totals[place] = (totals[place] or 0.0) + seconds
    for engine, totals in of_engines.items():
        for (key, of_lock), total in zip(_wait_keys(engine), totals, strict=True):
            if total is not None:
                sums.add_to(key, total)
                if of_lock is not None:  # a kind that is seen and did not happen stands at 0
                    sums.add_to(of_lock, 0.0)


def _process(process: ProcessReport, sums: Sums) -> None:
    engine = process.engine
    if process.waits.gpu_spin is not None:
        sums.add("aie_process_gpu_spin_seconds_total", (engine,), process.waits.gpu_spin)
    for lock in process.locks:
        sums.add("aie_process_lock_waits_total", (engine, _label(lock.kind)), lock.waits)
    sums.observe("aie_process_run_queue_delay_seconds", (engine,), process.run_queue)
    sums.observe("aie_process_off_cpu_seconds", (engine,), process.off_cpu)
    sums.observe("aie_process_gc_seconds", (engine,), process.gc)
    if process.cuda is not None:
        _cuda(engine, process.cuda, sums)


def _cuda(engine: str, cuda: Cuda, sums: Sums) -> None:
    for row in cuda.allocations:
        labels = (engine, _label(row.kind))
        sums.add("aie_cuda_memory_allocated_bytes_total", labels, row.allocated_bytes)
        sums.add("aie_cuda_memory_freed_bytes_total", labels, row.freed_bytes)
        sums.add("aie_cuda_allocations_total", labels, row.allocations)
        sums.add("aie_cuda_frees_total", labels, row.frees)
    for failure in cuda.failures:
        sums.add("aie_cuda_failures_total", (engine, _label(failure.call), str(failure.code)), failure.count)
    for sync in cuda.syncs:
        sums.observe("aie_cuda_sync_seconds", (engine, _label(sync.call)), sync.seconds)
    for copy in cuda.copies:
        labels = (engine, _label(copy.direction))
        sums.add("aie_cuda_copy_bytes_total", labels, copy.bytes)
        sums.observe("aie_cuda_copy_size_bytes", labels, copy.sizes)
        sums.most("aie_cuda_copy_burst_bytes", labels, copy.burst_bytes)
    for call, count in cuda.launches.items():
        sums.add("aie_cuda_launches_total", (engine, _label(call)), count)
    if cuda.allocations or cuda.unknown_frees:
        sums.add("aie_cuda_unknown_frees_total", (engine,), cuda.unknown_frees)


def _levels(report: Report, levels: Levels, sums: Sums) -> None:
    sums.add("aie_agent_bpf_resident_bytes", (), report.resident_bytes)
    for cost in report.costs:
        sums.add("aie_agent_probe_overhead_ratio", (cost.engine,), cost.ratio)
    for each in levels.coverage:
        if each.state in ("on", "part") and each.probes:  # tracepoints are the host's, and attached to nobody
            sums.add("aie_agent_probes_attached", (each.engine, _label(each.set)), each.probes)
    for engine in dict.fromkeys(each.engine for each in report.processes if each.cuda is not None):
        cudas = [each.cuda for each in report.processes if each.engine == engine and each.cuda is not None]
        _memory(engine, cudas, levels.kinds.get(engine, ()), sums)
        _syncs_now(engine, cudas, sums)


def _memory(engine: str, cudas: Sequence[Cuda], kinds: Iterable[str], sums: Sums) -> None:
    for kind in kinds:  # what was held and is not any more stands at 0
        sums.add("aie_cuda_memory_outstanding_bytes", (engine, _label(kind)), 0.0)
        sums.add("aie_cuda_memory_outstanding_allocations", (engine, _label(kind)), 0.0)
    modules: Counter[str] = Counter()
    for row in (row for cuda in cudas for row in cuda.allocations):
        sums.add("aie_cuda_memory_outstanding_bytes", (engine, _label(row.kind)), row.outstanding_bytes)
        sums.add("aie_cuda_memory_outstanding_allocations", (engine, _label(row.kind)), row.outstanding)
        if row.outstanding_bytes:
            sums.add("aie_cuda_memory_class_bytes", (engine, str(row.size_class_bytes)), row.outstanding_bytes)
            modules[_label(row.module)] += row.outstanding_bytes
    for rank, (module, held_bytes) in enumerate(modules.most_common()):
        sums.add("aie_cuda_memory_module_bytes", (engine, module if rank < MOST_MODULES else OTHER), held_bytes)


def _syncs_now(engine: str, cudas: Sequence[Cuda], sums: Sums) -> None:
    contexts = [cuda.contexts for cuda in cudas if cuda.contexts is not None]
    if contexts:
        sums.add("aie_cuda_contexts", (engine,), sum(contexts))
    syncs = [sync for cuda in cudas for sync in cuda.syncs]
    if syncs:
        sums.add("aie_cuda_sync_waiting", (engine,), sum(sync.waiting for sync in syncs))
        sums.most("aie_cuda_sync_longest_wait_seconds", (engine,), max(sync.longest_wait_s for sync in syncs))


def _label(text: str) -> str:
    """A word of the child's as a label: printable and short, since file names of an engine's are its own to choose."""
    return "".join(each if each.isprintable() else "?" for each in text)[:_LABEL_CHARS] or "?"
