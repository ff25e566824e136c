"""Which series a StatsD sample belongs to: its name, kind, labels and buckets in our vocabulary, or why it is refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aie_agent.samples import Tags
from aie_agent.sources import accepted
from aie_agent.sources.statsd_reasons import Reason
from aie_telemetry.catalogue import CATALOGUE, RESERVED_PREFIX, Kind
from aie_telemetry.exposition import label_name, metric_name
from aie_telemetry.names import is_engine_name
from aie_telemetry.statsd import Sample

HELLO: Final = "aie_hooks_process"

GENERAL_BOUNDS: Final = (*(float(f"{step}e{exponent}") for exponent in range(-6, 6) for step in (1, 2, 5)), 1e6)
"""Buckets of a distribution that is not in the catalogue: 1, 2, 5 times every power of ten from 1e-6 to 1e6. Wide enough for
seconds, bytes-per-something and counts alike; a quantile read from them is off by half a bucket, a factor of 1.6, at most."""

MAX_TEXT: Final = 1024
"""Most characters of a series' name and labels together, so that the number of series also bounds their memory."""

_KINDS: Final = {
    "counter": Kind.COUNTER,
    "gauge": Kind.GAUGE,
    "set": Kind.GAUGE,
    "timing": Kind.HISTOGRAM,
    "histogram": Kind.HISTOGRAM,
    "distribution": Kind.HISTOGRAM,
}
_MILLISECOND_SUFFIXES: Final = ("_milliseconds", "_millis", "_msec", "_ms")
_HISTOGRAM_SUFFIXES: Final = ("_bucket", "_sum", "_count")


class Identity(NamedTuple):
    """Who a sample says it comes from. `claimed_pid` is from a hello line, as the sender sees itself."""

    engine: str
    claimed_pid: int | None = None


class Series(NamedTuple):
    """A series as the store will know it. `bounds` are a histogram's. `identity` is set where a tag names an engine."""

    name: str
    kind: Kind
    tags: Tags
    bounds: tuple[float, ...] = ()
    identity: Identity | None = None


def verdict(sample: Sample) -> tuple[str, Reason | None]:
    """The name of the series that a sample would go to, and why the agent would refuse it, or None where it would take it.

    As far as the sample alone can tell: what depends on others (the caps, a name known as another kind) is not in it. A hello
    line, which becomes no series, keeps its name.
    """
    if sample.name == HELLO:
        return HELLO, Reason.BAD_HELLO if hello_of(sample.type, sample.tags) is None else None
    series = series_of(sample.name, sample.type, sample.tags)
    reason = series if isinstance(series, Reason) else value_refusal(sample)
    return series_name(sample.name, sample.type), reason


def value_refusal(sample: Sample) -> Reason | None:
    """Why a value is not taken whose series is. StatsD lets a counter fall, Prometheus does not: there it reads as a restart."""
    if sample.type == "counter" and sample.value < 0:  # type: ignore[operator]  # only a set's value is text
        return Reason.NEGATIVE_COUNTER
    return None


def series_name(name: str, type_: str) -> str:
    """The name that the store and Prometheus know for a metric of this name and StatsD type."""
    return metric_name(_in_seconds(name) if type_ == "timing" else name)


def series_of(name: str, type_: str, tags: Tags) -> Series | Reason:
    """The series of a sample with this name, StatsD type and tags, or the reason for which it is refused."""
    if len(name) + sum(len(key) + len(value) for key, value in tags) > MAX_TEXT:
        return Reason.SERIES_TOO_LONG
    kind = _KINDS[type_]
    name = series_name(name, type_)
    labels = {_label(key): value for key, value in tags if value}
    identity = _identity(labels)
    if name.startswith(RESERVED_PREFIX):
        reason = Reason.KIND_CONFLICT if type_ == "set" else accepted.refusal(name, kind, labels.keys())
        if reason is None and identity is None:
            reason = Reason.BAD_LABELS  # an engine by a name that is none
        if reason is not None:
            return Reason(reason)
    bounds: tuple[float, ...] = ()
    if kind is Kind.HISTOGRAM:
        metric = CATALOGUE.get(name)
        bounds = GENERAL_BOUNDS if metric is None else metric.buckets
    return Series(name, kind, tuple(sorted(labels.items())), bounds, identity)


def hello_of(type_: str, tags: Tags) -> Identity | None:
    """Who says hello in a line `aie_hooks_process,engine=NAME,pid=N:1|g`; None for a line that does not say it right."""
    if type_ != "gauge":
        return None
    labels = dict(tags)
    identity = _identity(labels)
    pid = labels.get("pid", "")
    # Pids end at 2^22; a longer number is not worth converting.
    if identity is None or not (pid.isascii() and pid.isdigit() and len(pid) <= 7):
        return None
    return identity._replace(claimed_pid=int(pid))


def conflicts(name: str, kind: Kind, known: Mapping[str, Kind]) -> bool:
    """Whether a metric of this kind would fall together with a known one on a Prometheus page, where a histogram `x` also
    takes the names `x_bucket`, `x_sum` and `x_count`."""
    if name in known:
        return known[name] is not kind
    if kind is Kind.HISTOGRAM:
        return any(f"{name}{suffix}" in known for suffix in _HISTOGRAM_SUFFIXES)
    return any(known.get(base) is Kind.HISTOGRAM for base in _bases(name))


def _bases(name: str) -> Iterable[str]:
    return (name.removesuffix(suffix) for suffix in _HISTOGRAM_SUFFIXES if name.endswith(suffix))


def _in_seconds(name: str) -> str:
    """The name of a timing, whose values become seconds: a suffix that says milliseconds gives way."""
    for suffix in _MILLISECOND_SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return f"{name.removesuffix(suffix)}_seconds"
    return name if name.endswith("_seconds") else f"{name}_seconds"


def _label(key: str) -> str:
    """`le` is a histogram's own label."""
    name = label_name(key)
    return "le_" if name == "le" else name


def _identity(labels: Mapping[str, str]) -> Identity | None:
    engine = labels.get("engine")
    return Identity(engine) if engine is not None and is_engine_name(engine) else None
