"""A program's histogram (programs/common.h, struct histogram) as a message's: what it gained since the last look."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final

from aie_ebpf.messages import HISTOGRAM_BOUNDS_S, Histogram

SLOTS: Final = 32
FIELDS: Final = SLOTS + 1
"""How many u64 a histogram is: its slots and the total."""

USED: Final = len(HISTOGRAM_BOUNDS_S) + 1
_NS: Final = 1e9


def gained(now: Sequence[int], before: Sequence[int], scale: float = _NS) -> Histogram | None:
    """The observations between two readings of one histogram, its total divided by `scale`; None when there were none."""
    if now == before:  # most are, of most processes
        return None
    return observed(tuple(map(operator.sub, now, before)), scale)


def observed(gain: Sequence[int], scale: float = _NS) -> Histogram | None:
    """What one histogram gained, its total divided by `scale`; None when that is nothing."""
    slots = tuple(gain[:USED])
    return Histogram(slots=slots, total=gain[SLOTS] / scale) if any(slots) else None
