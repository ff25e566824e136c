"""When floors that rise are a leak: the rules, as pure functions.

Floors must rise step by step; the rise must not slow down (a cache or a pool that fills), nor be one step (a workspace taken once);
and its slope must surely be above the limit. Six floors in random order rise with a chance of 1/6! = 1/720 a look, and by enough to
matter hardly ever: 0 of 1344 simulated runs of 72 h over what is normal ended as a leak. Those are fixed shapes and white noise:
memory that wanders from day to day is called a leak in 10 to 30 % of such runs (docs/leaks.md)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from statistics import fmean
from typing import Final, NamedTuple

from aie_agent.analysis.leaks.block_floors import Adjust, Bin, Floor, block_floors, increments, noise, scatter
from aie_agent.analysis.leaks.load_adjust import may_be_load
from aie_agent.analysis.leaks.settings import DAYS, LeakSettings, Level, Tier
from aie_agent.analysis.leaks.theil_sen import Slope, theil_sen

_SLOWED: Final[dict[Level, float]] = {"suspect": 0.7, "leak": 0.6}
"""Late increments below this share of the early ones: it levels off. Half a day tells less, so it has to be plainer."""
_FLAT: Final = 0.35
"""A step below this share of the mean one is none: three steps of a pool and some noise between them are no steady rise."""
_ONE_STEP: Final = 0.6
"""A single increment above this share of the whole rise: a step."""
_DAY_SLOWED: Final = 0.5
"""Increments below this share of those of the same hours a day before: a curve that flattens over days."""
DAY_STOPS: Final = 0.4
"""The same for what is a leak already, so that it does not come and go."""
_DAY_AND_HALF: Final = Tier("9 floors of 4 h", bins=8, blocks=9, flats=0, level="leak")
"""Over which a curve that flattens is seen before two days are known."""
_SAME_AGAIN: Final = 0.1
"""Of a rise: a floor that is above an older one by less is the same level again."""
_LESS_LOAD: Final = 0.75
"""A load below this share of that of a day before: that memory rises more slowly says nothing."""
_FAST_SLOWED: Final = 0.9
_FAST_NOISE: Final = 0.25
"""The fast lane's counters are quiet, so it can ask for more: a warm-up of two hours slows by more within 40 minutes."""

_Z: Final[dict[Level, float]] = {"suspect": 1.6449, "leak": 1.2816}
"""How sure the lower bound of a slope is: 95 % for twelve hours, 90 % for a day and more, which has more to say by itself."""


class Rise(NamedTuple):
    """Floors that rise as a leak's do: by which rule, how fast (bytes a second), from which bin to which, from which floor to
    which, and the share of pairs of floors between which it rose faster than the limit."""

    tier: str
    slope: Slope
    first: Bin
    last: Bin
    first_bytes: float
    last_bytes: float
    share: float


class Doubt(NamedTuple):
    """What may explain a rise away: memory that was held before and all given back reached `ceiling_bytes`, and so much more than
    is taken off may go with each request in flight."""

    ceiling_bytes: float = -math.inf
    bytes_per_load: float = 0.0


NO_DOUBT: Final = Doubt()
WITH_LOAD: Final = "with_load"
"""The word for a rise that may be the load's."""


def rise(bins: Sequence[Bin], tier: Tier, by: Adjust, settings: LeakSettings, doubt: Doubt = NO_DOUBT) -> Rise | str | None:
    """What the floors of a tier show: a rise, a word why it is none, or None where there are too few of them."""
    floors = block_floors(bins, tier.bins, tier.blocks, by)
    if floors is None:
        return None
    window = _since(bins, bins[-1].number - (floors[0].number + 1) * tier.bins)
    scattered = 2 * noise(window, floors, by)
    reason = _no_rise(increments(floors), scattered, tier) or _one_step(floors)
    if reason is not None:
        return reason
    if tier.level == "leak" and (flattens(bins, by, DAYS, _DAY_SLOWED) or flattens(bins, by, _DAY_AND_HALF, _DAY_SLOWED)):
        return "levels_off"
    newest = floors[-1].size_bytes
    risen = newest - floors[0].size_bytes
    older = _before_floor(bins, window, tier.bins, floors[0].size_bytes + scattered, by)
    if newest <= doubt.ceiling_bytes or not _is_new_ground(older, tier.bins, newest - max(scattered, _SAME_AGAIN * risen), by):
        return "been_there"
    if tier.sudden and risen < max(settings.sudden_bytes, floors[0].size_bytes):
        return "small"
    block_s = tier.bins * settings.bin_s
    z = _Z[tier.level]
    slope, share = _slope([-each.number * block_s for each in floors], [each.size_bytes for each in floors], settings, z)
    if slope.low <= settings.limit_bytes_per_s:
        return "slow"
    if may_be_load(_block_loads(window, tier.bins), risen, doubt.bytes_per_load):
        return WITH_LOAD
    return Rise(tier.name, slope, window[0], window[-1], floors[0].size_bytes, floors[-1].size_bytes, share)


