"""What the floors of a whole recording's days say: whether memory rises from day to day, and whether it has stopped.

Blocks of hours see neither a leak beneath a day's traffic that no column tells, nor a staircase of a step a day: the least memory
of each day shows both. Whole days are alike in their hours, so nothing needs to be known of the traffic, unless it grows itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final, Literal, NamedTuple

from aie_agent.analysis.leaks.block_floors import Adjust, Bin
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.standing import Standing, is_idle
from aie_agent.analysis.leaks.theil_sen import theil_sen

BINS: Final = 48
"""Bins of a day."""
_LEAST: Final = 5
"""Days. Five in random order rise with a chance of 1/120, and a half of a weekly wave is shorter."""
_SEEN: Final = 0.75
"""Of the usual number of a day's half hours: of one that is known less well the least hour may be missing."""
_ROWS: Final = 4
"""Half hours that a day is known by, at least, or half of one."""
_MOST_APART: Final = 4.0
"""Half hours: rows further apart than two hours are too few for what is told of less than days."""
_RISING: Final = 4
"""Steps of days that must rise: some workspaces taken in a week are fewer."""
_STEP: Final = 0.2
"""Of the mean step: one below is none."""
_FALLS: Final = 0.1
"""Of the whole rise: a day that falls by more is no steady rise; and beyond what was before it must reach by as much. From seven
days on: of five or six the slope is surely above 0 only where each is above all before it."""
_ONE_STEP: Final = 0.6
_LATE: Final = 0.5
"""Of what the earlier half of the days rose by: less is a curve that flattens."""
_STOPPED: Final = 0.25
"""The same of the last third: less is a plateau."""
_Z: Final = 1.6449
_MORE_LOAD: Final = 0.25
"""Traffic that has grown by more may be all of it."""
_PAUSED: Final = 0.15
"""Of what it would have risen by in half a day: floors that differ by less stand still."""
_BLOCK: Final = 8
_HOUR: Final = 2
_REACHED: Final = 0.2
"""Of a rise: a floor that is no further below its peak has come to where it ended."""
_BEYOND: Final = 0.5
"""Of a rise that a restart cut short: what a cache may hold more once it is full. What went twice as high tells of no limit."""
_BUSY: Final = 0.5
"""Of a day: half hours with load that tell something, at least."""
_WEEKEND: Final = 144
"""Bins: three days, the first hours of which may be those of the rise. From Friday evening to Monday morning it is 62 hours."""


class DayRise(NamedTuple):
    """Floors of days that rise: how fast (bytes a second), over how many days, the first and the last floor, and when the first of
    the days began, in bins."""

    slope: float
    days: int
    first_bytes: float
    last_bytes: float
    begin_bin: int


Plateau = Literal["", "stands", "filled"]
"""Of a life after one that rose: it is none; it stands where that ended, or higher, and why is not known; it has filled a cache."""


class Whole(NamedTuple):
    """Physical memory over the whole recording: half hours, whatever happened between them, and what is taken off."""

    bins: Sequence[Bin]
    by: Adjust


class _Day(NamedTuple):
    size_bytes: float
    load: float
    begin_bin: int


def days_of(bins: Sequence[Bin], by: Adjust) -> list[tuple[float, float]]:
    """The floor and the mean load of each whole day, the last ending with the newest bin; those before a day that was hardly seen
    are left out."""
    return [(each.size_bytes, each.load) for each in _days(bins, by)]


