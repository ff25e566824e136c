"""Counters, gauges and histograms of catalogue metrics, and the page that shows them.

Not `prometheus_client`: there an observation walks the buckets one by one and takes no weight, while a step of an engine ends
with many equal observations at once (`observe(value, count)`); and names, labels, help and buckets come from the catalogue here,
so that nothing can be exported that is not in it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from aie_telemetry.catalogue import CATALOGUE, Kind, Metric
from aie_telemetry.exemplars import Exemplar, texts
from aie_telemetry.exposition import HistogramText, header, label_text, number


class Value:
    """One counter or gauge series."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0) -> None:
        """Adds `amount`; for counters it must not be negative, which the caller sees to."""
        with self._lock:
            self.value += amount

    def set(self, value: float) -> None:
        """Sets the level of a gauge, or a counter that is kept elsewhere."""
        self.value = float(value)


class Distribution:
    """One histogram series. `counts` holds one number per bucket, not cumulative, the last one above every bound."""

    __slots__ = ("_bounds", "_lock", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.exemplars: dict[int, Exemplar] = {}
        self.counts = [0.0] * (len(bounds) + 1)
        self.total = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, count: float = 1.0) -> None:
        """Records `count` equal observations of `value`, in the metric's unit. `count` may be a weight."""
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self.counts[bucket] += count
            self.total += value * count

    def exemplify(self, exemplar: Exemplar) -> None:
        """Shows an observation, which was recorded already, behind its bucket, in place of the one before."""
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar


class Registry:
    """The instruments of one process. Thread-safe; a series appears on the page once it has been asked for."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], tuple[Value, str]]] = {}
        self._distributions: dict[str, dict[tuple[str, ...], tuple[Distribution, HistogramText]]] = {}
        self._lock = threading.Lock()

    def value(self, name: str, *label_values: str) -> Value:
        """The counter or gauge `name` with these label values, in the catalogue's order.

        Raises KeyError for a name that is not in the catalogue, ValueError for a histogram or a wrong number of labels.
        """
        metric = _metric(name, label_values)
        if metric.kind is Kind.HISTOGRAM:
            raise ValueError(f"{name} is a histogram")
        with self._lock:
            series = self._values.setdefault(name, {})
            if label_values not in series:
                prefix = name + label_text(zip(metric.labels, label_values, strict=True)) + " "
                series[label_values] = (Value(), prefix)
            return series[label_values][0]

    def distribution(self, name: str, *label_values: str) -> Distribution:
        """The histogram `name` with these label values. Raises as `value` does."""
        metric = _metric(name, label_values)
        if metric.kind is not Kind.HISTOGRAM:
            raise ValueError(f"{name} is a {metric.kind}")
        with self._lock:
            series = self._distributions.setdefault(name, {})
            if label_values not in series:
                tags = tuple(zip(metric.labels, label_values, strict=True))
                series[label_values] = (Distribution(metric.buckets), HistogramText(name, tags, metric.buckets))
            return series[label_values][0]

    def remove(self, name: str, *label_values: str) -> None:
        """Takes a counter or gauge series off the page: an unknown value is absent, never 0."""
        with self._lock:
            self._values.get(name, {}).pop(label_values, None)

    def render(self, *, openmetrics: bool = False) -> str:
        """The page, families in the catalogue's order; as OpenMetrics it has exemplars."""
        with self._lock:
            values = {name: list(series.values()) for name, series in self._values.items()}
            distributions = {name: list(series.values()) for name, series in self._distributions.items()}
        parts = []
        for name, metric in CATALOGUE.items():
            if not (name in values or name in distributions):
                continue
            parts.append(header(name, metric.kind, metric.help, openmetrics=openmetrics))
            parts += [f"{prefix}{number(value.value)}\n" for value, prefix in values.get(name, ())]
            for each, text in distributions.get(name, ()):
                shown = texts(dict(each.exemplars)) if openmetrics else {}
                parts.append(text.render(list(each.counts), each.total, shown, openmetrics=openmetrics))
        return "".join(parts) + ("# EOF\n" if openmetrics else "")


def _metric(name: str, label_values: tuple[str, ...]) -> Metric:
    metric = CATALOGUE[name]
    if len(label_values) != len(metric.labels):
        raise ValueError(f"{name} takes the labels {metric.labels}, not {len(label_values)} values")
    return metric
