"""How much memory goes with the load: y - b * load rises only by what a leak adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_LEAST: Final = 12
_SURE: Final = 3.0
"""A slope that is less than so many of its standard errors is none: what is not known is not taken off."""
_VARIES: Final = 1e-6
"""Changes of load whose variance is below this share of their mean square are all the same: they tell nothing of memory."""
_FALLS: Final = 0.05
"""Of its rise: a load that falls by no more in between rises evenly."""
_EXPLAINS: Final = 0.5
"""Of the rise of memory: what may go with so much of it may be all of it."""


class LoadFit:
    """The least-squares slope of changes of memory over changes of load, both over ten minutes, in six running sums.

    With an intercept: what rises whatever the load does is the leak itself. Changes, not levels: over a morning, load and a leak
    rise together, and levels could not be told apart."""

    __slots__ = ("_l", "_ll", "_ly", "_n", "_y", "_yy")

    def __init__(self, sums: Sequence[float] = (0.0,) * 6) -> None:
        self._n, self._l, self._y, self._ll, self._ly, self._yy = sums

    def add(self, load: float, size: float) -> None:
        """Takes a change of the load (requests in flight) and the change of memory (bytes) that came with it."""
        self._n += 1
        self._l += load
        self._y += size
        self._ll += load * load
        self._ly += load * size
        self._yy += size * size

    def bytes_per_load(self) -> float:
        """Bytes for each request in flight; 0 where they are not surely above that."""
        slope, error = self._slope()
        return slope if slope > _SURE * error else 0.0

    def unsure_bytes_per_load(self) -> float:
        """How much more than `bytes_per_load` may go with each request; infinite where the load hardly varied so far."""
        slope, error = self._slope()
        return max(slope + _SURE * error - self.bytes_per_load(), 0.0)

    def _slope(self) -> tuple[float, float]:
        """The slope and its standard error."""
        n = self._n
        ll = self._ll - self._l * self._l / n if n else 0.0
        if n < _LEAST or ll <= _VARIES * self._ll:
            return 0.0, math.inf
        ly = self._ly - self._l * self._y / n
        yy = self._yy - self._y * self._y / n
        slope = ly / ll
        return slope, math.sqrt(max(yy - slope * ly, 0.0) / ((n - 2) * ll))

    def sums(self) -> list[float]:
        """What `__init__` takes."""
        return [self._n, self._l, self._y, self._ll, self._ly, self._yy]


def may_be_load(loads: Sequence[float], risen_bytes: float, unsure_bytes_per_load: float) -> bool:
    """Whether memory that rose by `risen_bytes` may have risen with the load alone: it rose evenly over the same blocks, and what
    each request needs is not known well enough to tell."""
    risen = loads[-1] - loads[0]
    if risen <= 0 or min(after - before for before, after in pairwise(loads)) < -_FALLS * risen:
        return False
    return unsure_bytes_per_load * risen >= _EXPLAINS * risen_bytes
