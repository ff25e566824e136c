"""A parsed metrics page to points and histograms of one engine. Pure.

This reads pages in aie's own names. Those of other engines come here too, once `pages.mapping` has put them in these names.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aie_agent.samples import HistogramPoint, Point, Tags
from aie_agent.sources import accepted
from aie_agent.sources.statsd_reasons import Reason
from aie_agent.sources.statsd_series import MAX_TEXT
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exemplars import Exemplar, read
from aie_telemetry.exposition import Page, PageSample

PREFIX: Final = "aie_engine_"
MAX_SERIES: Final = 1000
"""Most series taken from one page; a histogram is one here."""
MAX_BUCKETS: Final = 128
"""TGI has 100 and +Inf."""
MAX_EXEMPLARS: Final = 1000
"""Most exemplars kept of one page, one a bucket."""
MAX_SAMPLES: Final = 50_000
"""Most lines of one page worth reading: each takes half a kilobyte meanwhile. An engine with 64 replicas has 20,000."""

_KINDS: Final = {kind.value: kind for kind in Kind}
_ANY_SIGN: Final = frozenset({"aie_engine_activation_mean", "aie_engine_canary_logprob_nats"})
"""Counters cannot be negative, nor can the engine's levels: counts, sizes, ratios and times."""
_SUFFIXES: Final = ("_bucket", "_sum", "_count")


@dataclass(slots=True)
class Reading:
    """What a page said of its engine, and how much of it was refused, by reason."""

    points: list[Point] = field(default_factory=list)
    histograms: list[HistogramPoint] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


class _Family(NamedTuple):
    name: str
    part: str  # "", or a suffix of a histogram's lines


@dataclass(slots=True)
class _Parts:
    """The lines of one histogram series. None where a line has not come, or came twice."""

    buckets: dict[float, float] = field(default_factory=dict)
    total: float | None = None
    count: float | None = None
    twice: bool = False
    exemplars: dict[float, Exemplar] = field(default_factory=dict)  # by the bucket's bound


@dataclass(slots=True)
class _Taken:
    """Series by name and labels, while a page is read."""

    scalars: dict[tuple[str, Tags], Point] = field(default_factory=dict)
    histograms: dict[tuple[str, Tags], _Parts] = field(default_factory=dict)
    exemplars: int = 0

    def is_full(self) -> bool:
        """Whether no other series has room."""
        return len(self.scalars) + len(self.histograms) >= MAX_SERIES


class _Declared(NamedTuple):
    family: _Family
    declared: str | None


class Families(dict[str, _Declared]):
    """The family of each name of a line, and as what the page declares it: a histogram has many lines of one name."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        super().__init__()
        self._kinds = kinds

    def __missing__(self, name: str) -> _Declared:
        family = _family(name)
        found = self[name] = _Declared(family, self._kinds.get(family.name))
        return found


def read_page(page: Page, engine: str) -> Reading:
    """What `page` says in aie's names. Every series gets `engine` as its engine label, whatever the page calls it: the agent's
    name for it is the one that joins it to its processes.

    Reasons: those of `accepted.refusal`, "duplicate", "not_finite", "negative" (of what can only be 0 or more), "series_too_long"
    (as for StatsD), "series_limit", and "bad_histogram" for one whose lines
    contradict each other. Of exemplars, which are refused alone and not with their bucket: "bad_exemplar", "exemplar_limit".
    """
    reading = Reading()
    if page.unread_lines:
        reading.refused["series_limit"] += page.unread_lines
    taken, families = _Taken(), Families(page.kinds)
    for sample in page.samples:
        if sample.name.startswith(PREFIX):
            reason = _take(sample, families, engine, taken)
            if reason is None and sample.exemplar:
                reason = _take_exemplar(sample, families, engine, taken)
            if reason is not None:
                reading.refused[reason] += 1
    reading.points = list(taken.scalars.values())
    for (name, tags), parts in taken.histograms.items():
        histogram = _histogram(name, tags, parts)
        if histogram is None:
            reading.refused["bad_histogram"] += 1
        else:
            reading.histograms.append(histogram)
    return reading


def _take(sample: PageSample, families: Families, engine: str, taken: _Taken) -> str | None:
    """Adds one line to what is taken, or says why not."""
    family, declared = families[sample.name]
    try:
        place = place_of(sample.name, sample.tags, declared, engine)
    except TooLongError:
        return Reason.SERIES_TOO_LONG
    if isinstance(place, Reason):
        return place
    key = place.key
    if family.part:
        parts = taken.histograms.get(key)
        if parts is None:
            if taken.is_full():
                return "series_limit"
            parts = taken.histograms[key] = _Parts()
        _add_part(parts, family.part, place.bound, sample.value)
    elif key in taken.scalars:
        return "duplicate"
    elif taken.is_full():
        return "series_limit"
    elif (refusal := value_refusal(family.name, sample.value)) is not None:
        return refusal
    else:
        taken.scalars[key] = Point(family.name, CATALOGUE[family.name].kind, key[1], sample.value)
    return None


def value_refusal(name: str, value: float) -> str | None:
    """Why a counter or gauge of this name cannot have this value; None where it can."""
    if not math.isfinite(value):
        return "not_finite"
    return "negative" if value < 0 and name not in _ANY_SIGN else None


def _take_exemplar(sample: PageSample, families: Families, engine: str, taken: _Taken) -> str | None:
    """Adds what stands behind a line that was taken, or says why not."""
    place = place_of(sample.name, sample.tags, families[sample.name].declared, engine)
    if isinstance(place, Reason) or math.isnan(place.bound):
        return None  # a counter may have one too
    exemplar = read(sample.exemplar)
    if exemplar is None:
        return "bad_exemplar"
    if taken.exemplars >= MAX_EXEMPLARS:
        return "exemplar_limit"
    taken.exemplars += 1
    taken.histograms[place.key].exemplars[place.bound] = exemplar
    return None


class Place(NamedTuple):
    """Where the value of a line goes: its series, and of a bucket the bound."""

    key: tuple[str, Tags]
    bound: float


class TooLongError(Exception):
    """Raised, so that it is not remembered: such a line may be a page of its own."""


@functools.lru_cache(maxsize=4096)
def place_of(name: str, tags: Tags, declared: str | None, engine: str) -> Place | Reason:
    """Where a line goes that the page declares so, or why nowhere: the same on every page. Raises TooLongError."""
    if length(name, tags) > MAX_TEXT:
        raise TooLongError
    family = _family(name)
    le = next((value for label, value in tags if label == "le"), None) if family.part == "_bucket" else None
    labels = {label: value for label, value in tags if le is None or label != "le"} | {"engine": engine}
    reason = _refusal(family, _declared(declared, family.name), labels)
    return Place((family.name, tuple(sorted(labels.items()))), _bound(le)) if reason is None else reason


def length(name: str, tags: Tags) -> int:
    """Characters of a series' name and labels together."""
    return len(name) + sum(len(key) + len(value) for key, value in tags)


