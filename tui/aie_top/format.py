"""Numbers as people read them: three significant digits, the unit always with the number, "-" for what is not known.

Every function takes None, NaN or infinity for "not known", raises for no float, and never returns more characters than its
`*_WIDTH`, so that a table column has one width for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

UNKNOWN: Final = "-"
RATE_WIDTH: Final = 5
COUNT_WIDTH: Final = 4
PERCENT_WIDTH: Final = 5
DURATION_WIDTH: Final = 7
AGE_WIDTH: Final = 7
SIZE_WIDTH: Final = 9
CELSIUS_WIDTH: Final = 5
CLOCK_OF_WIDTH: Final = 9
WATTS_OF_WIDTH: Final = 9
SIZE_OF_WIDTH: Final = 12

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


def megahertz(hertz: float | None) -> str:
    """A clock as NVIDIA's tools write it, without the unit: 1980."""
    if hertz is None or not math.isfinite(hertz) or hertz < 0:
        return UNKNOWN
    return count(round(hertz / 1e6))


def clock_of(hertz: float | None, most_hertz: float | None) -> str:
    """1755/1980, in MHz; the maximum is left out where it is not known."""
    now, most = megahertz(hertz), megahertz(most_hertz)
    return now if UNKNOWN in (now, most) else f"{now}/{most}"


def celsius(degrees: float | None) -> str:
    if degrees is None or not math.isfinite(degrees) or abs(degrees) > 999:
        return UNKNOWN
    return f"{degrees:.0f}°C"


def watts(value: float | None) -> str:
    """Of a board: 698 W; of many: 5.43 kW."""
    if value is None or not math.isfinite(value) or not 0 <= value < 999_500:
        return UNKNOWN
    return f"{value:.0f} W" if value < 1_999.5 else f"{_three_digits(value / 1000)} kW"


def energy(joules: float | None) -> str:
    """In watt-hours, as it is paid for: 12.3 Wh, 406 kWh."""
    if joules is None or not math.isfinite(joules) or joules < 0:
        return UNKNOWN
    hours = joules / 3600.0
    for unit in ("Wh", "kWh", "MWh", "GWh"):
        if hours < 999.5:
            return f"{_three_digits(hours)} {unit}"
        hours /= 1000.0
    return ">999 GWh"


def watts_of(value: float | None, limit: float | None) -> str:
    """698/700 W, or 698 W where no limit is known."""
    now, most = watts(value), watts(limit)
    if now == UNKNOWN or most == UNKNOWN:
        return now
    number, unit = now.split(" ")
    return f"{number}/{most}" if most.endswith(f" {unit}") else f"{now}/{most}"


def size_of(value: float | None, total: float | None) -> str:
    """61.2/80 GiB, 4.27/9.8 GiB: both in the unit of the total, which needs no decimals from ten on, and one below."""
    used, whole = size(value), size(total)
    if whole == UNKNOWN or used == UNKNOWN or value is None or total is None or value < 0:
        return used
    unit = whole.split(" ")[1]
    step = 1024.0 ** _SIZES.index(unit)
    most = f"{total / step:.0f}" if total / step >= 9.95 or unit == "B" else f"{total / step:.1f}"
    return f"{_three_digits(value / step)}/{most} {unit}"


def numbers(values: Iterable[int]) -> str:
    """0-3, 5: whole numbers in order, runs of three or more drawn together."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(value) for value in run] for run in runs]
    return ", ".join(part for each in parts for part in each)
