"""Whether memory fell with an event that may have begun it anew: a restart, another model.

An event that is only named makes nothing forget the days before it: what fills ever more slowly, or is flushed each day, would rise
like a leak once nothing is known of yesterday. Memory that falls with it says that it is another life.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from aie_agent.analysis.leaks.block_floors import scatter
from aie_agent.analysis.leaks.settings import CELLS_PER_BIN, LeakSettings

_FALLS: Final = 0.5
"""Of all that its floors rose and fell by since its warm-up: a restart gives it back, noise and a day's load do not at once."""
_SOON_CELLS: Final = 2
"""Cells after an event within which memory that falls falls with it."""
_ROWS: Final = 2
"""However far apart rows are, the event's own and the next one count."""
_OF_NOISE: Final = 4.0
"""A fall below so many standard deviations of a cell's floor is none."""


class _Floor(NamedTuple):
    until_s: float
    size_bytes: float


class NewLife:
    """Asked of each physical size whether another life begins with it, and takes those that are none. Keeps the floors of the
    cells of half an hour, and the least and the highest of all."""

    def __init__(self, settings: LeakSettings) -> None:
        self._settings = settings
        self._cell_end_s = self._until_s = -math.inf
        self._below_bytes = -math.inf
        self._rows_left = 0
        self._forget()

    def _forget(self) -> None:
        self._floors: list[_Floor] = []
        self._low = self._least = math.inf
        self._highest = -math.inf

    def named(self, time_s: float) -> None:
        """An event that may begin it anew. Before a first floor there is nothing to forget."""
        if not self._floors:
            return
        sizes = [each.size_bytes for each in self._floors]
        falls = max(_FALLS * (self._highest - self._least), _OF_NOISE * (scatter(sizes) or 0.0))
        recent = [each.size_bytes for each in self._floors if each.until_s > time_s - self._settings.bin_s]
        self._below_bytes = max(recent, default=sizes[-1]) - falls
        self._until_s, self._rows_left = time_s + _SOON_CELLS * self._settings.cell_s, _ROWS

    def began(self, time_s: float, size_bytes: float, *, is_warm: bool) -> bool:
        """Whether a size is the first one of another life: down soon after an event. Nothing is known of a life before it
        `is_warm`."""
        began = (self._rows_left > 0 or time_s <= self._until_s) and size_bytes < self._below_bytes
        self._rows_left -= 1
        if began or not is_warm:
            self._forget()
            self._until_s, self._rows_left = -math.inf, 0
        return began

    def take(self, time_s: float, size_bytes: float) -> None:
        """Takes a size of the life that runs, which no failed reading may be: its least is what all later ones are held against."""
        if time_s >= self._cell_end_s:
            if self._low < math.inf:
                self._floors = [*self._floors[1 - CELLS_PER_BIN :], _Floor(self._cell_end_s, self._low)]
                self._least, self._highest = min(self._least, self._low), max(self._highest, self._low)
            self._low, self._cell_end_s = math.inf, time_s + self._settings.cell_s
        self._low = min(self._low, size_bytes)
