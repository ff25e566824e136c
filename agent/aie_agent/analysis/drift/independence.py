"""Whether the values of a statistic that depend on each other tell enough to be compared, and what is to be done where they do not.
Asked when a reference is built, and again of each that is read: files of before it was asked are as those that are built now.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from aie_agent.analysis.drift.reference import MOST, Column, Header

FEWEST_INDEPENDENT: Final = 200
"""Of fewer, what calibration knows of the traffic is chance: of two populations in spells of a hundred requests, 5000 requests tell
as much as 63 to 147 independent ones, and false alarms came a hundred times as often as calibrated to."""

_SPARE: Final = 1.5
"""Times what would just be enough: how far values depend on each other is another number in the next recording."""


def too_dependent(m: int, dependence: float) -> str:
    """Why a statistic cannot be compared whose values depend on each other so much that they tell little; empty where it can."""
    if m / dependence >= FEWEST_INDEPENDENT:
        return ""
    needed = _two_digits(_SPARE * dependence * FEWEST_INDEPENDENT)
    do = f"so record about {needed} requests"
    if needed > MOST:
        do = f"about {needed} requests, of which {MOST} are taken at most: make a reference of each kind of traffic by itself"
    return (
        f"not enough data: its {m} values depend on each other, and tell as much as {math.floor(m / dependence)} that do not; at"
        f" least {FEWEST_INDEPENDENT} are needed, {do}"
    )


def _two_digits(count: float) -> int:
    """Rounded up to two digits."""
    step = int(10 ** max(0, math.floor(math.log10(count)) - 1))
    return math.ceil(count / step) * step


def is_not_compared(column: Column) -> str:
    """What is warned of it."""
    return f"{column.name} is not compared: {column.untested}"


def as_built_now(header: Header) -> Header:
    """What was compared, though it tells too little, is not; the rest is as it was, and its hash is that of before. The run length
    is one at least, and stays so."""
    columns = tuple(map(_as_built_now, header.columns))
    changed = [now for now, before in zip(columns, header.columns, strict=True) if now != before]
    if not changed:
        return header
    told = [each for each in header.warnings if not any(each.startswith(f"{column.name}: ") for column in changed)]
    return msgspec.structs.replace(header, columns=columns, warnings=(*told, *map(is_not_compared, changed)))


def _as_built_now(column: Column) -> Column:
    untested = column.untested or too_dependent(column.m, column.dependence)
    if untested == column.untested:
        return column
    return msgspec.structs.replace(column, untested=untested, false_alarm=0.0, delay_requests={})
