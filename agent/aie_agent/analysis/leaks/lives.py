"""Rises that repeat in a recording: from one level up, steadily, and back to it at once, life after life. A process that leaks and
crashes each day looks so, and so does a cache without a limit that is cleared each day."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final, NamedTuple

from aie_agent.analysis.leaks.block_floors import Adjust, Bin, Low
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.settings import RECORDED_BINS, LeakSettings, Tier
from aie_agent.analysis.leaks.verdict import Rise, rise

_LEAST: Final = 16
"""Half hours of a life: eight hours. What is taken and given back more often is how an allocator works."""
_FLOORS: Final = 6
_UNTOLD: Final = 1
"""Half hours: rows that lie further apart come up to so much later than the half hour that they are in begins."""
_FALLS: Final = 0.5
"""Of its rise, from one bin that is known to the next: the end of a life."""
SAME_LEVEL: Final = 0.2
"""Of the rise: lives that begin no further apart begin at the same level."""
SAME_SLOPE: Final = 1.5
"""As fast: by no more than so many times."""
_LARGE: Final = 1 / 3
"""Of what it has at first: a life that rises by more may well be a leak's. Where it rises by less, a cleared cache is likelier."""

_BURSTS: Final = 3


class Lives(NamedTuple):
    """Rises that repeat: how often, since when, how fast (bytes a second), from which level, by how much each, as medians; whether
    most ended in a restart that is known."""

    times: int
    since_s: float
    slope: float
    first_bytes: float
    risen_bytes: float
    restarted: bool

    @property
    def is_large(self) -> bool:
        """Whether each rises by so much that a leak cannot be ruled out."""
        return self.risen_bytes >= _LARGE * self.first_bytes


class Bursts(NamedTuple):
    """Rises of hours that fell back at once: how many, from which level to which, as medians."""

    times: int
    first_bytes: float
    last_bytes: float


class _Life(NamedTuple):
    rise: Rise
    restarted: bool


class Repeats:
    """Takes samples, keeps the floors of half hours, and tells what repeats."""

    def __init__(self, settings: LeakSettings) -> None:
        self._settings = settings
        self._origin_s: float | None = None
        self._bins: list[Bin] = []
        self._restarted: set[int] = set()
        self._restarts = 0
        self._load = self._loads = 0.0  # the last that is known, and all of the newest bin
        self._rows = 0

    def add(self, sample: Sample, restarts: int) -> None:
        """Takes a sample, and how many restarts there were until then."""
        if self._origin_s is None:
            self._origin_s = sample.time_s
        number = int((sample.time_s - self._origin_s) / self._settings.bin_s)
        if restarts > self._restarts:
            self._restarts = restarts
            self._restarted.add(number)
        self._load = self._load if sample.load is None else sample.load
        if not sample.physical_bytes:
            return
        low = Low(sample.physical_bytes, self._load, sample.cache_bytes or 0.0)
        if not self._bins or self._bins[-1].number != number:
            self._bins = [*(each for each in self.bins if each.number > number - RECORDED_BINS), _bin(number, low)]
            self._loads, self._rows = 0.0, 0
        elif low.size_bytes < self._bins[-1].low.size_bytes:
            self._bins[-1] = _bin(number, low)
        self._loads += self._load
        self._rows += 1

    @property
    def bins(self) -> Sequence[Bin]:
        """The floors of half hours with their mean load, two weeks of them at most, whatever happened between them."""
        if self._bins:
            self._bins[-1] = self._bins[-1]._replace(load=self._loads / self._rows)
        return self._bins

    def begin_s(self, number: int) -> float:
        """When a bin begins."""
        return (self._origin_s or 0.0) + number * self._settings.bin_s

    def bursts(self, by: Adjust) -> Bursts | None:
        """Rises that doubled what there was within eight hours and fell back at once, three times at least; None for fewer. What
        falls over hours, as a day's traffic does, is none: as far as rows tell, which may lie an hour or two apart."""
        lows: list[float] = []
        highs: list[float] = []
        life: list[tuple[int, float]] = []
        for each in self._bins:
            level = each.low.adjusted(by)
            levels = [level for _, level in life] or [level]
            least, highest = min(levels), max(levels)
            if highest > 2 * least > 0 and levels[-1] - level > _FALLS * (highest - least):
                lows.append(least)
                highs.append(highest)
                life = []
            life = [*(before for before in life if before[0] > each.number - _LEAST), (each.number, level)]
        return Bursts(len(lows), median(lows), median(highs)) if len(lows) >= _BURSTS else None

    @property
    def risen(self) -> tuple[float, float] | None:
        """The first and the last floor of the whole recording, whatever happened between them; None for fewer than two."""
        return (self._bins[0].low.size_bytes, self._bins[-1].low.size_bytes) if len(self._bins) > 1 else None

    def told(self, by: Adjust) -> Lives | None:
        """The rises that repeat at least twice, the same level and slope each time; None where none do."""
        lives = list(self._lives(by))
        same = max((_alike(lives[at:]) for at in range(len(lives))), key=len, default=[])
        if len(same) < 2 or self._origin_s is None:
            return None
        return Lives(
            len(same),
            self._origin_s + same[0].rise.first.number * self._settings.bin_s,
            median(each.rise.slope.value for each in same),
            median(each.rise.first_bytes for each in same),
            median(each.rise.last_bytes - each.rise.first_bytes for each in same),
            sum(each.restarted for each in same) > len(same) / 2,  # rows do not see each that takes a minute or two
        )

    def _lives(self, by: Adjust) -> Iterator[_Life]:
        """Those that rose steadily until they ended."""
        least = self._settings.limit_bytes_per_s * _LEAST * self._settings.bin_s
        life: list[Bin] = []
        first = highest = math.inf
        for each in self._bins:
            level = each.low.adjusted(by)
            if life and highest - first > least and highest - level > _FALLS * (highest - first):
                found = self._rise(life, by)
                if found is not None:
                    yield _Life(found, not self._restarted.isdisjoint((each.number - 1, each.number)))
                life = []
            if not life:
                first = level
            life.append(each)
            highest = level

    def _rise(self, life: Sequence[Bin], by: Adjust) -> Rise | None:
        """By rows, as if there was one in each half hour: where they lie further apart, blocks of half hours would lack some. What
        it tells is of the whole life, of which blocks of as many rows may leave out up to five; and the row with which it began,
        where that hides the rest, and blocks of two rows are left: weights were loading then, or it was warming up."""
        numbers = _numbered(life)
        if not numbers[-1]:
            return None
        span = life[-1].number - life[0].number
        apart = span / numbers[-1]
        if len(life) * apart < _LEAST:
            return None
        rows = [each._replace(number=number) for each, number in zip(life, numbers, strict=True)]
        settings = replace(self._settings, cell_s=self._settings.cell_s * apart)
        found = _rises(rows, by, settings)
        if found is None and len(rows) > 2 * _FLOORS:
            found = _rises(rows[1:], by, settings)
        if found is None:
            return None
        long = span + apart + (_UNTOLD if apart > 1 else 0)
        highest = max(each.low.adjusted(by) for each in life)
        return _of_all(found, long, settings.bin_s, self._settings.bin_s, highest)._replace(first=life[0])


