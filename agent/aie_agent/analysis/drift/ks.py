"""The exact two-sample Kolmogorov-Smirnov statistic of a window against a fixed reference, in integers.

The window's distribution function is constant between its points, and the reference's never falls. So their largest difference is
reached at a point of the window (from the right) or just before one (from the left), and only two ranks a value are needed:

    N = max over i of max(m * (i + 1) - n * hi[i],  n * lo[i] - m * i),    D = N / (m * n)

with the m values of the reference, the n of the window, and their ranks in the reference in ascending order: `lo` how many values
are smaller, `hi` how many are not larger. Equal values share their ranks, and the last (first) of them gives the larger left
(right) term: ties are exact. Integers are compared with a critical integer (critical.py), so nothing is rounded and no p-value is
computed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Rank(NamedTuple):
    """Where a value stands in a reference: how many values there are smaller, and how many not larger."""

    lo: int
    hi: int


def rank(reference: Sequence[float], value: float) -> Rank:
    """The rank of a value, not NaN, in an ascending reference."""
    lo = bisect_left(reference, value)
    return Rank(lo, bisect_right(reference, value, lo))


def ks_integer(ranks: Sequence[Rank], m: int) -> int:
    """N of a window, given by its values' ranks in any order, against a reference of `m` values. Raises ValueError for an empty
    one."""
    n = len(ranks)
    if not n or m < 1:
        raise ValueError("an empty sample has no distribution")
    # Ranks rise together, so that each may be sorted by itself, which is faster than sorting pairs.
    below = max(n * lo - m * index for index, lo in enumerate(sorted(each[0] for each in ranks)))
    above = max(m * index - n * hi for index, hi in enumerate(sorted(each[1] for each in ranks), 1))
    return max(below, above)


def distance(reference: Sequence[float], window: Sequence[float]) -> float:
    """D of a window against an ascending reference, 0 to 1."""
    m = len(reference)
    return ks_integer([rank(reference, value) for value in window], m) / (m * len(window))
