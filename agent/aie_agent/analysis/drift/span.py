"""How long a reference was recorded, and what that is worth. A calibration knows the traffic that it replays: one of a single hour
knows nothing of the night, of the weekend, of a nightly batch, and its run length holds for traffic like that hour's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeVar

V = TypeVar("V")

DAY_HOURS: Final = 24.0
"""From so long a recording on a reference has seen every time of the day."""

_BLOCKS: Final = 20


def hours_between(start: str, end: str) -> float | None:
    """Of two moments as ISO 8601 writes them; None where they are not both such, or are in the wrong order."""
    try:
        hours = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() / 3600.0
    except (ValueError, TypeError):  # TypeError: one says its time zone, the other does not
        return None
    return hours if hours > 0.0 else None


def qualified(hours: float | None) -> str:
    """What is to be said beside a run length, to stand after a comma."""
    if hours is None:
        return "for traffic as it was while the reference was recorded, for an unknown time"
    if hours >= DAY_HOURS:
        return f"for traffic as in the {hours:.3g} hours of the recording"
    return f"for traffic as in the {hours:.2g} hours of the recording: how it changes with the time of day is not in it"


def warning(hours: float | None) -> str:
    """Of a recording that was shorter than a day, or may have been; else empty."""
    if hours is not None and hours >= DAY_HOURS:
        return ""
    known = "for an unknown time" if hours is None else f"for {hours:.2g} hours"
    return (
        f"the reference was recorded {known}: its run length holds for no other time of the day; record for {DAY_HOURS:g} or more"
    )


def spread(values: Sequence[V], most: int) -> list[V]:
    """At most so many of a recording: blocks of neighbours, evenly spread from its beginning to its end, so that what hangs
    together stays together and no time of the day is left out."""
    if len(values) <= most:
        return list(values)
    size = most // _BLOCKS
    step = (len(values) - size) / (_BLOCKS - 1)
    starts = [round(number * step) for number in range(_BLOCKS)]
    return [value for start in starts for value in values[start : start + size]]
