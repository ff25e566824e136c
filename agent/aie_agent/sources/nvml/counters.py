"""Counters of a driver, kept from telling what cannot be: `_total` does not fall but when the driver began again."""

from __future__ import annotations

from typing import Final

# So many readings in a row must agree before a counter is believed that fell or leapt.
_CONFIRMED: Final = 3


class Guard:
    """One counter. A reading that falls, or rises faster than it can, is passed over until it has proved to be the new state."""

    __slots__ = ("_doubts", "_suspect", "_time_s", "_value")

    def __init__(self) -> None:
        self._value: float | None = None
        self._time_s = 0.0
        self._suspect = 0.0
        self._doubts = 0

    def take(self, value: float, time_s: float, per_second: float) -> float | None:
        """The value to report, or None where this one cannot be true. `per_second` is the fastest that it can rise."""
        last = self._value
        # Drivers renew some counters only every second or so: as much again is allowed for that.
        if last is None or last <= value <= last + per_second * (time_s - self._time_s + 2.0):
            return self._accept(value, time_s)
        self._doubts = self._doubts + 1 if value >= self._suspect else 1
        self._suspect = value
        return self._accept(value, time_s) if self._doubts >= _CONFIRMED else None

    def seen(self, time_s: float) -> None:
        """The counter still stands where it stood."""
        self._time_s, self._doubts, self._suspect = time_s, 0, 0.0

    def _accept(self, value: float, time_s: float) -> float:
        self._value, self._time_s, self._doubts, self._suspect = value, time_s, 0, 0.0
        return value
