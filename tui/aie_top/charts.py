"""Bars and histories out of block characters: pure text, one character a column."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_TRACK: Final = "░"


class Scale(NamedTuple):
    """What the bottom and the top of a chart stand for."""

    low: float
    high: float


def bar(ratio: float | None, width: int) -> tuple[str, str]:
    """A horizontal bar as (filled, empty) text, together `width` columns. Not known is an empty bar of blanks."""
    if ratio is None or not math.isfinite(ratio):
        return "", " " * width
    eighths = round(min(max(ratio, 0.0), 1.0) * width * 8)
    whole, part = divmod(eighths, 8)
    filled = "█" * whole + (_EIGHTHS[part] if part else "")
    return filled, _TRACK * (width - len(filled))


def from_zero(values: Sequence[float | None]) -> Scale:
    """For rates and counts: the baseline is 0, so that height can be compared."""
    return Scale(0.0, max(_known(values), default=0.0))


def around(values: Sequence[float | None], least_span_ratio: float = 0.05) -> Scale:
    """For memory, where a small creep on a large level is the news. The span is at least 5 % of the level, so noise is flat."""
    known = _known(values)
    if not known:
        return Scale(0.0, 0.0)
    low, high = min(known), max(known)
    spare = max(high * least_span_ratio - (high - low), 0.0)
    return Scale(max(low - spare / 2, 0.0), high + spare / 2)


def sparkline(values: Sequence[float | None], width: int, scale: Scale) -> str:
    """The last `width` points, the newest at the right; what is not known is blank, and a known 0 is the lowest block."""
    points = values[-width:] if width > 0 else ()
    return "".join(_LEVELS[level] for level in _levels(points, scale, 8)).rjust(max(width, 0))


def chart(values: Sequence[float | None], width: int, height: int, scale: Scale) -> list[str]:
    """The same on several rows, top row first."""
    points = values[-width:] if width > 0 else ()
    levels = "".join(map(chr, _levels(points, scale, 8 * height)))
    return [levels.translate(blocks).rjust(width) for blocks in _blocks_by_row(height)]


@lru_cache(maxsize=64)
def _blocks_by_row(height: int) -> tuple[str, ...]:
    """For each row, the block for each level from 0 to the top: tables for `translate`, since charts are drawn anew each second."""
    levels = range(8 * height + 1)
    return tuple("".join(_LEVELS[min(max(level - 8 * row, 0), 8)] for level in levels) for row in reversed(range(height)))


def _levels(values: Sequence[float | None], scale: Scale, steps: int) -> list[int]:
    """0 for what is not known, else 1 to `steps`. Hardly a call in its loop, since it is run for each column of each chart.

    (`value - value` is 0 for what is finite, else NaN, which counts as true. A span may be so small that `steps` by it is infinite,
    and 0 times that is NaN.)
    """
    span = scale.high - scale.low
    factor = min(steps / span, sys.float_info.max) if span > 0 else 0.0
    exact = [0.0 if value is None or value - value else max((value - scale.low) * factor, 0.5) for value in values]
    return [int(min(level + 0.5, steps)) for level in exact]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
