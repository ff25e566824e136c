"""Durations as people write them: a number with a unit. One grammar for files and command lines of all our programs."""

from __future__ import annotations

import re
from typing import Final

ACCEPTED: Final = 'a duration with a unit, such as "500ms", "10s", "5m" or "1h"'

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError, saying what is accepted, for anything else: a bare number would leave the unit to guessing."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"expected {ACCEPTED}, got {text!r}")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def in_words(seconds: float) -> str:
    """A duration for people: "40 s", "3 min", "5 h", "2 days"."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
