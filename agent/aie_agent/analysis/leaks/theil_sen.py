"""Theil-Sen: the median of the slopes between all pairs of points, with an interval. A quarter of the points may be anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple


class Slope(NamedTuple):
    """A slope per unit of time, and between which bounds it lies."""

    value: float
    low: float
    high: float


def theil_sen(times: Sequence[float], values: Sequence[float], z: float = 1.2816, correlation: float = 2.0) -> Slope:
    """The slope of at least two points at different times, with the interval of Sen (1968).

    The bounds are the slopes of rank (N -+ C) / 2 among the N pairs, C = z * sqrt(n (n - 1) (2 n + 5) / 18 * correlation). `z` is
    the normal quantile of each side (1.2816: 10 % on each), `correlation` widens the variance of Kendall's statistic for points
    that go with their neighbours (1: they do not, and the interval is that of `scipy.stats.theilslopes` without ties). Raises
    ValueError where no two times differ."""
    pairs = combinations(zip(times, values, strict=True), 2)
    slopes = sorted((after - before) / (end - begin) for (begin, before), (end, after) in pairs if end != begin)
    if not slopes:
        raise ValueError("no two times differ")
    n = len(times)
    spread = z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * correlation)
    low = max(round((len(slopes) - spread) / 2) - 1, 0)
    high = min(round((len(slopes) + spread) / 2), len(slopes) - 1)
    return Slope(median(slopes), slopes[low], slopes[high])
