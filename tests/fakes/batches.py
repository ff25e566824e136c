"""What every batch of every source must be, and look-ups in one."""

from __future__ import annotations

from aie_agent.samples import Batch, HistogramPoint
from aie_telemetry.catalogue import CATALOGUE, Kind


def assert_in_catalogue(batch: Batch) -> None:
    """Every point has a name of the catalogue, its kind and exactly its labels, and stands there once."""
    seen = set()
    for point in batch.points:
        metric = CATALOGUE[point.name]
        assert point.kind is metric.kind, point
        assert tuple(sorted(metric.labels)) == tuple(name for name, _ in point.tags), point
        assert (point.name, point.tags) not in seen, point
        seen.add((point.name, point.tags))
    for histogram in batch.histograms:
        assert CATALOGUE[histogram.name].kind is Kind.HISTOGRAM
        assert len(histogram.counts) == len(histogram.bounds) + 1


def value(batch: Batch, name: str, **labels: str) -> float | None:
    """The value of the one point with this name and these labels; None without one."""
    found = [point.value for point in batch.points if point.name == name and set(labels.items()) <= set(point.tags)]
    assert len(found) <= 1, found
    return found[0] if found else None


def histogram(batch: Batch, name: str) -> HistogramPoint:
    """The one histogram with this name."""
    (found,) = [histogram for histogram in batch.histograms if histogram.name == name]
    return found