def _since(bins: Sequence[Bin], number: int) -> Sequence[Bin]:
    """The bins after this one; numbers ascend."""
    return bins[bisect_right(bins, number, key=attrgetter("number")) :]


def flattens(bins: Sequence[Bin], by: Adjust, tier: Tier, below: float) -> bool:
    """Whether memory rises less than this share of what it did a day before at the same hours, with no less load: what fills
    ever more slowly."""
    floors = block_floors(bins, tier.bins, tier.blocks, by)
    if floors is None:
        return False
    early, late = increments(floors)[:2], increments(floors)[-2:]
    if not all(after < below * before for before, after in zip(early, late, strict=True)):
        return False
    loads = _block_loads(_since(bins, bins[-1].number - tier.bins * tier.blocks), tier.bins)
    return sum(loads[-2:]) >= _LESS_LOAD * sum(loads[:2])


def fast_rise(lows: Sequence[float], highest_before: float, settings: LeakSettings) -> Slope | None:
    """Whether the floors of successive cells rise like a clock: without noise, without slowing, beyond where they ever were."""
    steps = [after - before for before, after in pairwise(lows)]
    mean = sum(steps) / len(steps)
    if min(steps) <= 0 or lows[-1] <= highest_before:
        return None
    if max(abs(after - before) for before, after in pairwise(steps)) > _FAST_NOISE * mean or not is_quiet(lows, settings):
        return None
    if _levels_off(steps, _FAST_SLOWED):
        return None
    slope, _ = _slope([index * settings.cell_s for index in range(len(lows))], lows, settings, _Z["suspect"])
    return slope if slope.low > settings.limit_bytes_per_s else None


def is_quiet(lows: Sequence[float], settings: LeakSettings) -> bool:
    """Whether the floors of cells scatter so little that eight of them tell a leak from none."""
    return (scatter(lows) or 0.0) < settings.limit_bytes_per_s * settings.cell_s


def _slope(times: Sequence[float], sizes: Sequence[float], settings: LeakSettings, z: float) -> tuple[Slope, float]:
    """Theil-Sen, and the share of pairs that rise faster than the limit."""
    slope = theil_sen(times, sizes, z)
    points = list(zip(times, sizes, strict=True))
    fast = [b - a > settings.limit_bytes_per_s * (t - s) for index, (s, a) in enumerate(points) for t, b in points[index + 1 :]]
    return slope, sum(fast) / len(fast)


def _no_rise(steps: Sequence[float], scattered: float, tier: Tier) -> str | None:
    """Why the steps between floors are no steady rise; None where they are."""
    if min(steps) < -scattered:
        return "falls"
    least = max(scattered, _FLAT * sum(steps) / len(steps))
    if sum(step <= least for step in steps) > tier.flats or min(steps[0], steps[-1]) <= least:
        return "flat"
    return "levels_off" if _levels_off(steps, _SLOWED[tier.level]) else None


def _levels_off(steps: Sequence[float], least: float) -> bool:
    half = len(steps) // 2
    return sum(steps[-half:]) < least * sum(steps[:half])


def _block_loads(window: Sequence[Bin], per_block: int) -> list[float]:
    """The mean load of each block, oldest first; blocks end with the newest bin."""
    newest = window[-1].number
    blocks = groupby(window, key=lambda each: (newest - each.number) // per_block)
    return [fmean(each.load for each in block) for _, block in blocks]


def _one_step(floors: Sequence[Floor]) -> str | None:
    rises = [after.size_bytes - before.size_bytes for before, after in pairwise(floors)]
    return "one_step" if max(rises) > _ONE_STEP * (floors[-1].size_bytes - floors[0].size_bytes) else None


def _before_floor(bins: Sequence[Bin], window: Sequence[Bin], per_block: int, floor_bytes: float, by: Adjust) -> Sequence[Bin]:
    """Bins before the window's first block came down to its floor: what was given back within it was held before."""
    newest = window[-1].number
    oldest_block = (newest - window[0].number) // per_block
    first = [each for each in window if (newest - each.number) // per_block == oldest_block]
    down = next(each for each in first if each.low.adjusted(by) <= floor_bytes)
    return [each for each in bins if each.number < down.number]


def _is_new_ground(older: Sequence[Bin], per_block: int, size_bytes: float, by: Adjust) -> bool:
    """Whether a floor lies above every floor from before its window: a rise back to where it was, as each morning, is none. A block
    of which less than a quarter was seen, of what it may be at most, is passed over: the least of a lone half hour is no floor."""
    oldest, newest = (older[0].number, older[-1].number) if older else (0, 0)
    for number, block in groupby(older, key=lambda each: (newest - each.number) // per_block):
        sizes = [each.low.adjusted(by) for each in block]
        most = min(per_block, newest - number * per_block - oldest + 1)
        if len(sizes) * 4 >= most and size_bytes <= min(sizes):
            return False
    return True
