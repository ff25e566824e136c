"""Lines of StatsD through the parser into an aggregator, and what it makes of them."""

from __future__ import annotations

from aie_agent.samples import HistogramPoint, Point
from aie_agent.sources.statsd_aggregate import ANONYMOUS, Aggregator
from aie_agent.sources.statsd_series import Identity
from aie_telemetry.statsd import Parser, Sample


def feed(aggregator: Aggregator, *lines: str, sender: int = ANONYMOUS) -> list[Identity | None]:
    return [aggregator.add(sample, sender) for line in lines for sample in parsed(line)]


def parsed(line: str) -> list[Sample]:
    return [sample for parsed in Parser().packet(line.encode()) for sample in parsed.samples]


def taken(*lines: str, now_s: float = 100.0) -> tuple[list[Point], list[HistogramPoint], Aggregator]:
    aggregator = Aggregator()
    feed(aggregator, *lines)
    points, histograms, overflows = aggregator.swap(now_s).points()
    assert overflows == 0
    return points, histograms, aggregator


def the_point(*lines: str) -> Point:
    points, histograms, aggregator = taken(*lines)
    assert not histograms
    assert not aggregator.refused
    (point,) = points
    return point
