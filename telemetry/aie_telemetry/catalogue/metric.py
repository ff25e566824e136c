"""What a row of the catalogue is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a metric's samples combine: a counter only rises, a gauge is a level, a histogram is a distribution."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue. `buckets` are a histogram's upper bounds in `unit`, ascending, without +Inf."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


def counter(name: str, unit: str, labels: tuple[str, ...], help_: str) -> Metric:
    """A row whose samples only rise."""
    return Metric(name, Kind.COUNTER, unit, labels, help_)


def gauge(name: str, unit: str, labels: tuple[str, ...], help_: str) -> Metric:
    """A row whose samples are levels."""
    return Metric(name, Kind.GAUGE, unit, labels, help_)


def histogram(name: str, unit: str, labels: tuple[str, ...], help_: str, buckets: tuple[float, ...]) -> Metric:
    """A row whose samples are distributions over `buckets`."""
    return Metric(name, Kind.HISTOGRAM, unit, labels, help_, buckets)
