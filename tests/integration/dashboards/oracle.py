"""What panels mean, in Python: evaluated over an invented history of two hosts, as PromQL evaluates their queries over the same.

A meaning is written down apart from the query, and knows nothing of PromQL: which metric, by which labels, added up or the largest.
In the history every series has a number of its own, so that another metric, sum or label gives another answer.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from aie_telemetry.catalogue import CATALOGUE, Kind, Metric

Labels = tuple[tuple[str, str], ...]
Rows = dict[Labels, float]
Meaning = Callable[[], Rows]

RANGE_S: Final = 1200.0
_HOSTS: Final = ("h", "i")
_VALUES: Final = {
    "outcome": ("ok", "error", "timeout", "cancelled"),
    "mode": ("user", "nice", "system", "irq", "softirq", "iowait", "steal", "idle"),
    "reason": ("hw_thermal", "lock", "idle", "low_utilization"),
    "kind": ("some", "idle"),
    "sensor": ("gpu", "memory"),
    "limit": ("slowdown", "shutdown"),
    "device": ("cuda0", "cpu"),
    "clock": ("sm", "memory", "video"),
    "type": ("corrected", "uncorrected"),
    "since": ("volatile", "aggregate"),
}
"""Of labels that queries choose by; of others, two names."""
_SHARES: Final = frozenset({"aie_engine_up"})
"""Metrics whose differences from 1 are looked at closely."""
_SINGLE: Final = frozenset({"aie_gpu_info"})
"""Metrics whose labels describe one thing."""
_MATCHER: Final = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_FIRST: Final = 1_000_000
"""What counters begin with: an agent that has run for long."""


@dataclass(frozen=True, slots=True)
class Series:
    """`level` of a gauge; of a counter what it rises by in a second."""

    labels: Labels
    level: float


def metric_of(name: str) -> Metric:
    """The row of the catalogue that a series is of."""
    return CATALOGUE.get(name) or CATALOGUE[re.sub(r"_(bucket|sum|count)$", "", name)]


def spread(names: Iterable[str], **given: tuple[str, ...]) -> list[Labels]:
    """Every combination of the values of labels: those given, and of each other name all that queries choose by, or two."""
    values = {**given, **{name: _VALUES.get(name, ("a", "b")) for name in names if name not in given}}
    return [tuple(sorted(zip(values, each, strict=True))) for each in itertools.product(*values.values())]


def combinations(metric: Metric) -> list[Labels]:
    """The labels of a metric's series, on two hosts."""
    if metric.name in _SINGLE:
        return spread((), job=("aie",), instance=_HOSTS, **{name: _VALUES.get(name, ("a", "b"))[:1] for name in metric.labels})
    return spread(metric.labels, job=("aie",), instance=_HOSTS)


def history(name: str) -> Iterator[Series]:
    """The series of a name: of a histogram its `_sum`, `_count`, or its buckets, which observations at two bounds fill."""
    metric = metric_of(name)
    seed = zlib.crc32(metric.name.encode()) % 997
    for number, labels in enumerate(combinations(metric)):
        more = 1.0 + number % 3
        if name.endswith("_count"):
            yield Series(labels, 2.0 + more)
            continue
        if not name.endswith("_bucket"):
            size = 1 / 4096 if name in _SHARES else 1  # a power of two, by which nothing is rounded
            yield Series(labels, (seed + 5 + number * number + 3 * number) * size)
            continue
        bounds = [*metric.buckets, float("inf")]
        first, second = (number + seed) % len(bounds), (5 * number + 2 * seed + 3) % len(bounds)
        for place, bound in enumerate(bounds):
            observed = 2.0 * (first <= place) + more * (second <= place)
            yield Series(tuple(sorted((*labels, ("le", "+Inf" if bound == float("inf") else f"{bound:g}")))), observed)


def written(name: str) -> dict[str, str]:
    """The same as promtool takes it, with a sample a minute."""
    counts = metric_of(name).kind is not Kind.GAUGE
    return {
        f"{name}{{{written_labels(each.labels)}}}": f"{_FIRST}+{each.level * 60:.17g}x40" if counts else f"{each.level:.17g}x40"
        for each in history(name)
    }


def written_labels(labels: Labels) -> str:
    """As they stand between braces."""
    return ", ".join(f'{name}="{value}"' for name, value in labels)


