"""What happened in a window of time: increases and rates of counters, quantiles of histograms, histories of gauges."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from aie_agent.series import HistogramSeries, Series


def increase(series: Series, start_s: float, now_s: float) -> tuple[float, float] | None:
    """How much a counter rose from `start_s` to `now_s`, and over how many of those seconds it was known; None when it was not.

    A counter that fell was restarted from 0, so what it shows afterwards is what it gained (as Prometheus reads it). One that
    sent nothing since its last point did not rise: StatsD senders speak only when something happens.
    """
    span = series.ring.span(start_s)
    if span is None:
        return None
    known_s = now_s - max(span.first_s, start_s)
    if known_s <= 0:
        return None
    return (span.last - span.first if span.rises else _climbed(series.ring.since(start_s)), known_s)


def _climbed(points: Iterable[tuple[float, float]]) -> float:
    """From point to point: a counter that fell, or has a break, is followed on the way."""
    return sum(gain(before, value) for (_, before), (_, value) in pairwise(points))


def gain(before: float, value: float) -> float:
    """From one point of a counter to the next. Nothing into or out of a break, which is NaN and unequal to itself."""
    if before != before or value != value:
        return 0.0
    return value - before if value >= before else value


def rate(all_series: Iterable[Series], start_s: float, now_s: float) -> float | None:
    """The rate per second of counters taken together from `start_s` to `now_s`; None when none was known for a while."""
    seen = [result for series in all_series if (result := increase(series, start_s, now_s)) is not None]
    return sum(gained / seconds for gained, seconds in seen) if seen else None


def bucket_increase(series: HistogramSeries, start_s: float) -> list[float]:
    """Observations per bucket since `start_s`. A total that fell means a restart, as in `increase`.

    A series that began after `start_s` counts from its first state on: what it held then was observed before it was watched.
    """
    rise = series.rise(start_s)
    if rise is not None:
        return [max(now - before, 0.0) for before, now in zip(*rise, strict=True)]
    gained = [0.0] * (len(series.bounds) + 1)
    first: Sequence[float] | None = None
    last: Sequence[float] = ()
    last_total = 0.0
    for _, counts in series.since(start_s):
        total = 0.0 if counts is None else sum(counts)
        if first is not None and (counts is None or total < last_total):
            gained = _with_gain(gained, first, last)
            first = None if counts is None else [0.0] * len(counts)
        elif first is None:
            first = counts
        if counts is not None:
            last, last_total = counts, total
    return gained if first is None else _with_gain(gained, first, last)


def sum_increase(series: HistogramSeries, start_s: float) -> float:
    """By how much the sum of all values grew since `start_s`: of the same observations that `bucket_increase` counts."""
    rise = series.total_rise(start_s)
    if rise is not None:
        return rise
    gained = 0.0
    for before, now in pairwise(series.totals_since(start_s)):
        if before is not None and now is not None:
            gained += now[1] - before[1] if now[0] >= before[0] else now[1]
    return gained


def _with_gain(gained: Sequence[float], first: Sequence[float], last: Sequence[float]) -> list[float]:
    """What a histogram gained while it only rose: only its first and its last state matter, which saves most of the work."""
    return [so_far + max(now - before, 0.0) for so_far, before, now in zip(gained, first, last, strict=True)]


def observation_rate(all_series: Iterable[HistogramSeries], start_s: float, now_s: float) -> float | None:
    """Observations per second of histograms taken together from `start_s` to `now_s`; None when none was known for a while."""
    rates = []
    for series in all_series:
        first = next((time_s for time_s, _ in series.since(start_s)), now_s)
        if first < now_s:
            rates.append(sum(bucket_increase(series, start_s)) / (now_s - max(first, start_s)))
    return sum(rates) if rates else None


def quantile(bounds: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """The q-quantile of a histogram, as Prometheus's `histogram_quantile` gives it; None without observations.

    Linear within a bucket, the lowest one from 0 or, where its bound is not above 0, that bound itself; a quantile above the
    highest bound is that bound. `counts` per bucket, not cumulative, one more than `bounds`.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank = q * total
    below = 0.0
    for index, bound in enumerate(bounds):
        if counts[index] > 0 and below + counts[index] >= rank:
            lower = bounds[index - 1] if index else min(bound, 0.0)
            return lower + (bound - lower) * (rank - below) / counts[index]
        below += counts[index]
    return bounds[-1] if bounds else None


def quantiles_of(all_series: Iterable[HistogramSeries], start_s: float, qs: Sequence[float]) -> list[float | None]:
    """Quantiles of histograms with equal bounds, taken together, since `start_s`. Others than the first's bounds are left out."""
    total: list[float] | None = None
    bounds: tuple[float, ...] = ()
    for series in all_series:
        if total is None:
            bounds, total = series.bounds, bucket_increase(series, start_s)
        elif series.bounds == bounds:
            total = [a + b for a, b in zip(total, bucket_increase(series, start_s), strict=True)]
    if total is None:
        return [None] * len(qs)
    return [quantile(bounds, total, q) for q in qs]


def level_history(all_series: Iterable[Series], now_s: float, points: int, step_s: float) -> tuple[float | None, ...]:
    """The sum of gauges at `points` moments up to `now_s`, oldest first; None where none had a value that still counted."""
    history: list[float | None] = [None] * points
    start_s = now_s - points * step_s
    moments = [start_s + (step + 1) * step_s for step in range(points)]
    for series in all_series:
        hold_s = max(series.valid_until_s - series.last_time_s, step_s)
        known = list(series.ring.since(start_s))
        times = [time_s for time_s, _ in known]
        for step, moment_s in enumerate(moments):
            at = bisect_right(times, moment_s) - 1
            if at >= 0 and moment_s < times[at] + hold_s:
                history[step] = (history[step] or 0.0) + known[at][1]
    return tuple(history)


def rate_history(all_series: Iterable[Series], now_s: float, points: int, step_s: float) -> tuple[float | None, ...]:
    """The rate per second of counters, taken together, at `points` moments up to `now_s`, oldest first."""
    history: list[float | None] = [None] * points
    start_s = now_s - points * step_s
    for series in all_series:
        known = list(series.ring.since(start_s))
        for (begin_s, before), (end_s, value) in pairwise(known):
            gained = gain(before, value)
            # The newest point is up to a period old: its rate holds until the next one is due.
            until_s = end_s + 1.5 * step_s if end_s == series.last_time_s else end_s
            if end_s == begin_s:  # a break
                continue
            for step in _steps(begin_s, until_s, start_s, points, step_s):
                history[step] = (history[step] or 0.0) + gained / (end_s - begin_s)
    return tuple(history)


def _steps(begin_s: float, end_s: float, start_s: float, points: int, step_s: float) -> range:
    """The steps whose moment, `start_s + (step + 1) * step_s`, lies in [begin_s, end_s)."""
    first = math.ceil((begin_s - start_s) / step_s) - 1
    last = math.ceil((end_s - start_s) / step_s) - 1
    return range(max(first, 0), min(last, points))
