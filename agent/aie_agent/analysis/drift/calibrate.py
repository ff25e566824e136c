"""What the rule does on traffic like the reference's: which threshold keeps false alarms rarer than asked for, how rare they then
are, and how soon a shift is found.

p < 0.01 in five windows assumes values that do not depend on each other. In serving they do: sessions, tenants, batches, the time
of day. So the reference's own traffic is replayed: each of its values is ranked among the other four fifths (it was not part of
what it is compared with), and streams are made of blocks of it, each ten times as long as values depend on each other, so that what
hangs together stays together. Of five windows in a row the smallest statistic decides; its largest values fall off as exp(-c D^2)
(Smirnov), and that line, fitted, says where it is as rare as is asked for. How far values depend on each other is itself known only
so well: the upper end of what it may be (two standard errors) is taken. The threshold is never below that of p < 0.01.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from operator import mul
from typing import Final, NamedTuple, TypeVar

from aie_agent.analysis.drift.ks import Rank, ks_integer, rank
from aie_agent.analysis.drift.rule import CONSECUTIVE, WINDOW

V = TypeVar("V")

LONGEST_RUN_LENGTH: Final = 1e10
"""Requests. No longer run length is claimed: a line through a few thousand replayed windows carries no further."""

SHIFTS: Final = (0.3, 0.5, 1.0)
"""Shifts, in standard deviations of the reference, of which the delay is told."""

LONGEST_DELAY: Final = 1e6
"""Requests. A shift that takes longer to find counts as not found."""

_FOLDS: Final = 5
_RUNS: Final = 1000
REPLAYED: Final = _RUNS * WINDOW * CONSECUTIVE
"""Requests that are replayed of each statistic."""

_DELAY_WINDOWS: Final = 250
_BLOCKS_PER_DEPENDENCE: Final = 10.0
_SHORTEST_BLOCK: Final = 10
_LONGEST_LAG: Final = 400
_PAIR: Final = 2
_TURNS: Final = 12  # lags
_TAIL: Final = (0.005, 0.2)  # the part of the largest values that the line is fitted to


class Dependence(NamedTuple):
    """How many values tell as much as one that depends on none (1: each does), and the standard error of that, relative to it."""

    values: float
    error: float


class Replay(NamedTuple):
    """Of one statistic: the smallest D of each replayed run of five windows; the most values outside the percentiles that all five
    windows of a run had."""

    smallest: tuple[float, ...]
    most_outside: int
    dependence: Dependence


class Tail(NamedTuple):
    """ln P(D >= h) = intercept + slope h^2, of runs of five windows."""

    intercept: float
    slope: float

    def probability(self, threshold: float) -> float:
        """Of a run of five windows beyond a threshold; at most 1."""
        return math.exp(min(0.0, self.intercept + self.slope * threshold * threshold))

    def threshold(self, probability: float) -> float:
        """Beyond which a run of five windows is as rare; 1 at most, which no run goes beyond."""
        return min(1.0, math.sqrt(max(0.0, (math.log(probability) - self.intercept) / self.slope)))


def dependence(ranks: Sequence[float]) -> Dependence:
    """1 + 2 times the sum of the autocorrelations, up to where no more can be told from 0; its error as of a sum of so many
    (Priestley 1981, truncated window). Ranks rather than values, so that single large ones do not hide it.

    Kinds of request that take turns make single correlations negative, though long spells of tenants or populations lie under
    them. So lags are added two at a time (Geyer 1992, initial positive sequence), and where two are none, twelve at a time: in them
    the correlations of three or four kinds in turn cancel. Twelve have to be the larger, the fewer values tell on their own. What
    cannot be told from values that do not depend on each other is 1.
    """
    n = len(ranks)
    mean = math.fsum(ranks) / n
    centred = [value - mean for value in ranks]
    variance = math.fsum(value * value for value in centred)
    if not variance:
        return Dependence(1.0, 0.0)

    def summed(first: int, count: int) -> float:
        return math.fsum(math.fsum(map(mul, centred[lag:], centred)) for lag in range(first, first + count)) / variance

    total, lag, longest = 1.0 + 2.0 * summed(1, 1), 2, min(_LONGEST_LAG, n // 4)
    while True:
        for count, noise in ((_PAIR, 2.0 * math.sqrt(_PAIR / n)), (_TURNS, 3.0 * math.sqrt(_TURNS * max(1.0, total) / n))):
            more = summed(lag, count) if lag + count <= longest else 0.0
            if more > noise:
                break
        else:
            values = total if total > 1.0 + 4.0 / math.sqrt(n) else 1.0
            return Dependence(values, math.sqrt(2.0 * (2 * lag - 1) / n))
        total, lag = total + 2.0 * more, lag + count


def held_out_ranks(values: Sequence[float]) -> tuple[list[Rank], int]:
    """Each value's rank among those of the other folds, and how many those are. The folds are consecutive and of one size: the few
    values that are left over at the end are not ranked."""
    size = len(values) // _FOLDS
    used = values[: size * _FOLDS]
    ranks: list[Rank] = []
    for start in range(0, len(used), size):
        others = sorted([*used[:start], *used[start + size :]])
        ranks += [rank(others, value) for value in used[start : start + size]]
    return ranks, len(used) - size


def streams(values: Sequence[V], depends: Dependence, length: int, seed: int = 0, runs: int = _RUNS) -> Iterator[list[V]]:
    """So many streams of `length` values, made of blocks of these, which are in the order in which they came."""
    block = max(_SHORTEST_BLOCK, min(math.ceil(_BLOCKS_PER_DEPENDENCE * depends.values), WINDOW * CONSECUTIVE, len(values) // 4))
    rng = random.Random(seed)
    circle = [*values, *values[:block]]
    for _ in range(runs):
        stream: list[V] = []
        while len(stream) < length:
            start = rng.randrange(len(values))
            stream += circle[start : start + block]
        yield stream[:length]


def replay(values: Sequence[float], seed: int = 0, runs: int = _RUNS) -> Replay:
    """Replays a reference's traffic, in the order in which it came, `runs` times five windows. Raises ValueError for fewer than
    500 values. Equal seeds give equal results."""
    if len(values) < WINDOW * CONSECUTIVE:
        raise ValueError(f"{len(values)} values are too few to replay")
    ranks, m = held_out_ranks(values)
    depends = dependence([float(each.lo + each.hi) for each in ranks])
    low, high = m // 100, m - m // 100
    smallest, most_outside = [], 0
    for stream in streams(ranks, depends, WINDOW * CONSECUTIVE, seed, runs):
        windows = [stream[start : start + WINDOW] for start in range(0, WINDOW * CONSECUTIVE, WINDOW)]
        smallest.append(min(ks_integer(window, m) for window in windows) / (m * WINDOW))
        outside = min(sum(each.hi <= low or each.lo >= high for each in window) for window in windows)
        most_outside = max(most_outside, outside)
    return Replay(tuple(smallest), most_outside, depends)


def tail(seen: Replay, m: int) -> Tail:
    """The line through the largest of a replay's values, against a reference of `m` values whose own error all windows share."""
    smallest = seen.smallest
    error = (1.0 + WINDOW / m) * (1.0 + 2.0 * seen.dependence.error)  # the square of it: D grows with the root
    n = len(smallest)
    last = max(3, math.ceil(_TAIL[1] * n))
    ordered = sorted(smallest, reverse=True)[:last]
    skipped = math.floor(_TAIL[0] * n)  # single runs say nothing of how often such runs come
    points = [(value * value * error, math.log((index + 1) / n)) for index, value in enumerate(ordered)][skipped:]
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    steepest = -2.0 * WINDOW * CONSECUTIVE  # five independent windows; nothing falls off faster
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else steepest
    slope = max(steepest, min(slope, -1e-6))
    return Tail(mean_y - slope * mean_x, slope)