def _rises(rows: Sequence[Bin], by: Adjust, settings: LeakSettings) -> Rise | None:
    """Whether six blocks of as many rows, up to the newest one, rise steadily."""
    per_block = len(rows) // _FLOORS
    if not per_block:
        return None
    tier = Tier("a life", bins=per_block, blocks=_FLOORS, flats=0, level="suspect")
    found = rise(rows[-per_block * _FLOORS :], tier, by, settings)
    return found if isinstance(found, Rise) else None


def _numbered(life: Sequence[Bin]) -> list[int]:
    """The rows' numbers: each step that is usual is one, as 35 and 45 minutes are; longer ones are gaps."""
    steps = [late.number - early.number for early, late in pairwise(life)]
    usual = median(steps) if steps else 1
    mean = fmean(step for step in steps if step <= usual + 1) if steps else 1.0
    return list(accumulate((max(int(step / mean), 1) for step in steps), initial=0))


def _of_all(found: Rise, long: float, row_s: float, bin_s: float, highest: float) -> Rise:
    """What blocks of a life show, as of all of it: along the same line from its first sixth to its last, and no further than it was
    seen. `long` is all of it in half hours, of which sixths are whole ones, however far apart rows are. The line, and not the
    life's first rows, tells where it began: weights may have been loading in those."""
    slope = found.slope.value
    first = found.first_bytes - slope * found.first.number * row_s
    risen = min(slope * (_FLOORS - 1) * int(long / _FLOORS) * bin_s, highest - first)
    return found._replace(first_bytes=first, last_bytes=first + risen)


def _bin(number: int, low: Low) -> Bin:
    return Bin(number, low, low.size_bytes, -1.0, low.load)


def _alike(lives: Sequence[_Life]) -> list[_Life]:
    """The lives that follow the first one and are as it was."""
    found: list[_Life] = []
    for each in lives:
        first, now = lives[0].rise, each.rise
        apart = abs(now.first_bytes - first.first_bytes)
        slopes = sorted((first.slope.value, now.slope.value))
        if apart > SAME_LEVEL * (first.last_bytes - first.first_bytes) or slopes[1] > SAME_SLOPE * slopes[0]:
            break
        found.append(each)
    return found
