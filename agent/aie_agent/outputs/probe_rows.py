"""What probes see of one engine, as the API's snapshot shows it: rates and levels of `aie_process_wait_*` and `aie_cuda_*`."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aie_agent.analysis.window import increase, observation_rate, quantiles_of, rate
from aie_agent.series import HistogramSeries, Series
from aie_agent.sources.bpf.build import Probes
from aie_agent.store import Store
from aie_telemetry import api

SIZE_CLASSES_SHOWN: Final = 5


def probe_fields(store: Store, probes: Probes, engine: str, now_s: float, start_s: float) -> Mapping[str, Any]:
    """The fields of `api.Engine` that probes fill, at `now_s`; rates since `start_s`."""
    view = _View(store, engine, now_s, start_s)
    return {
        "waits": _waits(view),
        "locks": probes.locks(engine),
        "cuda": _cuda(view),
        "coverage": probes.coverage(engine),
        "probe_overhead_ratio": view.level("aie_agent_probe_overhead_ratio"),
    }


class _View:
    """An engine's series that still count."""

    def __init__(self, store: Store, engine: str, now_s: float, start_s: float) -> None:
        self._store = store
        self._engine = engine
        self._now_s = now_s
        self._start_s = start_s

    def level(self, metric: str) -> float | None:
        """The sum of gauges."""
        return self._store.current(metric, self._now_s, engine=self._engine)

    def levels(self, metric: str, label: str) -> dict[str, float]:
        """Gauges by the value of a label."""
        return {_value(series, label): series.value for series in self._series(metric)}

    def rate(self, metric: str) -> float | None:
        """Per second, of counters taken together."""
        return rate(self._series(metric), self._start_s, self._now_s)

    def rates(self, metric: str, label: str) -> dict[str, float]:
        """Per second, of counters by the value of a label."""
        found = {_value(series, label): rate([series], self._start_s, self._now_s) for series in self._series(metric)}
        return {value: each for value, each in found.items() if each is not None}

    def rises(self, metric: str, *labels: str) -> dict[str, float]:
        """How much counters rose since the start, by the values of labels; only those that did."""
        found = {
            ":".join(_value(series, label) for label in labels): increase(series, self._start_s, self._now_s)
            for series in self._series(metric)
        }
        return {value: each[0] for value, each in found.items() if each is not None and each[0] > 0}

    def histograms(self, metric: str) -> list[HistogramSeries]:
        """Distributions."""
        return [each for each in self._store.histograms(metric, engine=self._engine) if each.valid_until_s >= self._now_s]

    def calls(self, series: HistogramSeries) -> tuple[float, float | None, float | None]:
        """Observations per second, their median and 99th percentile."""
        p50, p99 = quantiles_of([series], self._start_s, (0.5, 0.99))
        return observation_rate([series], self._start_s, self._now_s) or 0.0, p50, p99

    def _series(self, metric: str) -> list[Series]:
        return [each for each in self._store.scalars(metric, engine=self._engine) if each.valid_until_s >= self._now_s]


def _waits(view: _View) -> api.Waits | None:
    """None where nothing at all is known, /proc's part included."""
    reasons = view.rates("aie_process_wait_seconds_total", "reason")
    known = {name: reasons[name] for name in api.Waits.__struct_fields__ if name in reasons}
    on_cpu, run_queue = view.rate("aie_process_cpu_seconds_total"), view.rate("aie_process_run_queue_seconds_total")
    if not known and on_cpu is None and run_queue is None:
        return None
    # A thread that spins in a synchronisation is on a CPU, and counts there: each thread is in one place.
    spinning = view.rate("aie_process_gpu_spin_seconds_total") or 0.0
    running = None if on_cpu is None else max(on_cpu - spinning, 0.0)
    return api.Waits(**(known | {"running": running, "run_queue": run_queue}))


def _cuda(view: _View) -> api.CudaUse | None:
    """None where no probe sees a CUDA call of the engine."""
    outstanding = view.levels("aie_cuda_memory_outstanding_bytes", "kind")
    copies = _copies(view)
    syncs = dict(_syncs(view))
    contexts = view.level("aie_cuda_contexts")
    launches = view.rates("aie_cuda_launches_total", "call")
    failures = view.rises("aie_cuda_failures_total", "call", "code")
    if not (outstanding or copies or syncs or launches or failures) and contexts is None:
        return None
    classes = view.levels("aie_cuda_memory_class_bytes", "size_class")
    waiting = view.level("aie_cuda_sync_waiting")
    return api.CudaUse(
        outstanding_bytes=outstanding,
        outstanding_allocations=view.level("aie_cuda_memory_outstanding_allocations"),
        by_module=view.levels("aie_cuda_memory_module_bytes", "module"),
        by_size_class_bytes=dict(heapq.nlargest(SIZE_CLASSES_SHOWN, classes.items(), key=lambda item: item[1])),
        allocated_bytes_per_second=view.rate("aie_cuda_memory_allocated_bytes_total"),
        freed_bytes_per_second=view.rate("aie_cuda_memory_freed_bytes_total"),
        allocations_per_second=view.rate("aie_cuda_allocations_total"),
        unknown_frees_per_second=view.rate("aie_cuda_unknown_frees_total"),
        copies=copies,
        syncs=syncs,
        sync_waiting=None if waiting is None else int(waiting),
        sync_longest_wait_seconds=view.level("aie_cuda_sync_longest_wait_seconds"),
        launches_per_second=launches,
        contexts=None if contexts is None else int(contexts),
        failures=failures,
    )


def _copies(view: _View) -> dict[str, api.CudaCopies]:
    bursts = view.levels("aie_cuda_copy_burst_bytes", "direction")
    return {
        direction: api.CudaCopies(bytes_per_second=each, burst_bytes=bursts.get(direction))
        for direction, each in view.rates("aie_cuda_copy_bytes_total", "direction").items()
    }


def _syncs(view: _View) -> Iterable[tuple[str, api.CudaSyncs]]:
    for series in view.histograms("aie_cuda_sync_seconds"):
        per_second, p50, p99 = view.calls(series)
        yield _value(series, "call"), api.CudaSyncs(calls_per_second=per_second, p50_seconds=p50, p99_seconds=p99)


def _value(series: Series | HistogramSeries, label: str) -> str:
    return dict(series.tags).get(label, "")