def _days(bins: Sequence[Bin], by: Adjust) -> list[_Day]:
    end = bins[-1].number + 1 if bins else 0
    first = bins[0].number if bins else 0
    by_day: dict[int, list[Bin]] = {}
    for each in bins:
        by_day.setdefault((end - 1 - each.number) // BINS, []).append(each)
    found: list[_Day] = []
    whole = range((end - first) // BINS)
    usual = median(len(by_day.get(number, [])) for number in whole) if whole else 0.0
    for number in whole:
        day = by_day.get(number, [])
        if len(day) < max(_SEEN * usual, _ROWS):
            break
        floor = min(each.low.adjusted(by) for each in day)
        found.append(_Day(floor, fmean(each.load for each in day), end - (number + 1) * BINS))
    return found[::-1]


def rises_by_days(bins: Sequence[Bin], by: Adjust, settings: LeakSettings) -> DayRise | None:
    """The longest stretch of days up to the newest whose floors rise from day to day faster than the limit, and do so still; None
    where there is none of five days."""
    days = _days(bins, by)
    for start in range(len(days) - _LEAST + 1):
        found = _rise(days[start:], days[:start], settings)
        if found is not None:
            return found
    return None


def _rise(days: Sequence[_Day], before: Sequence[_Day], settings: LeakSettings) -> DayRise | None:
    sizes = [each.size_bytes for each in days]
    steps = [late - early for early, late in pairwise(sizes)]
    risen = sizes[-1] - sizes[0]
    highest = max((each.size_bytes for each in before), default=-math.inf)
    if risen <= 0 or sizes[-1] < highest + _FALLS * risen or _is_uneven(steps, risen) or _grows_with_load(days):
        return None
    slope = theil_sen([number * settings.day_s for number in range(len(days))], sizes, _Z)
    mean = risen / (len(steps) * settings.day_s)
    if min(slope.value, mean) <= settings.limit_bytes_per_s or slope.low <= 0:
        return None
    return DayRise(slope.value, len(days), sizes[0], sizes[-1], days[0].begin_bin)


def _is_uneven(steps: Sequence[float], risen: float) -> bool:
    """Whether a rise falls in between, is one step or a few, flattens, or has stopped."""
    mean = risen / len(steps)
    half, third = len(steps) // 2, max(len(steps) // 3, 2)
    return (
        min(steps) < -_FALLS * risen
        or max(steps) > _ONE_STEP * risen
        or sum(each > _STEP * mean for each in steps) < _RISING
        or sum(steps[-half:]) < _LATE * sum(steps[:half])
        or sum(steps[-third:]) < _STOPPED * mean * third
    )


def _grows_with_load(days: Sequence[_Day]) -> bool:
    """Whether traffic has grown so that memory may have risen with it: what each request takes is not known well enough then."""
    third = max(len(days) // 3, 1)
    early = fmean(each.load for each in days[:third])
    late = fmean(each.load for each in days[-third:])
    return late > 0 and late - early > _MORE_LOAD * early


def plateau(bins: Sequence[Bin], by: Adjust, standing: Standing, whole: Whole, settings: LeakSettings) -> Plateau:
    """What it tells of that rise where a line stands still: for half hours with load, where that is told, or else for the newest
    day. That nobody asks anything of it for a while makes no leak a full cache, and no full cache a leak. Where nothing tells the
    load, a cache has filled if all of physical memory has stood for longer than a weekend, and the line not far above where
    the rise ended. `bins` are the line's since that rise ended, two weeks of them."""
    base, peak = standing.base.adjusted(by), standing.peak.adjusted(by)

    def stands(floors: Sequence[float]) -> bool:
        return min(floors) >= peak - _REACHED * (peak - base) and _are_level(floors, standing, settings)

    if standing.load > 0:
        return "filled" if any(stands(floors) for floors in _busy(bins, by, standing)) else ""
    floors = _newest(bins, by, BINS)
    if floors is None or not stands(floors):
        return ""
    long = _newest(whole.bins, whole.by, _WEEKEND)
    is_long = long is not None and _are_level(long, standing, settings)
    return "filled" if is_long and max(floors) <= peak + _BEYOND * (peak - base) else "stands"


def _busy(bins: Sequence[Bin], by: Adjust, standing: Standing) -> Iterator[Sequence[float]]:
    """The floors of the half hours with load of the newest day, and of the newest with load that make a day, whatever lies between
    them; of either half a day at least."""
    apart = _pace(bins, bins[-BINS:])
    busy = [each for each in bins if not is_idle(each, standing)]
    newest = [each for each in busy if each.number > bins[-1].number - BINS]
    for each in (newest, busy[-round(BINS / apart) :]):
        if len(each) >= max(_BUSY * BINS / apart, _ROWS):
            yield _floors(each, by, apart)


def _are_level(floors: Sequence[float], standing: Standing, settings: LeakSettings) -> bool:
    return max(floors) - min(floors) < _STOPPED * standing.slope.value * settings.day_s


def has_paused(bins: Sequence[Bin], by: Adjust, standing: Standing, settings: LeakSettings) -> bool:
    """Whether memory has stood still for the newest half day, its last hour as well: the least of four hours does not see a step
    within them, and two steps of a staircase may lie twelve hours apart."""
    floors = _newest(bins, by, BINS // 2)
    if floors is None:
        return False
    hour = min(each.low.adjusted(by) for each in bins[-_HOUR:] if each.number > bins[-1].number - _HOUR)
    limit = _PAUSED * standing.slope.value * settings.day_s / 2
    return max(floors) - min(floors) < limit and hour - max(floors) < limit


def _newest(bins: Sequence[Bin], by: Adjust, length: int) -> list[float] | None:
    """The floors of the newest half hours, four hours each; None where they are not known."""
    newest = [each for each in bins[-length:] if each.number > bins[-1].number - length]
    apart = _pace(bins, newest)
    if len(newest) < max(_SEEN * length / apart, _ROWS):
        return None
    return _floors(newest, by, apart)


def _pace(bins: Sequence[Bin], newest: Sequence[Bin]) -> float:
    """How many half hours apart the newest are: where they lie closer than before, all of these are asked for."""
    return min(_apart(bins), _apart(newest))


def _apart(bins: Sequence[Bin]) -> float:
    """How many half hours apart they usually are: 1, or more where rows are further apart. Gaps, which are longer, are left out."""
    steps = [late.number - early.number for early, late in pairwise(bins)]
    if not steps:
        return 1.0
    usual = median(steps)
    return min(fmean(step for step in steps if step <= usual + 1), _MOST_APART)


def _floors(bins: Sequence[Bin], by: Adjust, apart: float) -> list[float]:
    """The least of four hours each, of bins that are so many half hours apart."""
    per_block = max(round(_BLOCK / apart), 1)
    return [min(each.low.adjusted(by) for each in bins[at : at + per_block]) for at in range(0, len(bins), per_block)]
