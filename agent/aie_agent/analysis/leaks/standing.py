"""What a line is held to be, how it becomes so, and how it ends: given back, or risen no more. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from aie_agent.analysis.leaks.block_floors import Adjust, Bin, Low, block_floors, increments, noise
from aie_agent.analysis.leaks.settings import DAYS, FAST_CELLS, MOST_BINS, SUSPECT, TIERS, LeakSettings, Level, Tier
from aie_agent.analysis.leaks.theil_sen import Slope
from aie_agent.analysis.leaks.verdict import DAY_STOPS, Rise, flattens

FAST: Final = "8 floors of 5 min"
"""The fast lane, for quiet counters."""

End = Literal["returned", "stopped"]
"""Back where it was before, or rising no more."""

RANK: Final[dict[Level, int]] = {"none": 0, "suspect": 1, "leak": 2}
"""How grave."""
_RETURNED: Final = 0.3
"""A floor that is back to less than this share of the rise: the memory was given back."""
_RETURNED_PROBED: Final = 0.5
"""The same where it was asked for: that half of it comes back then is no chance."""
_STOPPED: Final = 0.25
"""A window that rises by less than this share of what the leak would have added: it has stopped."""
_BEYOND: Final = 1.25
"""Of a rise that was given back: the next one, of cycles that are not all alike, tells something beyond that."""
_IDLE: Final = 0.25
"""A bin with a load below this share of that of the leak is left out of what tells that it has stopped."""
_IDLE_CELLS: Final = 0.5
"""The same for the mean of the fast lane's cells. It is above `_STOPPED`, so that a pause of them never looks like an end."""


class Standing(NamedTuple):
    """What a line is now; `since_s` is when the rise began, `slope` in bytes a second, `tier` the rule that told, `share` of pairs
    of floors between which it rose faster than the limit. `base` and `peak` are the floor at the beginning and the highest since;
    `load` is the mean load while it rose."""

    level: Level
    since_s: float
    slope: Slope
    tier: str
    share: float
    base: Low
    peak: Low
    load: float

    def ceiling_bytes(self, by: Adjust) -> float:
        """After it was given back: a rise up to here is the same once more."""
        base = self.base.adjusted(by)
        return base + _BEYOND * (self.peak.adjusted(by) - base)

    def dump(self) -> list[Any]:
        """As plain values."""
        return [self.level, self.since_s, list(self.slope), self.tier, self.share, list(self.base), list(self.peak), self.load]

    @classmethod
    def restored(cls, values: Sequence[Any]) -> Standing:
        """What `dump` gave. Raises ValueError or TypeError for anything else."""
        level, since_s, slope, tier, share, base, peak, load = values
        if level not in get_args(Level):
            raise ValueError(f"no level: {level!r}")
        sloped = Slope(*map(float, slope))
        lows = [Low(*map(float, each)) for each in (base, peak)]
        return cls(level, float(since_s), sloped, str(tier), float(share), lows[0], lows[1], float(load))


class Past(NamedTuple):
    """A leak that was: how it ended (`probed`: given back when it was asked to), what it was, until when."""

    how: str
    standing: Standing
    until_s: float


NOTHING: Final = Standing("none", 0.0, Slope(0.0, 0.0, 0.0), "", 0.0, Low(0.0), Low(0.0), 0.0)


def first_found(
    before: Standing, tier: Tier, found: Rise, bins: Sequence[Bin], by: Adjust, time_s: Callable[[int], float]
) -> Standing:
    """The standing after a tier has found a rise. What is graver stays; what is as grave goes on, with the newer slope."""
    if RANK[before.level] > RANK[tier.level]:
        return before
    first = _began(bins, tier, found.first, by)
    since_s, base = time_s(first.number), first.low
    if before.level != "none" and before.since_s <= since_s:
        since_s, base = before.since_s, before.base
    window = [each for each in bins if each.number >= found.first.number]
    load = sum(each.load for each in window) / len(window)
    peak = max((each.low for each in window[-tier.bins :]), key=lambda low: low.adjusted(by))
    return Standing(tier.level, since_s, found.slope, tier.name, found.share, base, peak, load)


def _began(bins: Sequence[Bin], tier: Tier, first: Bin, by: Adjust) -> Bin:
    """Where the rise began: blocks before the window that rose into it belong to it; in the first of all, the last bin that was
    still at its floor."""
    end = next(index for index, each in enumerate(bins) if each.number >= first.number)
    block = bins[end : end + tier.bins]
    while end >= tier.bins:
        older = bins[end - tier.bins : end]
        if _floor(block, by) - _floor(older, by) <= 2 * noise(older, []):
            break
        block, end = older, end - tier.bins
    highest = _floor(block, by) + 2 * noise(block, [])
    return next(each for each in reversed(block) if each.low.adjusted(by) <= highest)


