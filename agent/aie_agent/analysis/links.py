"""Whether the PCIe link of a GPU is what it should be. Pure: numbers in, sentences out.

Fewer lanes than the card has are never normal, whatever the GPU does. An older generation than possible is normal while the GPU
idles (it saves power), so only a GPU that is busy is judged, and only by the best that it showed in `BUSY_FOR_S` of unbroken work.

When it is wrong: a GPU that is busy for ten seconds without ever using its link could stay at a lower generation; drivers do not do
this in the performance states 0 to 2, which are asked for. The null test is a simulated day of idle and busy times: no alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

BUSY_RATIO: Final = 0.5
BUSY_FOR_S: Final = 10.0
_FASTEST_STATES: Final = 2
# Readings come once a second: with fewer than this in the time, some are missing, and nobody knows what the GPU did.
_LEAST_READINGS: Final = 5


class Link(NamedTuple):
    """A link now, and at most: what NVML says, and what the kernel says of the port above (`port_*`). None is not known."""

    width: int | None = None
    width_max: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    port_width: int | None = None
    port_generation: int | None = None
    unified_memory: bool = False


class Moment(NamedTuple):
    """A reading: when, the generation of the link, how busy the GPU was, its performance state (None: not told)."""

    time_s: float
    generation: int
    utilization_ratio: float
    performance_state: int | None = None


def width_problem(link: Link) -> str | None:
    """Fewer lanes than the card has."""
    if link.unified_memory or not link.width or not link.width_max or link.width >= link.width_max:
        return None
    text = f"PCIe link has {link.width} lanes of {link.width_max}"
    if link.port_width == link.width:
        return f"{text}: the slot has no more: move the card to a slot with {link.width_max} lanes"
    return f"{text}: reseat the card, look at riser and slot; copies between host and GPU are slower by as much"


def generation_problem(link: Link, recent: Iterable[Moment], now_s: float) -> str | None:
    """An older generation than card and slot have in common, though the GPU works."""
    # A port that claims less than the link does is one of a hypervisor's.
    possible = [value for value in (link.generation_max, link.port_generation) if value and value >= (link.generation or 0)]
    if link.unified_memory or not possible:
        return None
    best = best_while_busy([moment for moment in recent if moment.time_s >= now_s - BUSY_FOR_S])
    if best is None or best >= min(possible):
        return None
    return (
        f"PCIe link runs as generation {best} of {min(possible)} while the GPU is busy: "
        "look at BIOS settings, riser and cable; copies between host and GPU are slower"
    )


def best_while_busy(recent: Sequence[Moment]) -> int | None:
    """The newest generation among these readings; None where the GPU was not busy at each of them, or there are too few."""
    if len(recent) < _LEAST_READINGS or recent[-1].time_s - recent[0].time_s < BUSY_FOR_S / 2:
        return None
    if not all(_is_busy(moment) for moment in recent):
        return None
    return max(moment.generation for moment in recent)


def _is_busy(moment: Moment) -> bool:
    fast = moment.performance_state is None or moment.performance_state <= _FASTEST_STATES
    return fast and moment.utilization_ratio >= BUSY_RATIO
