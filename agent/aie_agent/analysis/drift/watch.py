"""One statistic of one stream beside its reference: takes values in, one a request, and says when something is an alarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from aie_agent.analysis.drift.bounds import bounds_of
from aie_agent.analysis.drift.hard_checks import EqualValues, equal_in_a_row, is_number
from aie_agent.analysis.drift.ks import Rank, ks_integer, rank
from aie_agent.analysis.drift.reference import Column
from aie_agent.analysis.drift.rule import WINDOW, Run
from aie_agent.analysis.drift.saved import integer, mapping, number, number_or_none, numbers
from aie_agent.analysis.drift.stability import Stability
from aie_agent.request_values import tells_of_answers

LESS_STABLE: Final = 0.5
"""Of the least that the reference scatters over as many requests: below it, the outputs have collapsed."""


STRIDE: Final = 25
"""Values between two looks at the running estimate."""


class Check(StrEnum):
    """What raises an alarm; `CONSTANT` only where all that is measured of answers is so."""

    KS = "ks"
    OUT_OF_RANGE = "out_of_range"
    CONSTANT = "constant"
    STABILITY = "stability"
    NONFINITE = "nonfinite"


class Window(NamedTuple):
    """One window that is complete: its distance from the reference, and how many of its values were outside the percentiles."""

    distance: float
    outside: int


class StatisticWatch:
    """Not thread-safe. `values` are the reference's, ascending."""

    def __init__(self, column: Column, values: Sequence[float]) -> None:
        self.column = column
        self._values = values
        self.bounds = bounds_of(column, values)
        self._most_equal = equal_in_a_row(column.largest_share)
        self._buffer: list[float] = []
        self._before: list[float] = []  # the window before, for the running estimate
        self._equal = EqualValues[float]()
        self._collapses = tells_of_answers(column.name)
        self.shift = Run()
        self.outside = Run()
        self.stability = Stability()
        self.last: Window | None = None
        self.last_outside: int | None = None
        self.last_unseen = 0
        self.windows_outside = 0  # since the start
        self.unseen = 0  # values, since the start
        self.taken = 0
        self._running: float | None = None
        self._running_at = 0
        self.nonfinite = 0
        self.windows = 0
        self.windows_beyond = 0
        self._since_s: dict[Check, float] = {}  # of the checks that are no runs of windows
        self._no_number_at = 0  # the last value that was none, by its number

    def take(self, value: float, now_s: float) -> tuple[Check, ...]:
        """Takes a value in. Returns the alarms that begin with it."""
        self.taken += 1
        if not is_number(value):
            self.nonfinite += 1
            self._no_number_at = self.taken
            return self._began(Check.NONFINITE, True, now_s)
        self._buffer.append(value)
        equal = self._equal.add(value)
        self._began(Check.CONSTANT, self._most_equal is not None and equal >= self._most_equal, now_s)
        return () if len(self._buffer) < WINDOW else self._complete(now_s)

    def _complete(self, now_s: float) -> tuple[Check, ...]:
        window, self._buffer = self._buffer, []
        self._before = window
        self.stability.window(window)
        began = self._began(Check.STABILITY, self._is_collapsed(), now_s)
        if self.taken - self._no_number_at >= WINDOW:  # all of the window came since
            self._since_s.pop(Check.NONFINITE, None)
        outside = self.last_outside = self.bounds.outside(window)
        unseen = self.last_unseen = self.bounds.unseen(window)
        too_many = outside >= self.bounds.too_many or unseen >= self.bounds.too_many_unseen
        self.windows_outside += too_many
        self.unseen += unseen
        if not self.column.untested and self._is_shifted(window, outside, now_s):
            began += (Check.KS,)
        if self.outside.window(beyond=too_many, now_s=now_s):
            began += (Check.OUT_OF_RANGE,)
        return began

    def _is_shifted(self, window: Sequence[float], outside: int, now_s: float) -> bool:
        """Whether an alarm of the distance begins with this window."""
        column = self.column
        statistic = ks_integer(self._ranks(window), column.m)
        self.last = Window(statistic / (column.m * WINDOW), outside)
        self.windows += 1
        self.windows_beyond += statistic >= column.critical
        return self.shift.window(beyond=statistic >= column.critical, now_s=now_s)

    def _began(self, check: Check, holds: bool, now_s: float) -> tuple[Check, ...]:
        if not holds:
            self._since_s.pop(check, None)
            return ()
        if check in self._since_s:
            return ()
        self._since_s[check] = now_s
        return (check,)

    def _is_collapsed(self) -> bool:
        deviation = self.stability.deviation
        return self._collapses and deviation is not None and deviation < LESS_STABLE * self.column.deviation_low

    def _ranks(self, window: Sequence[float]) -> list[Rank]:
        return [rank(self._values, value) for value in window]

    @property
    def alarms(self) -> dict[Check, float]:
        """Those that hold, with since when. Equal values of one statistic are none (collapse.py)."""
        runs = ((Check.KS, self.shift.since_s), (Check.OUT_OF_RANGE, self.outside.since_s))
        own = {check: since_s for check, since_s in self._since_s.items() if check is not Check.CONSTANT}
        return own | {check: since_s for check, since_s in runs if since_s is not None}

    @property
    def consecutive(self) -> int:
        """Windows in a row that count at present, by their distance or by what lies outside."""
        return max(self.shift.above, self.outside.above)

    @property
    def equal_in_a_row(self) -> int:
        """Equal values in a row at present."""
        return self._equal.count

    @property
    def equal_since_s(self) -> float | None:
        """Since when there are too many of them; None where there are not."""
        return self._since_s.get(Check.CONSTANT)

    @property
    def too_many_equal(self) -> int | None:
        """From so many equal values on it is too many; None where the reference itself is constant."""
        return self._most_equal

    @property
    def median(self) -> float | None:
        """Of the last window; None until there is one since the start."""
        return sorted(self._before)[len(self._before) // 2] if self._before else None

    @property
    def reference_median(self) -> float:
        """Of the reference."""
        return self._values[len(self._values) // 2]

    @property
    def stability_ratio(self) -> float | None:
        """Standard deviation of the last thousand values over the reference's; None until there are as many, or the reference has
        none."""
        deviation = self.stability.deviation
        return deviation / self.column.deviation if deviation is not None and self.column.deviation else None

    def running_distance(self) -> float | None:
        """Of the last hundred values, wherever the windows are, computed anew every `STRIDE` of them; None until there are as many
        since the start. For information: such windows overlap, so that chance gives the threshold within some thousand requests."""
        if self._running is None or self.taken - self._running_at >= STRIDE:
            self._running_at, self._running = self.taken, self._running_now()
        return self._running

    def _running_now(self) -> float | None:
        recent = (self._before + self._buffer)[-WINDOW:]
        if self.column.untested or len(recent) < WINDOW:
            return None
        return ks_integer(self._ranks(recent), self.column.m) / (self.column.m * WINDOW)

    def dump(self) -> dict[str, Any]:
        """For `restore`."""
        return {
            "buffer": list(self._buffer),
            "equal": {"value": self._equal.value, "count": self._equal.count},
            "shift": self.shift.dump(),
            "outside": self.outside.dump(),
            "stability": self.stability.dump(),
            "taken": self.taken,
            "nonfinite": self.nonfinite,
            "windows": self.windows,
            "windows_beyond": self.windows_beyond,
            "since_s": {str(check): since_s for check, since_s in self._since_s.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `dump` gave. Raises ValueError for anything else; then this watch is not to be used."""
        self._buffer = numbers(state, "buffer", WINDOW - 1)
        equal = mapping(state, "equal")
        self._equal = EqualValues[float](number_or_none(equal, "value"), integer(equal, "count"))
        self.shift = Run.restored(mapping(state, "shift"))
        self.outside = Run.restored(mapping(state, "outside"))
        self.stability = Stability.restored(state.get("stability"))
        self.taken, self.nonfinite = integer(state, "taken"), integer(state, "nonfinite")
        self._no_number_at = self.taken  # at the latest
        self.windows, self.windows_beyond = integer(state, "windows"), integer(state, "windows_beyond")
        since_s = mapping(state, "since_s")
        self._since_s = {Check(check): number(since_s, check) for check in since_s}
