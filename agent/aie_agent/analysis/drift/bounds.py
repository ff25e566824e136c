"""Between which values a request is like the reference, and how many of a window may lie outside: also where a statistic has too
few values for a distance, or values that depend on each other too much.

False alarms. Of a statistic with 20 and more values, as in hard_checks.py. One with fewer has the same bounds, the 1st and 99th
percentile, which less than one in a hundred lies beyond on either side, and the same counts.

Of a statistic that is compared, values beyond all that the reference has are counted as well: a few requests that are far out move
neither the distance nor the percentiles.

Beside each bound a margin is left for what rounding and another order of sums do: percentile or extreme may be one prompt that is
asked again and again. Of what has few values, or hardly ever another than one, it is a thousandth of the value. Of what is
compared it is a step of bfloat16, and a tenth of the spread at least, and never more than half of the spread: a value may be large
beside what it varies by. The spread is taken from the percentiles, for one outlier makes a standard deviation what it likes. Of
what is never negative, an entropy, the margin goes half of the way to zero at most, which would be within it else: answers of
which nothing is left to chance are not like those of which little is.

Whatever the distribution, m independent values leave a share beyond their extremes that is Beta(2, m - 1) distributed: of 1000,
four of a hundred, five times in a row, come by chance within 26,000 windows (30 days at one request a second) for 1 in a million
references. Of fewer, as many times more are asked for, so that it is no more often. Values that hang together come together: then
as many times more are asked for, too.

Where the reference is constant, both percentiles are that value: a stream that is equal to it is never an
alarm, one that differs in ten or more of a hundred requests is, after five windows. Where values depend on each other too much to
be compared, the reference tells only how far they ever went: outside is what lies beyond by as much again, and half of a window
must.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.drift.reference import FEWEST_DISTINCT, Column
from aie_agent.analysis.drift.rule import WINDOW

_TOLERANCE: Final = 1e-3
"""Of the value. A canary's last bits vary with what it is computed beside; weights that changed move it by a hundredth and more."""

_STEP: Final = 1 / 128
"""Of the value: the largest step of bfloat16, in which models reckon."""

_NEAR: Final = 0.1
_FAR: Final = 0.5
"""Of the spread: nearer to a bound than the one is always like it, further than the other never."""

_NEAR_ZERO: Final = 0.01
"""Of the spread: a bound that is nearer to zero is as good as zero."""

_SPREADS: Final = 4.65
"""Standard deviations from the 1st to the 99th percentile, where values are normally distributed."""

LEAST_UNSEEN: Final = 4
"""Values of a window far beyond all of the reference's from which on it counts, where the reference has `UNSEEN_OF` and more."""

UNSEEN_OF: Final = 1000

_NEVER: Final = WINDOW + 1


class Bounds(NamedTuple):
    """What is less than `low` or more than `high` is outside, what is beyond `lowest` or `highest` was never seen, nor anything
    like it; `too_many` of a window, or `too_many_unseen`, are an alarm, if five in a row have them."""

    low: float
    high: float
    too_many: int
    lowest: float = -math.inf
    highest: float = math.inf
    too_many_unseen: int = _NEVER

    def outside(self, window: Sequence[float]) -> int:
        """How many of these are outside."""
        return sum(not self.low <= value <= self.high for value in window)

    def unseen(self, window: Sequence[float]) -> int:
        """How many of these were never seen."""
        return sum(not self.lowest <= value <= self.highest for value in window)


def bounds_of(column: Column, values: Sequence[float]) -> Bounds:
    """Of a statistic whose reference has these values, ascending."""
    if not column.untested:
        low, lowest = (least - _margin_below(column, least, values[0]) for least in (column.low, values[0]))
        high, highest = (most + _margin(column, most) for most in (column.high, values[-1]))
        return Bounds(low, high, column.outside, lowest, highest, _too_many_unseen(column))
    if column.distinct < FEWEST_DISTINCT:
        return Bounds(column.low - _last_digits(column.low), column.high + _last_digits(column.high), column.outside)
    width = values[-1] - values[0]
    return Bounds(values[0] - width, values[-1] + width, WINDOW // 2)


def _margin(column: Column, bound: float) -> float:
    """How far beyond a bound a value is still like it."""
    spread = (column.high - column.low) / _SPREADS
    return min(max(_NEAR * spread, _STEP * abs(bound)), _FAR * spread) if spread else _last_digits(bound)


def _margin_below(column: Column, bound: float, least: float) -> float:
    """The same below a bound of a statistic of which `least` is the least value."""
    margin = _margin(column, bound)
    spread = (column.high - column.low) / _SPREADS
    return min(margin, bound / 2) if least >= 0 and bound > _NEAR_ZERO * spread else margin


def _last_digits(bound: float) -> float:
    """The same where values do not vary by anything that a margin could be measured in."""
    return _TOLERANCE * abs(bound)


def _too_many_unseen(column: Column) -> int:
    return math.ceil(LEAST_UNSEEN * max(1.0, column.dependence) * max(1.0, UNSEEN_OF / column.m))
