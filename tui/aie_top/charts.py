"""Bars and histories out of block characters: pure text, one character a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """For memory, where a small creep on a large level is the news. The span is at least 5 % of the level, so that noise is flat."""
    known = _known(values)
    if not known:
        return Scale(0.0, 0.0)
    low, high = min(known), max(known)
    spare = max(high * least_span_ratio - (high - low), 0.0)
    return Scale(max(low - spare / 2, 0.0), high + spare / 2)


def sparkline(values: Sequence[float | None], width: int, scale: Scale) -> str:
    """The last `width` points, the newest at the right; what is not known is blank, and a known 0 is the lowest block."""
    points = values[-width:] if width > 0 else ()
    return "".join(_LEVELS[_level(value, scale, 8)] for value in points).rjust(max(width, 0))


def chart(values: Sequence[float | None], width: int, height: int, scale: Scale) -> list[str]:
    """The same on several rows, top row first."""
    points = values[-width:] if width > 0 else ()
    levels = [_level(value, scale, 8 * height) for value in points]
    return ["".join(_LEVELS[min(max(level - 8 * row, 0), 8)] for level in levels).rjust(width) for row in reversed(range(height))]


def _level(value: float | None, scale: Scale, steps: int) -> int:
    if value is None or not math.isfinite(value):
        return 0
    span = scale.high - scale.low
    share = (value - scale.low) / span if span > 0 else 0.0
    return max(1, min(round(share * steps), steps))


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