def _chosen(name: str, where: str) -> list[Series]:
    tests = _MATCHER.findall(where)

    def fits(labels: dict[str, str]) -> bool:
        return all(
            (re.fullmatch(value, labels[label]) is not None if "~" in operator else labels[label] == value)
            == (not operator.startswith("!"))
            for label, operator, value in tests
        )

    return [each for each in history(name) if fits(dict(each.labels))]


_OPERATIONS: Final[dict[str, Callable[[list[float]], float]]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "avg": lambda values: sum(values) / len(values),
    "count": lambda values: float(len(values)),
}


def _kept(rows: Iterable[tuple[Labels, float]], keep: str, operation: str) -> Rows:
    names = {"job", *filter(None, keep.split(", "))}
    groups: dict[Labels, list[float]] = {}
    for labels, value in rows:
        groups.setdefault(tuple(each for each in labels if each[0] in names), []).append(value)
    return {labels: _OPERATIONS[operation](values) for labels, values in groups.items()}


def level(name: str, keep: str, operation: str = "sum", where: str = "") -> Meaning:
    """What there is now, of each of the labels kept."""
    counts = metric_of(name).kind is Kind.COUNTER
    after = 1800.0 if counts else 0.0  # a count that is read as it is, after half an hour

    def rows() -> Rows:
        values = ((each.labels, _FIRST + each.level * after if counts else each.level) for each in _chosen(name, where))
        return _kept(values, keep, operation)

    return rows


def pace(name: str, keep: str, where: str = "") -> Meaning:
    """How fast it rises, a second."""
    return lambda: _kept(((each.labels, each.level) for each in _chosen(name, where)), keep, "sum")


def rise(name: str, keep: str, where: str = "") -> Meaning:
    """By how much it rose in the time shown."""
    return lambda: {labels: value * RANGE_S for labels, value in pace(name, keep, where)().items()}


def over(meaning: Meaning, operation: str) -> Meaning:
    """Of all of a job."""
    return lambda: _kept(meaning().items(), "", operation)


def share(part: Meaning, whole: Meaning) -> Meaning:
    """Of each, the one in parts of the other."""

    def rows() -> Rows:
        wholes = whole()
        return {labels: value / wholes[labels] for labels, value in part().items() if wholes.get(labels, 0.0) > 0}

    return rows


def ratio(part: str, whole: str, keep: str, operation: str, where: str = "") -> Meaning:
    """The largest, or the smallest, of shares of single series."""

    def rows() -> Rows:
        wholes = {each.labels: each.level for each in history(whole)}
        return _kept(((each.labels, each.level / wholes[each.labels]) for each in _chosen(part, where)), keep, operation)

    return rows


def scaled(meaning: Meaning, factor: float, more: float) -> Meaning:
    """So many times as much, and so much more."""
    return lambda: {labels: value * factor + more for labels, value in meaning().items()}


def largest(number: int, meaning: Meaning) -> Meaning:
    """So many."""
    return lambda: dict(sorted(meaning().items(), key=lambda row: row[1], reverse=True)[:number])


def quantile(at: float, name: str, keep: str) -> Meaning:
    """The value below which such a share of the observations is, evenly spread within a bucket."""

    def rows() -> Rows:
        buckets = pace(f"{name}_bucket", f"{keep}, le")()
        found: dict[Labels, list[tuple[float, float]]] = {}
        for labels, count in buckets.items():
            group = tuple(each for each in labels if each[0] != "le")
            found.setdefault(group, []).append((float(dict(labels)["le"]), count))
        return {labels: _interpolated(at, sorted(counts)) for labels, counts in found.items()}

    return rows


def _interpolated(at: float, counts: list[tuple[float, float]]) -> float:
    """As Prometheus does: from 0 in the first bucket where that is positive; beyond the last bound, that bound."""
    rank = at * counts[-1][1]
    place = next(place for place, (_, count) in enumerate(counts) if count >= rank)
    upper, count = counts[place]
    if place == len(counts) - 1:
        return counts[-2][0]
    if place == 0 and upper <= 0:
        return upper
    lower, below = counts[place - 1] if place else (0.0, 0.0)
    return lower + (upper - lower) * (rank - below) / (count - below)