def _floor(bins: Sequence[Bin], by: Adjust) -> float:
    return min(each.low.adjusted(by) for each in bins)


def under_load(loaded: Sequence[Bin], bins: Sequence[Bin], standing: Standing) -> list[Bin]:
    """The bins in which there was load as while it rose, with the newest of `bins`; of all of them where `loaded` is empty.

    They are numbered as if there had been nothing between them: that memory stands still while no request comes counts neither for
    nor against. It goes on where load comes back, after however long: so they are kept apart from the line's own two days."""
    if standing.level == "none":
        return []
    first = len(bins) - 1 if loaded else 0
    found = list(loaded)
    for index in range(first, len(bins)):
        newest = bins[index]
        if not is_idle(newest, standing):
            after = newest.number - bins[index - 1].number if index else 1
            number = found[-1].number + after if found else 0
            found.append(newest._replace(number=number))
    return found[-MOST_BINS:]


def is_idle(newest: Bin, standing: Standing) -> bool:
    """Whether a bin has far less load than there was while it rose."""
    return newest.load < _IDLE * standing.load


def after_bin(
    standing: Standing, bins: Sequence[Bin], loaded: Sequence[Bin], by: Adjust, settings: LeakSettings, *, probed: bool = False
) -> tuple[Standing, End | None]:
    """The standing after one more bin, and how it ended, if it did. `loaded` are those with load (`under_load`); `probed`: the
    engine was just made to give back what it only retains."""
    if standing.level == "none" or standing.tier == FAST:
        return standing, None
    level = bins[-1].low.adjusted(by)
    base, peak = standing.base.adjusted(by), standing.peak.adjusted(by)
    if level < base + (_RETURNED_PROBED if probed else _RETURNED) * (peak - base):
        return NOTHING, "returned"
    if level > peak:
        standing = standing._replace(peak=bins[-1].low)
    stopped = not is_idle(bins[-1], standing) and _has_stopped(standing, loaded, by, settings)
    return (NOTHING, "stopped") if stopped else (standing, None)


def is_back(standing: Standing, low: Low, by: Adjust) -> bool:
    """Whether a floor lies below the peak by half of the rise."""
    base, peak = standing.base.adjusted(by), standing.peak.adjusted(by)
    return low.adjusted(by) <= peak - _RETURNED_PROBED * (peak - base)


def gave_back(standing: Standing, given_bytes: float, by: Adjust) -> bool:
    """Whether so much, given back at once because it was asked for, is half of the rise: a claim, which floors must confirm."""
    rise = standing.peak.adjusted(by) - standing.base.adjusted(by)
    return given_bytes > 0 and given_bytes >= _RETURNED_PROBED * rise


def level_with(standing: Standing, left_s: float | None, settings: LeakSettings) -> Level:
    """What a standing is where memory is full in `left_s` (None: not known): what rose suddenly is a leak if that is soon."""
    soon = left_s is not None and left_s < settings.full_soon_s
    return "leak" if soon and standing.tier in _SUDDEN else standing.level


_SUDDEN: Final = frozenset(tier.name for tier in TIERS if tier.sudden)


def _has_stopped(standing: Standing, loaded: Sequence[Bin], by: Adjust, settings: LeakSettings) -> bool:
    """Whether it rises by far less than it did, by less than the limit over its whole window (a day with load, for a leak), or
    ever less."""
    found = next(each for each in TIERS if each.name == standing.tier)
    tier = TIERS[0] if found.level == "leak" else found
    floors = block_floors(loaded, tier.bins, tier.blocks, by)
    if floors is None:
        return False
    block_s = tier.bins * settings.bin_s
    steps = increments(floors)
    recent = steps[-2:] if tier is SUSPECT else steps
    if sum(recent) / len(recent) < _STOPPED * standing.slope.value * block_s:
        return True
    return sum(steps) / len(steps) < settings.limit_bytes_per_s * block_s or (
        tier.level == "leak" and flattens(loaded, by, DAYS, DAY_STOPS)
    )


def after_cell(
    standing: Standing, lows: Sequence[float], last: Low, load: float, by: Adjust, settings: LeakSettings
) -> tuple[Standing, End | None]:
    """The standing of the fast lane after one more cell, whose least size is `last`, and how it ended, if it did. `load` is the
    mean of its cells."""
    base, peak = standing.base.adjusted(by), standing.peak.adjusted(by)
    if lows[-1] < base + _RETURNED * (peak - base):
        return NOTHING, "returned"
    told = load >= _IDLE_CELLS * standing.load
    if told and lows[-1] - lows[0] < _STOPPED * standing.slope.value * settings.cell_s * (FAST_CELLS - 1):
        return NOTHING, "stopped"
    return (standing._replace(peak=last) if lows[-1] > peak else standing), None
