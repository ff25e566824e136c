"""What is measured of drift, as points of the family `aie_drift_*`. What is not known is left out."""

from __future__ import annotations

from collections.abc import Iterator

from aie_agent.analysis.drift.collapse import alike_since_s
from aie_agent.analysis.drift.rule import WINDOW
from aie_agent.analysis.drift.stream import EngineStream
from aie_agent.analysis.drift.watch import StatisticWatch
from aie_agent.samples import Point, Tags
from aie_telemetry.catalogue import CATALOGUE


def points_of(engine: str, model: str, stream: EngineStream, now_s: float) -> Iterator[Point]:
    """Of one engine and model."""
    own = (("engine", engine), ("model", model))
    header = stream.reference.header
    described = (("reference", header.sha256[:12]), ("traffic_class", header.about.traffic_class))
    yield _point("aie_drift_watching", own, float(stream.is_compared))
    yield _point("aie_drift_reference_info", own + described, 1.0)
    lengths = {
        "aie_drift_run_length_requests": stream.run_length_requests,
        "aie_drift_run_length_seconds": stream.run_length_s(now_s),
    }
    for metric, length in lengths.items():
        if length is not None:
            yield _point(metric, own, length)
    alike = alike_since_s(stream.watches)
    for name, watch in stream.watches.items():
        tags = (*own, ("statistic", name))
        yield _point("aie_drift_values_lost_total", tags, float(stream.lost[name]))
        for metric, value in _of_watch(watch, name in alike):
            if value is not None:
                yield _point(metric, tags, value)


def _of_watch(watch: StatisticWatch, is_equal: bool) -> Iterator[tuple[str, float | None]]:
    last = watch.last
    yield "aie_drift_values_total", float(watch.taken)
    yield "aie_drift_alarm", float(is_equal or bool(watch.alarms))
    yield "aie_drift_output_stability_ratio", watch.stability_ratio
    yield "aie_drift_outside_ratio", None if watch.last_outside is None else watch.last_outside / WINDOW
    yield "aie_drift_consecutive_windows", float(watch.consecutive)
    if watch.column.untested:
        return
    yield "aie_drift_unseen_ratio", None if watch.last_outside is None else watch.last_unseen / WINDOW
    yield "aie_drift_threshold_ratio", watch.column.threshold
    yield "aie_drift_distance_ratio", None if last is None else last.distance
    yield "aie_drift_running_distance_ratio", watch.running_distance()
    yield "aie_drift_windows_total", float(watch.windows)
    yield "aie_drift_windows_beyond_total", float(watch.windows_beyond)


def _point(name: str, tags: Tags, value: float) -> Point:
    return Point(name, CATALOGUE[name].kind, tags, value)
