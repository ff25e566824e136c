"""When something is an alarm: in five consecutive windows of a hundred values each, which share no value.

Windows that overlap share most of what they hold, so that five of them in a row are nearly one: evaluated at every request, p <
0.01 in five windows gives a false alarm every 2,600 requests. Five disjoint ones are independent given the reference; with one of
1,000 or more, and values that do not depend on each other, chance gives them once in 1e11 requests. What dependence does to that is
measured for each reference (calibrate.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aie_agent.analysis.drift.saved import integer, number_or_none

WINDOW: Final = 100
"""Values in a window."""

CONSECUTIVE: Final = 5
"""Windows in a row that raise an alarm, and that end it."""

ALPHA: Final = 0.01
"""Of a single window, where values do not depend on each other."""


class Run:
    """Counts windows beyond a threshold. An alarm begins with the fifth in a row, and ends with the fifth in a row that is not
    beyond it. `since_s` is when the first window of the alarm was complete. Canaries, of which each run is a window, take fewer."""

    __slots__ = ("_consecutive", "_first_s", "above", "below", "since_s")

    def __init__(self, consecutive: int = CONSECUTIVE) -> None:
        self._consecutive = consecutive
        self.above = 0
        self.below = 0
        self.since_s: float | None = None
        self._first_s: float | None = None

    def window(self, *, beyond: bool, now_s: float) -> bool:
        """Takes one window in, complete at `now_s`. Returns whether an alarm began with it."""
        if beyond:
            self._first_s = now_s if self._first_s is None else self._first_s
            self.above, self.below = self.above + 1, 0
            if self.since_s is None and self.above >= self._consecutive:
                self.since_s = self._first_s
                return True
        else:
            self._first_s = None
            self.above, self.below = 0, self.below + 1
            if self.below >= self._consecutive:
                self.since_s = None
        return False

    def dump(self) -> dict[str, Any]:
        """For `restored`."""
        return {"above": self.above, "below": self.below, "since_s": self.since_s, "first_s": self._first_s}

    @classmethod
    def restored(cls, state: Mapping[str, Any], consecutive: int = CONSECUTIVE) -> Run:
        """Raises ValueError for what `dump` did not give."""
        run = cls(consecutive)
        run.above, run.below = integer(state, "above"), integer(state, "below")
        run.since_s, run._first_s = number_or_none(state, "since_s"), number_or_none(state, "first_s")
        return run
