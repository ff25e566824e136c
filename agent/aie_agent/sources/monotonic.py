"""A counter that is the sum of counters whose owners come and go."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class MonotonicSum(Generic[Owner]):
    """The total of many counters that never falls when an owner ends, nor jumps when an old one becomes known.

    The counters of processes, threads and control groups end with them; what they had counted by the last reading stays.
    """

    __slots__ = ("_last", "started", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.started = False
        self._last: dict[Owner, float] = {}

    def fallen(self, readings: Mapping[Owner, float]) -> set[Owner]:
        """The owners whose counter is lower than at the last update: they have begun anew."""
        return {owner for owner, value in readings.items() if value < self._last.get(owner, value)}

    def update(self, readings: Mapping[Owner, float], newborn: Collection[Owner], anew: Collection[Owner] = ()) -> float:
        """Takes the present reading of every owner and returns the total.

        `newborn` are owners that began after the last update: all they counted is new. Another owner that is seen for the
        first time had counted before anyone looked, so it counts from here on; but at the very first update the total
        starts where the owners stand. A counter that fell belongs to a new owner of the same name, and counts from 0; so does that
        of an owner in `anew`, of whom another counter fell.
        """
        if readings == self._last and not anew and self.started:
            return self.total  # nobody did anything, as most of the time
        for owner, value in readings.items():
            last = self._last.get(owner)
            if last is not None:
                self.total += value - last if value >= last and owner not in anew else value
            elif not self.started or owner in newborn:
                self.total += value
        self._last = dict(readings)
        self.started = True
        return self.total
