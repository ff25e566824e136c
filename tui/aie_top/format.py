"""Numbers as people read them: three significant digits, the unit always with the number, "-" for what is not known.

Every function takes None, NaN or infinity for "not known", raises for no float, and never returns more characters than its
`*_WIDTH`, so that a table column has one width for ever.
"""

from __future__ import annotations

import math
from typing import Final

UNKNOWN: Final = "-"
RATE_WIDTH: Final = 5
COUNT_WIDTH: Final = 4
PERCENT_WIDTH: Final = 5
DURATION_WIDTH: Final = 7
AGE_WIDTH: Final = 7
SIZE_WIDTH: Final = 9

_THOUSANDS: Final = ("", "k", "M", "G", "T", "P", "E")
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SHORT_TIMES: Final = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_AGES: Final = ((120.0, 1.0, "s"), (7_200.0, 60.0, "min"), (172_800.0, 3_600.0, "h"), (86_400.0 * 999.0, 86_400.0, "d"))


def rate(value: float | None) -> str:
    """A number without a unit of its own (the column's title has it): 0.04, 6.42, 123, 12.3k. None of what it is for is below 0."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value <= 0:
        return "<0" if value < 0 else "0"
    if value < 0.01:
        return "<.01"
    for suffix in _THOUSANDS:
        if value < 999.5:
            return f"{_three_digits(value)}{suffix}"
        value /= 1000.0
    return ">999E"


def count(value: float | None) -> str:
    """How many: whole numbers without decimals, averages with one."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0:
        return "<0"
    if value < 9_999.5:
        return f"{value:.1f}" if value < 99.95 and value != int(value) else f"{value:.0f}"
    for suffix in _THOUSANDS[1:]:
        value /= 1000.0
        if value < 999.5:
            return f"{value:.0f}{suffix}"
    return ">99E"


def percent(ratio: float | None) -> str:
    """A ratio of 0..1 as a percentage. What is above 0 but would round to it says so; 0.9996 is not 100 %."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    if ratio == 0:
        return "0%"
    if ratio < 0:
        return "<0%"
    if ratio < 0.0005:
        return "<0.1%"
    if ratio < 1.0:
        return f"{min(ratio, 0.999) * 100:.1f}%"
    return f"{ratio * 100:.0f}%" if ratio < 9.995 else ">999%"


def duration(seconds: float | None) -> str:
    """A latency: 850 µs, 31.2 ms, 1.23 s, 17 min. A negative one is no latency, so it is not known."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    if seconds < 1e-8:
        return "<10 ns"
    for unit_s, unit in _SHORT_TIMES:
        if seconds / unit_s < 999.5:
            return f"{_three_digits(seconds / unit_s)} {unit}"
    return age(seconds)


def age(seconds: float | None) -> str:
    """How long ago, or for how long: whole units only. A clock that is behind gives 0 s."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for below_s, unit_s, unit in _AGES:
        if seconds < below_s:
            return f"{int(max(seconds, 0.0) // unit_s)} {unit}"
    return ">999 d"


def size(value: float | None) -> str:
    """Bytes in binary units: 512 B, 1.23 GiB, -3.20 MiB."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign, magnitude = ("-" if value < 0 else ""), abs(value)
    if magnitude < 1023.5:
        return f"{sign}{magnitude:.0f} B" if round(magnitude) else "0 B"
    for unit in _SIZES[1:]:
        magnitude /= 1024.0
        if magnitude < 1023.5:
            return f"{sign}{_three_digits(magnitude)} {unit}"
    return f"{sign}>999 EiB"


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