def _family(name: str) -> _Family:
    """The metric that a line belongs to: only a histogram of the catalogue has lines with a suffix."""
    if name not in CATALOGUE:
        for suffix in _SUFFIXES:
            base = name.removesuffix(suffix)
            metric = CATALOGUE.get(base)
            if base != name and metric is not None and metric.kind is Kind.HISTOGRAM:
                return _Family(base, suffix)
    return _Family(name, "")


def _declared(declared: str | None, name: str) -> Kind | None:
    """The kind that the page's TYPE line gives; None for one that we do not have. A page without TYPE lines is taken as meant."""
    if declared is None or declared in ("untyped", "unknown"):
        metric = CATALOGUE.get(name)
        return None if metric is None else metric.kind
    return _KINDS.get(declared)


def _refusal(family: _Family, kind: Kind | None, labels: dict[str, str]) -> Reason | None:
    metric = CATALOGUE.get(family.name)
    if metric is not None and (kind is None or (kind is Kind.HISTOGRAM and not family.part)):
        return Reason.KIND_CONFLICT
    reason = accepted.refusal(family.name, kind or Kind.GAUGE, labels.keys())
    if reason is None and metric is not None and len(labels) != len(metric.labels):
        return Reason.BAD_LABELS  # a page says everything, where a StatsD line may leave a label out
    return reason


def _add_part(parts: _Parts, part: str, bound: float, value: float) -> None:
    if part == "_sum":
        parts.twice |= parts.total is not None
        parts.total = value
    elif part == "_count":
        parts.twice |= parts.count is not None
        parts.count = value
    else:
        parts.twice |= bound in parts.buckets
        if len(parts.buckets) <= MAX_BUCKETS:
            parts.buckets[bound] = value


def _bound(le: str | None) -> float:
    """A bucket's upper bound; NaN, which no histogram can have, for one that is no number."""
    try:
        return float(le) if le is not None else math.nan
    except ValueError:
        return math.nan


def _histogram(name: str, tags: Tags, parts: _Parts) -> HistogramPoint | None:
    """None where the lines do not make one histogram."""
    bounds = sorted(parts.buckets)
    if parts.twice or parts.total is None or parts.count is None or not are_bounds(bounds):
        return None
    cumulative = [parts.buckets[bound] for bound in bounds]
    return histogram_of(Told(name, tags, tuple(bounds)), cumulative, parts.total, parts.count, parts.exemplars)


def are_bounds(bounds: Sequence[float]) -> bool:
    """Whether these, in order, can be a histogram's. The catalogue's are of times and sizes: a bound below 0 is nonsense, and
    quantiles could not be told from it."""
    if not 2 <= len(bounds) <= MAX_BUCKETS or math.isnan(sum(bounds)):
        return False
    return bounds[-1] == math.inf and bounds[0] >= 0


class Told(NamedTuple):
    """A histogram of a page, and the bounds of its buckets, infinity the last."""

    name: str
    tags: Tags
    bounds: tuple[float, ...]


def histogram_of(
    told: Told, cumulative: Sequence[float], total: float, count: float, exemplars: Mapping[float, Exemplar]
) -> HistogramPoint | None:
    """Cumulative buckets as counts per bucket, with their exemplars by bound; None where the numbers contradict each other."""
    counts = tuple(map(operator.sub, cumulative, (0.0, *cumulative)))
    if cumulative[-1] != count or not math.isfinite(count) or not math.isfinite(total):
        return None
    if math.isnan(sum(counts)) or min(counts) < 0:
        return None
    fitting = tuple(_fitting(told.bounds, exemplars)) if exemplars else ()
    return HistogramPoint(told.name, told.tags, told.bounds[:-1], counts, total, exemplars=fitting)


def _fitting(bounds: Sequence[float], exemplars: Mapping[float, Exemplar]) -> Iterator[tuple[int, Exemplar]]:
    """By the bucket's index; what lies in another bucket was not observed there."""
    for index, (above, bound) in enumerate(itertools.pairwise((-math.inf, *bounds))):
        exemplar = exemplars.get(bound)
        if exemplar is not None and above < exemplar.value <= bound:
            yield index, exemplar
