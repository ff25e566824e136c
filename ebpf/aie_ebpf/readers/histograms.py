"""A program's histogram (programs/common.h, struct histogram) as a message's: what it gained since the last look."""

from __future__ import annotations

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
    slots = tuple(after - earlier for after, earlier in zip(now[:USED], before[:USED], strict=True))
    if not any(slots):
        return None
    return Histogram(slots=slots, total=(now[SLOTS] - before[SLOTS]) / scale)
