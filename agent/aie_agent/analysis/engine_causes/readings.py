"""What causes read of an engine: levels that held, counters that rose, and what histograms observed, each within a window.

A reading is None where nothing current says it: then a cause says nothing, rather than that all is well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from aie_agent.analysis.findings import View
from aie_agent.analysis.window import bucket_increase, gain, increase, quantile, sum_increase
from aie_agent.series import Series

RUNNING: Final = "aie_engine_requests_running"
WAITING: Final = "aie_engine_requests_waiting"
KV_USAGE: Final = "aie_engine_kv_usage_ratio"
TTFT: Final = "aie_engine_time_to_first_token_seconds"
REQUESTS: Final = "aie_engine_requests_total"

MOST_APART_S: Final = 15.0
"""Values of a level that are further apart say nothing of the time between them. Hooks repeat theirs every ten seconds."""

GIB: Final = float(2**30)


@dataclass(frozen=True, slots=True)
class Observed:
    """What a histogram observed within a window: counts per bucket, one more than the bounds, and the sum of all values where it
    is known."""

    bounds: Sequence[float]
    counts: Sequence[float]
    summed: float | None = None

    @property
    def count(self) -> float:
        """How many observations."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """As Prometheus gives it, 0 without observations."""
        return quantile(self.bounds, self.counts, q) or 0.0

    @property
    def total(self) -> float:
        """The sum of all observations. Where it is not known each is taken to lie in the middle of its bucket, above the highest
        bound at that bound."""
        if self.summed is not None:
            return self.summed
        middles = [(low + high) / 2 for low, high in pairwise((0.0, *self.bounds))]
        return sum(count * middle for count, middle in zip(self.counts, (*middles, self.bounds[-1]), strict=True))

    @property
    def mean(self) -> float:
        """Of all observations, 0 without any."""
        return self.total / self.count if self.count else 0.0

    @property
    def usual_mean(self) -> float:
        """The mean without the longest, at most: of those up to the bucket of the median, as what others took is at least the lower
        bound of their bucket. A few that take very long do not move it; where all are alike it is the mean."""
        taken, highest, longer = 0.0, 0.0, 0.0
        for count, low, high in zip(self.counts, (0.0, *self.bounds), (*self.bounds, math.inf), strict=True):
            if taken >= self.count / 2:
                longer += count * low
            elif count:
                taken += count
                highest += count * high
        return min(self.total - longer, highest) / taken if taken else 0.0

    @property
    def usual_mean_about(self) -> float:
        """The mean without the longest, about: the middle between the most that it can be and the least."""
        taken, least = 0.0, 0.0
        for count, low in zip(self.counts, (0.0, *self.bounds), strict=True):
            if taken < self.count / 2:
                taken += count
                least += count * low
        return (self.usual_mean + least / taken) / 2 if taken else 0.0

    @property
    def total_at_least(self) -> float:
        """The sum of all observations, each taken to be no more than the lower bound of its bucket."""
        return sum(count * low for count, low in zip(self.counts, (0.0, *self.bounds), strict=True))

    @property
    def largest_at_least(self) -> float:
        """The lower bound of the highest bucket that has an observation, 0 without any."""
        return max((low for count, low in zip(self.counts, (0.0, *self.bounds), strict=True) if count > 0), default=0.0)

    def count_above(self, limit: float) -> float:
        """Observations that are surely larger than `limit`."""
        return sum(count for count, low in zip(self.counts, (0.0, *self.bounds), strict=True) if low >= limit)


def observed(view: View, engine: str, metric: str, start_s: float, now_s: float) -> Observed | None:
    """What the current histograms of an engine observed since `start_s`, those of other bounds than the first left out. A sum that
    stands while counts rise is one that the page does not have."""
    histograms = [series for series in view.store.histograms(metric, engine=engine) if series.valid_until_s >= now_s]
    if not histograms:
        return None
    bounds = histograms[0].bounds
    alike = [series for series in histograms if series.bounds == bounds]
    counts = [sum(of) for of in zip(*(bucket_increase(series, start_s) for series in alike), strict=True)]
    summed = sum(sum_increase(series, start_s) for series in alike)
    return Observed(bounds, counts, None if summed == 0 and any(counts) else summed)


def began_anew_s(view: View, engine: str, metric: str, start_s: float, now_s: float) -> float:
    """When histograms of the engine last began at 0 since `start_s`, as those of a new process do, or `start_s`: what they show
    first is of the time before it served."""
    anew = [start_s]
    for series in view.store.histograms(metric, engine=engine):
        if series.valid_until_s >= now_s and series.rise(start_s) is None:
            states = [(time_s, sum(counts)) for time_s, counts in series.since(start_s) if counts is not None]
            anew += [time_s for (_, before), (time_s, after) in pairwise(states) if after < before]
    return max(anew)


class Sample(NamedTuple):
    """What was observed in the shortest window that has enough of it."""

    seen: Observed
    window_s: float


def enough(view: View, engine: str, metric: str, windows_s: Sequence[float], least: float, now_s: float) -> Sample | None:
    """What a histogram observed in the first of these windows that has at least `least` observations."""
    for window_s in windows_s:
        seen = observed(view, engine, metric, now_s - window_s, now_s)
        if seen is not None and seen.count >= least:
            return Sample(seen, window_s)
    return None


def risen(view: View, engine: str, metric: str, start_s: float, now_s: float, **labels: str) -> float | None:
    """How much the current counters of an engine rose since `start_s`, together."""
    current = [series for series in view.store.scalars(metric, engine=engine, **labels) if series.valid_until_s >= now_s]
    found = [rise for series in current if (rise := increase(series, start_s, now_s)) is not None]
    return sum(gained for gained, _ in found) if found else None


def risen_per_bin(all_series: Sequence[Series], edges_s: Sequence[float]) -> list[float]:
    """How much counters rose between each two edges, together. What a counter held when it began anew counts as its rise."""
    bins = [0.0] * (len(edges_s) - 1)
    for series in all_series:
        values = [next(series.ring.since(edge_s))[1] for edge_s in edges_s] if len(series.ring) else []
        bins = [so_far + gain(*pair) for so_far, pair in zip(bins, pairwise(values), strict=False)] if values else bins
    return bins


def has_moved(view: View, engine: str, metric: str, start_s: float, **labels: str) -> bool:
    """Whether a counter of the engine shows another number than at `start_s`: a quick look, for what seldom does."""
    return any(
        next(series.ring.since(start_s))[1] != series.value
        for series in view.store.scalars(metric, engine=engine, **labels)
        if len(series.ring)
    )


def held(view: View, engine: str, metric: str, is_so: Callable[[float], bool], start_s: float, now_s: float) -> bool:
    """Whether a current level of the engine was so all the time since `start_s`, and known then already."""
    return any(
        series.valid_until_s >= now_s and _held(series, is_so, start_s) for series in view.store.scalars(metric, engine=engine)
    )


def _held(series: Series, is_so: Callable[[float], bool], start_s: float) -> bool:
    points = list(series.ring.since(start_s))
    known = bool(points) and points[0][0] <= start_s
    apart = any(after - before > MOST_APART_S for (before, _), (after, _) in pairwise(points))
    return known and not apart and all(is_so(value) for _, value in points)


def share_of_looks(
    view: View, engine: str, metric: str, is_so: Callable[[float], bool], start_s: float, now_s: float
) -> float | None:
    """At which share of the looks since `start_s` a current level of the engine was so; None where there is none."""
    current = (series for series in view.store.scalars(metric, engine=engine) if series.valid_until_s >= now_s)
    values = [value for series in current for _, value in series.ring.since(start_s)]
    return sum(map(is_so, values)) / len(values) if values else None


def highest(view: View, engine: str, metric: str, start_s: float, now_s: float) -> float | None:
    """The highest value of a current level since `start_s`."""
    current = [series for series in view.store.scalars(metric, engine=engine) if series.valid_until_s >= now_s]
    return max((value for series in current for value in _counted_since(series, start_s)), default=None)


def _counted_since(series: Series, start_s: float) -> Iterator[float]:
    """The values that a level had since `start_s`. What it was told to be before is left out where that did not count any more
    then: whoever told it is gone, and a level has no break."""
    oldest_s = start_s - _counts_for_s(series)
    return (value for time_s, value in series.ring.since(start_s) if time_s > oldest_s)


def _counts_for_s(series: Series) -> float:
    """For how long a value of a current series counts where none comes after it."""
    return series.valid_until_s - series.last_time_s


def told_since_s(
    view: View, engine: str, metric: str, is_gap: Callable[[float, float], bool], start_s: float, now_s: float
) -> float:
    """Since when a current level of the engine is told without a gap, `start_s` at the earliest; `now_s` where none is. A process
    tells none while it loads. A time without one, from its begin to its end, is a gap if it is long and `is_gap` of it."""
    current = (series for series in view.store.scalars(metric, engine=engine) if series.valid_until_s >= now_s)
    return min((_told_since_s(series, is_gap, start_s) for series in current), default=now_s)


def _told_since_s(series: Series, is_gap: Callable[[float, float], bool], start_s: float) -> float:
    times = [time_s for time_s, _ in series.ring.since(start_s)]
    apart_s = max(MOST_APART_S, _counts_for_s(series))
    anew = (after for before, after in pairwise(times) if after - before > apart_s and is_gap(before, after))
    return max(start_s, *times[:1], *anew)


def is_positive(value: float) -> bool:
    """For `held`."""
    return value > 0


def seconds(value: float) -> str:
    """A time for people: "40 ms", "2.5 s"."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def size(value: float) -> str:
    """Bytes for people: "512 MiB", "2.00 GiB"."""
    return f"{value / GIB:.2f} GiB" if abs(value) >= GIB else f"{value / 2**20:.0f} MiB"
