"""Reads pages in aie's names that repeat: of a page that has the series of the one before, only those that moved are made anew.

Where a sample is of another series than the one in its place before, or a value or an exemplar is none, the page is read as if it
were the first: the answer is that of `read_page` in any case.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from typing import Final, NamedTuple

from aie_agent.samples import HistogramPoint, Point, Tags
from aie_agent.sources.scrape_page import (
    MAX_EXEMPLARS,
    PREFIX,
    Families,
    Place,
    Reading,
    Told,
    TooLongError,
    are_bounds,
    histogram_of,
    place_of,
    read_page,
    value_refusal,
)
from aie_agent.sources.statsd_reasons import Reason
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exemplars import Exemplar, read
from aie_telemetry.exposition import MemoBudget, Page, PageSample

_MEMO_BYTES: Final = 4 << 20
_BAD: Final = "bad_histogram"
_SAMPLE_BYTES: Final = 200  # a sample that is kept, and what is to be done with it

_OF_VALUES: Final = frozenset({"not_finite", "negative", "bad_exemplar", "exemplar_limit", "series_limit"})
"""Reasons that hang on numbers, or on which series came first: a page with one of them is read whole each time."""


class _Scalar(NamedTuple):
    """Where the value of a sample goes: which of the points it is."""

    point: int
    name: str
    kind: Kind
    tags: Tags


class _Histogram(NamedTuple):
    """Which of the histograms it is, and which samples make it: its buckets by their bound, its sum, its count."""

    histogram: int
    told: Told
    buckets: tuple[int, ...]
    total: int
    observations: int


class _Plan(NamedTuple):
    """What each sample is of a page (None: nothing that is taken), and what came of the page: its points, its histograms (None: one
    that contradicts itself), and what was refused for what will not change."""

    targets: Sequence[_Scalar | _Histogram | None]
    page: Page
    points: list[Point]
    histograms: list[HistogramPoint | None]
    refused: Counter[str]
    is_short: bool  # there cannot be more exemplars than are taken
    held_bytes: int


class PageAgain:
    """Reads the pages of one engine. `read` is called by one thread at a time."""

    def __init__(self, engine: str, budget: MemoBudget | None = None) -> None:
        """What is remembered is bounded by `budget`."""
        self._engine = engine
        self._budget = budget or MemoBudget(_MEMO_BYTES)
        self._plan: _Plan | None = None
        self._samples_before = -1

    def forget(self) -> None:
        """Gives up what it remembers."""
        if self._plan is not None:
            self._budget.give(self._plan.held_bytes)
        self._plan = None

    def read(self, page: Page) -> Reading:
        """As `read_page`."""
        if self._plan is not None:
            plan = _again(self._plan, page)
            if plan is not None:
                self._plan = plan
                return _reading(plan)
        reading = read_page(page, self._engine)
        is_like_before = len(page.samples) == self._samples_before
        self._samples_before = len(page.samples)
        self.forget()
        plan = _plan(page, reading, self._engine) if is_like_before else None
        if plan is not None and self._budget.take(plan.held_bytes):
            self._plan = plan
        return reading


def _again(plan: _Plan, page: Page) -> _Plan | None:
    """What came of a page that has the series of the one that was planned for; else None."""
    samples, before = page.samples, plan.page.samples
    if len(samples) != len(before) or page.kinds != plan.page.kinds or page.unread_lines:
        return None
    points, histograms = plan.points.copy(), plan.histograms.copy()
    moved: dict[int, _Histogram] = {}
    for number in compress(range(len(samples)), map(operator.is_not, samples, before)):
        sample, old = samples[number], before[number]
        if sample.name != old.name or sample.tags != old.tags:
            return None
        target = plan.targets[number]
        if isinstance(target, _Histogram):
            moved[target.histogram] = target
        elif target is None:
            if sample.exemplar:  # behind a line that is not taken it may be one that is refused
                return None
        else:
            if value_refusal(target.name, sample.value) is not None:
                return None
            points[target.point] = Point(target.name, target.kind, target.tags, sample.value)
    try:
        for place, target in moved.items():
            histograms[place] = _histogram(target, samples, is_short=plan.is_short)
    except _ReadWholeError:
        return None
    return plan._replace(page=page, points=points, histograms=histograms)


def _reading(plan: _Plan) -> Reading:
    histograms = [histogram for histogram in plan.histograms if histogram is not None]
    refused = plan.refused.copy()
    if len(histograms) < len(plan.histograms):
        refused[_BAD] += len(plan.histograms) - len(histograms)
    return Reading(plan.points, histograms, refused)


class _ReadWholeError(Exception):
    """It is not certain what `read_page` would say."""


def _histogram(target: _Histogram, samples: Sequence[PageSample], *, is_short: bool) -> HistogramPoint | None:
    """None where it contradicts itself. Raises _ReadWholeError."""
    buckets = [samples[number] for number in target.buckets]
    exemplars: dict[float, Exemplar] = {}
    for bound, bucket in zip(target.told.bounds, buckets, strict=True):
        if bucket.exemplar:
            exemplar = read(bucket.exemplar)
            if exemplar is None or not is_short:
                raise _ReadWholeError
            exemplars[bound] = exemplar
    cumulative = [bucket.value for bucket in buckets]
    return histogram_of(target.told, cumulative, samples[target.total].value, samples[target.observations].value, exemplars)


def _plan(page: Page, reading: Reading, engine: str) -> _Plan | None:
    """What is to be done with the next page, if it has the same series. None where that hangs on its numbers."""
    if page.unread_lines or not _OF_VALUES.isdisjoint(reading.refused):
        return None
    families = Families(page.kinds)
    targets: list[_Scalar | _Histogram | None] = [None] * len(page.samples)
    scalars: set[tuple[str, Tags]] = set()
    parts: dict[tuple[str, Tags], _Parts] = {}
    for number, sample in enumerate(page.samples):
        place = _taken(sample, families, engine)
        if place is None:
            continue
        part = families[sample.name].family.part
        if part:
            parts.setdefault(place.key, _Parts({}, [])).add(place.bound if part == "_bucket" else part, number)
        elif place.key not in scalars:
            name, tags = place.key
            targets[number] = _Scalar(len(scalars), name, CATALOGUE[name].kind, tags)
            scalars.add(place.key)
    whole = [target for key, of_one in parts.items() if (target := of_one.histogram(key)) is not None]
    for which, target in enumerate(whole):
        target = target._replace(histogram=which)
        for number in (*target.buckets, target.total, target.observations):
            targets[number] = target
    made = {(each.name, each.tags): each for each in reading.histograms}
    histograms = [made.get((target.told.name, target.told.tags)) for target in whole]
    refused = Counter({reason: count for reason, count in reading.refused.items() if reason != _BAD})
    if len(whole) < len(parts):
        refused[_BAD] = len(parts) - len(whole)
    is_short = sum(len(of_one.numbers) for of_one in parts.values()) <= MAX_EXEMPLARS
    return _Plan(targets, page, reading.points, histograms, refused, is_short, _SAMPLE_BYTES * len(targets))


class _Parts(NamedTuple):
    """The samples of one histogram: by a bucket's bound, or "_sum" or "_count"; and those of which there was one before."""

    numbers: dict[float | str, int]
    twice: list[int]

    def add(self, part: float | str, number: int) -> None:
        if part in self.numbers:
            self.twice.append(number)
        self.numbers[part] = number

    def histogram(self, key: tuple[str, Tags]) -> _Histogram | None:
        """None where whatever numbers stand there will not make one."""
        bounds = sorted(part for part in self.numbers if isinstance(part, float))
        total, count = self.numbers.get("_sum"), self.numbers.get("_count")
        if self.twice or total is None or count is None or not are_bounds(bounds):
            return None
        return _Histogram(0, Told(*key, tuple(bounds)), tuple(self.numbers[bound] for bound in bounds), total, count)


def _taken(sample: PageSample, families: Families, engine: str) -> Place | None:
    if not sample.name.startswith(PREFIX):
        return None
    try:
        place = place_of(sample.name, sample.tags, families[sample.name].declared, engine)
    except TooLongError:
        return None
    return None if isinstance(place, Reason) else place
