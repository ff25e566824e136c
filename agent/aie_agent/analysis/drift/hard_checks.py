"""Checks of values that need no statistics: no number at all, one and the same number, numbers that the reference never had.

False alarms. `nonfinite`: none, one NaN is one too many, and so is what no float32 holds: models reckon in it, or in less.
`constant`: as many equal values in a row as independent ones would give once in 1e12 requests, and 100 at least, of all that is
measured of answers together (collapse.py); a client that asks one question again and again, alone, at temperature 0 or of a
response cache, gives them too: then the prompt is the same, and it is told so. `out_of_range`: five disjoint windows in a row
with ten or more of a hundred values outside the 1st to 99th percentile of the reference (two are expected). All windows share the
reference's own error: the share outside its percentiles is Beta(2 (m // 100 + 1), ...) distributed. So, in the mean over
references, chance gives five in a row once in 8.6e8 windows (m = 500), once in 3.2e12 (m = 1000); where values depend on each
other, more are asked for, as many as the replay of the reference never had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

V = TypeVar("V")

LARGEST: Final = 3.4028234663852886e38
"""Of float32."""

LEAST_EQUAL: Final = 100
_IMPROBABLE: Final = 1e-12

LEAST_OUTSIDE: Final = 10
"""Values of a window outside the reference's 1st to 99th percentile from which on it counts."""


def is_number(value: float) -> bool:
    """Whether a model can have given it: neither NaN nor infinite, nor beyond what float32 holds."""
    return -LARGEST <= value <= LARGEST


def no_numbers(values: Sequence[float]) -> int:
    """How many of these are none. Of finite values, others StatsD does not let pass; cheap where all are numbers."""
    if not values or (is_number(min(values)) and is_number(max(values))):
        return 0
    return sum(not is_number(value) for value in values)


def equal_in_a_row(largest_share: float) -> int | None:
    """How many equal values in a row are too many, where the commonest value of the reference has this share of all. None where
    nothing is too many: then the reference itself is constant."""
    if largest_share >= 1.0:
        return None
    return max(LEAST_EQUAL, math.ceil(math.log(_IMPROBABLE) / math.log(largest_share)))


class EqualValues(Generic[V]):
    """Counts equal values in a row."""

    __slots__ = ("count", "value")

    def __init__(self, value: V | None = None, count: int = 0) -> None:
        self.value = value
        self.count = count

    def add(self, value: V) -> int:
        """Takes a value in; how many there were in a row, this one included."""
        if value == self.value:
            self.count += 1
        else:
            self.value, self.count = value, 1
        return self.count
