"""Series of the store as OpenTelemetry's data: pure functions, and a memory of when each counter began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics import Exemplar as OtlpExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from aie_agent.outputs.otlp.names import NAMES, Instrument, Name, foreign_name
from aie_agent.samples import Tags
from aie_agent.series import HistogramSeries
from aie_agent.store import AnySeries
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exemplars import Exemplar

_REMEMBERED_NS: Final = 3600 * 1_000_000_000
_LARGEST_COUNT: Final = 2.0**63
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class Reading(NamedTuple):
    """A series at one moment: `value` of a counter or gauge; of a histogram its sum, `counts` of its buckets, and `exemplars`, the
    observations that are known with their traces."""

    name: str
    kind: Kind
    tags: Tags
    value: float
    bounds: tuple[float, ...] = ()
    counts: Sequence[float] = ()
    exemplars: tuple[Exemplar, ...] = ()

    @property
    def observed(self) -> float:
        """What must not fall while a series goes on: a counter's value, or how many observations a histogram has."""
        return sum(self.counts) if self.kind is Kind.HISTOGRAM else self.value


def is_sendable(reading: Reading) -> bool:
    """Whether OTLP can say it, and it is what the catalogue says: one point that cannot be encoded would take all others along."""
    metric = CATALOGUE.get(reading.name)
    if metric is not None and metric.kind is not reading.kind:
        return False
    return all(count >= 0 for count in reading.counts) and sum(reading.counts) < _LARGEST_COUNT


def readings(series: Iterable[AnySeries], now_s: float) -> list[Reading]:
    """What of them is known at `now_s`. Cheap: to be called on the thread that writes the store; the rest may be done elsewhere."""
    return [
        Reading(each.name, each.kind, each.tags, each.total, each.bounds, each.counts, _exemplars(each, now_s))
        if isinstance(each, HistogramSeries)
        else Reading(each.name, each.kind, each.tags, each.value)
        for each in series
        if each.valid_until_s >= now_s
    ]


def _exemplars(series: HistogramSeries, now_s: float) -> tuple[Exemplar, ...]:
    """In the order in which they were observed, as backends want them."""
    return tuple(sorted(series.fresh_exemplars(now_s).values(), key=lambda each: each.time_s)) if series.exemplars else ()


class _Stream(NamedTuple):
    """What one metric of a request is: two of another kind or unit are two, whatever others call theirs."""

    name: str
    unit: str
    instrument: Instrument


class _Seen(NamedTuple):
    """Of a counter: since when it has counted, what it was last, and when."""

    start_ns: int
    observed: float
    time_ns: int


class Starts:
    """Since when each counter and histogram has counted, as far as this process can tell: since it was seen first, or fell."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Tags], _Seen] = {}

    def update(self, read: Sequence[Reading], now_ns: int) -> list[int]:
        """The start of each reading, in ns since the epoch; 0 of gauges, which have none. What was away for an hour is forgotten:
        until then it goes on where it was, so that a gap is no reset."""
        starts = []
        for each in read:
            start_ns = 0
            if each.kind is not Kind.GAUGE:
                key, observed = (each.name, each.tags), each.observed
                before = self._seen.get(key)
                start_ns = now_ns if before is None or observed < before.observed else before.start_ns
                self._seen[key] = _Seen(start_ns, observed, now_ns)
            starts.append(start_ns)
        self._seen = {key: seen for key, seen in self._seen.items() if now_ns - seen.time_ns < _REMEMBERED_NS}
        return starts


class Exemplars:
    """Which exemplars a collector has: each is told once, and again as long as it did not get there."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, Tags], frozenset[Exemplar]] = {}

    def untold(self, read: Sequence[Reading]) -> list[Reading]:
        """The same, with those exemplars only that are not told yet."""
        return [each._replace(exemplars=self._new(each)) if each.exemplars else each for each in read]

    def told(self, read: Sequence[Reading]) -> None:
        """What was read got there, all of it."""
        self._told = {(each.name, each.tags): frozenset(each.exemplars) for each in read if each.exemplars}

    def _new(self, reading: Reading) -> tuple[Exemplar, ...]:
        told = self._told.get((reading.name, reading.tags), frozenset())
        return tuple(each for each in reading.exemplars if each not in told)


def metrics_data(
    read: Sequence[Reading], starts: Sequence[int], now_ns: int, resource: Resource, scope: InstrumentationScope
) -> MetricsData:
    """One request's worth: readings as cumulative points, grouped by OpenTelemetry's name."""
    described = _gpu_descriptions(read)
    names: dict[_Stream, tuple[Name, str]] = {}
    points: dict[_Stream, list[NumberDataPoint | HistogramDataPoint]] = defaultdict(list)
    for each, start_ns in zip(read, starts, strict=True):
        name = NAMES.get(each.name) or foreign_name(each.name, each.kind)
        stream = _Stream(name.name, name.unit, name.instrument)
        names.setdefault(stream, (name, CATALOGUE[each.name].help if each.name in CATALOGUE else ""))
        points[stream].append(_point(each, _attributes(each.tags, name, described), start_ns, now_ns))
    metrics = [
        Metric(name.name, help_, name.unit, _data(name.instrument, points[stream])) for stream, (name, help_) in names.items()
    ]
    scoped = ScopeMetrics(scope, metrics, scope.schema_url or "")
    return MetricsData([ResourceMetrics(resource, [scoped], resource.schema_url)])


def _point(reading: Reading, attributes: Mapping[str, str], start_ns: int, now_ns: int) -> NumberDataPoint | HistogramDataPoint:
    if reading.kind is not Kind.HISTOGRAM:
        return NumberDataPoint(attributes, start_ns, now_ns, reading.value)
    counts = [round(count) for count in reading.counts]  # sampled observations weigh a fraction more or less
    unknown: Any = None  # the smallest and largest value, which OTLP need not have
    told = [_exemplar(each) for each in reading.exemplars]
    return HistogramDataPoint(
        *(attributes, start_ns, now_ns, sum(counts), reading.value, counts, reading.bounds, unknown, unknown),
        exemplars=told,
    )


def _exemplar(exemplar: Exemplar) -> OtlpExemplar:
    ids = int(exemplar.span_id, 16), int(exemplar.trace_id, 16)
    return OtlpExemplar({}, exemplar.value, round(exemplar.time_s * 1e9), *ids)


def _data(instrument: Instrument, points: list[Any]) -> Sum | Gauge | Histogram:
    if instrument is Instrument.HISTOGRAM:
        return Histogram(points, _CUMULATIVE)
    if instrument is Instrument.GAUGE:
        return Gauge(points)
    return Sum(points, _CUMULATIVE, instrument is Instrument.COUNTER)


def _attributes(tags: Tags, name: Name, described: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    found = dict(name.constants)
    for label, value in tags:
        renamed = name.labels.get(label, label)
        found[renamed] = name.values.get(value, value) if label in name.labels else value
        if renamed == "hw.id":
            found.update(described.get(value, {}))
    return found


def _gpu_descriptions(read: Iterable[Reading]) -> dict[str, dict[str, str]]:
    """What the conventions tell of a GPU with each of its points, by the label `gpu`."""
    found = {}
    for each in read:
        if each.name == "aie_gpu_info":
            labels = dict(each.tags)
            found[labels["gpu"]] = {
                "hw.name": labels.get("name", ""),
                "aie.gpu.uuid": labels.get("uuid", ""),  # NVML's, which is no serial number
                "hw.vendor": "NVIDIA",
            }
    return found