def delay(reference: Sequence[float], values: Sequence[float], shift: float, threshold: int, seed: int = 0) -> float | None:
    """Mean number of requests, from the beginning of a window on, until a shift by `shift` is found; None beyond `LONGEST_DELAY`.

    The share of windows beyond the threshold is counted in windows of ten blocks each from the traffic, shifted; then
    five in a row take (1 - p^5) / ((1 - p) p^5) windows (the waiting time for a run).
    """
    rng = random.Random(seed)
    m, block = len(reference), WINDOW // 10
    ranks = [rank(reference, value + shift) for value in values]
    beyond = 0
    for _ in range(_DELAY_WINDOWS):
        window: list[Rank] = []
        for _ in range(WINDOW // block):
            start = rng.randrange(len(ranks) - block + 1)
            window += ranks[start : start + block]
        beyond += ks_integer(window, m) >= threshold
    windows = waiting_time(beyond / _DELAY_WINDOWS)
    return None if windows is None or windows * WINDOW > LONGEST_DELAY else windows * WINDOW


def waiting_time(p: float) -> float | None:
    """Mean number of trials until five successes in a row; None where there is no success."""
    if p <= 0.0:
        return None
    return float(CONSECUTIVE) if p >= 1.0 else (1.0 - p**CONSECUTIVE) / ((1.0 - p) * p**CONSECUTIVE)
