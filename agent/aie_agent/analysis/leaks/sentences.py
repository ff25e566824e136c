"""Numbers of leaks as people read them."""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.leaks.standing import FAST, Standing
from aie_telemetry.durations import in_words

MOST_OF_SUSPICION: Final = 0.5
_CONFIDENCE: Final = {"suspect": MOST_OF_SUSPICION, "leak": 0.95}
"""At most. A cache that fills for half a day looks like a leak as long as it does; over a day, of 1000 normal runs none did."""

_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(size_bytes: float) -> str:
    """Bytes in decimal units."""
    for divisor, unit in _UNITS:
        if abs(size_bytes) >= divisor:
            return f"{size_bytes / divisor:.3g} {unit}"
    return f"{size_bytes:.0f} bytes"


def mb_per_hour(bytes_per_s: float) -> float:
    """MB (10^6 bytes) an hour."""
    return bytes_per_s * 3600 / 1e6


def rate(bytes_per_s: float) -> str:
    """In MB an hour."""
    return f"{mb_per_hour(bytes_per_s):.3g} MB/h"


def in_hours(seconds: float) -> str:
    """A time in words."""
    return in_words(seconds)


def rule(tier: str) -> str:
    """What a tier saw."""
    return f"{tier} rose one after the other" + (", without noise" if tier == FAST else "")


def confidence(standing: Standing) -> float | None:
    """How sure it is: the share of pairs of floors between which memory rose faster than the limit, times at most 0.5 for a
    suspicion and 0.95 for a leak."""
    most = _CONFIDENCE.get(standing.level)
    return None if most is None else round(most * standing.share, 2)
