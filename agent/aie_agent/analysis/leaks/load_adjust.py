"""How much memory goes with the load: y - b * load rises only by what a leak adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LEAST: Final = 12
_SURE: Final = 3.0
"""A slope that is less than so many of its standard errors is none: what is not known is not taken off."""


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
        n = self._n
        if n < _LEAST:
            return 0.0
        ll = self._ll - self._l * self._l / n
        ly = self._ly - self._l * self._y / n
        yy = self._yy - self._y * self._y / n
        if ll <= 0 or ly <= 0:
            return 0.0
        slope = ly / ll
        error = max(yy - slope * ly, 0.0) / ((n - 2) * ll)
        return slope if slope * slope > _SURE * _SURE * error else 0.0

    def sums(self) -> list[float]:
        """What `__init__` takes."""
        return [self._n, self._l, self._y, self._ll, self._ly, self._yy]
