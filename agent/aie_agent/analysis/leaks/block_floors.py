"""Floors: the least memory in each block of time. What a garbage collector frees now and then does not lift them; a leak does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

_MAD_TO_SD: Final = 1.4826 / 6**0.5
"""From the median of |second differences| to the standard deviation of one point: they have six times its variance, and no
trend."""


class Adjust(NamedTuple):
    """What is taken off a size: so much for each request in flight, and this share (0 or 1) of what known caches hold."""

    bytes_per_load: float = 0.0
    of_cache: float = 0.0


_DIP: Final = 2.0
_OF_BINS: Final = 0.5
NO_ADJUST: Final = Adjust()


class Low(NamedTuple):
    """A size, with the load and what known caches held at that moment."""

    size_bytes: float
    load: float = 0.0
    cache_bytes: float = 0.0

    def adjusted(self, by: Adjust) -> float:
        """The size without what goes with load and caches."""
        return self.size_bytes - by.bytes_per_load * self.load - by.of_cache * self.cache_bytes


class Bin(NamedTuple):
    """Half an hour of a line: its number since the line's origin; its least size; the highest floor of its cells; how its cells
    scatter (-1: not known); its mean load."""

    number: int
    low: Low
    high_bytes: float
    noise_bytes: float
    load: float


class Floor(NamedTuple):
    """The least size in a block, adjusted for the load. `number` counts blocks back from the newest, which is 0."""

    number: int
    size_bytes: float


def block_floors(bins: Sequence[Bin], per_block: int, blocks: int, by: Adjust) -> list[Floor] | None:
    """The floors of the last `blocks` blocks of `per_block` bins each, oldest first; None where there are not so many.

    Blocks end with the newest bin. One of which less than a quarter was seen is passed over, and the next older one taken, for as
    long as all lie within half as many blocks again."""
    if not bins:
        return None
    newest = bins[-1].number
    most = blocks + blocks // 2
    bytes_per_load, of_cache = by
    found: list[Floor] = []
    seen, number, least = 0, 0, 0.0
    for each in reversed(bins):
        block = (newest - each.number) // per_block
        if block != number:
            if seen * 4 >= per_block:
                found.append(Floor(number, least))
                if len(found) == blocks:
                    return found[::-1]
            if block >= most:
                return None
            seen, number = 0, block
        size_bytes, load, cache = each.low
        size = size_bytes - bytes_per_load * load - of_cache * cache  # as `adjusted` has it, to the last bit
        least = size if seen == 0 else min(least, size)
        seen += 1
    if seen == per_block:  # the oldest one only whole: a part of it has a floor that is too high
        found.append(Floor(number, least))
    return found[::-1] if len(found) == blocks else None


def scatter(sizes: Sequence[float]) -> float | None:
    """The standard deviation of points around their trend, by their second differences; None for fewer than three."""
    seconds = [abs(a - 2 * b + c) for a, b, c in zip(sizes, sizes[1:], sizes[2:], strict=False)]
    return median(seconds) * _MAD_TO_SD if seconds else None


def failed(sizes: Sequence[float], before: float | None) -> int | None:
    """Which of successive sizes is no size but a reading that failed; None where all may be real. It lies below the one before it
    (`before`: that of the first) and the one after it by more than twice what all others lie apart. What is given back stays so."""
    around = [before, *sizes]
    for index, (left, size, right) in enumerate(zip(around, sizes, sizes[1:], strict=False)):
        others = [*sizes[:index], *sizes[index + 1 :]]
        if left is not None and len(others) > 2 and min(left, right) - size > _DIP * (max(others) - min(others)):
            return index
    return None


def noise(bins: Sequence[Bin], floors: Sequence[Floor], by: Adjust = NO_ADJUST) -> float:
    """How much a floor scatters by chance, in bytes: as the cells of these bins do, or, where samples are too few for that, the
    floors themselves, and at least half as much as the bins: six floors are few to tell it by, and the least of some bins scatters
    about so."""
    known = [each.noise_bytes for each in bins if each.noise_bytes >= 0]
    if known:
        return median(known)
    of_bins = scatter([each.low.adjusted(by) for each in bins]) if floors else None
    return max(scatter([each.size_bytes for each in floors]) or 0.0, _OF_BINS * (of_bins or 0.0))


def increments(floors: Sequence[Floor]) -> list[float]:
    """From floor to floor, in bytes for each block between them."""
    return [(after.size_bytes - before.size_bytes) / (before.number - after.number) for before, after in pairwise(floors)]
