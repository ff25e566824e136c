"""Whether the links of a GPU are what they should be. Pure: numbers in, sentences out.

PCIe: fewer lanes than card and slot have are never normal, whatever the GPU does; neither is a slot with fewer lanes than the card.
An older generation than possible is normal while the GPU idles (it saves power), so only a GPU that is busy is judged, and only by
the best that it showed in `BUSY_FOR_S` of unbroken work.

NVLink: a card without any active link has no bridge, which is normal; one with some active links and some that are not has lost
some. Errors are judged by how fast their counters rise.

When it is wrong. A GPU that is busy for ten seconds without ever using its link could stay at a lower generation; drivers do not do
this in the performance states 0 to 2, which are asked for: the null test is a simulated day of idle and busy times without an
alarm. Lanes and inactive links are exact, and a false alarm is a host that was built so: a riser with fewer lanes, or a virtual
machine with a part of a mesh of links. The thresholds of NVLink's errors are those of NVIDIA's own health check (DCGM: any replay
or recovery, 100 CRC errors a second); below them nothing is said, and a link that is well sends nothing again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

BUSY_RATIO: Final = 0.5
BUSY_FOR_S: Final = 10.0
_FASTEST_STATES: Final = 2
# Readings come once a second: with fewer than this in the time, some are missing, and nobody knows what the GPU did.
_LEAST_READINGS: Final = 5


NVLINK_WINDOW_S: Final = 60.0
_NVLINK_LIMITS: Final[Mapping[str, float]] = {
    "recovery_failed": 0.0,
    "link_integrity": 0.0,
    "recovery": 0.0,
    "replay": 0.0,
    "crc_flit": 100.0,
    "crc_data": 100.0,
}
"""Errors a second up to which a link is well, by their kind, the worst first. What else NVLink 5 counts is corrected on the way."""


class Link(NamedTuple):
    """A PCIe link now, and at most. `width_max` are the card's own lanes (`card_lanes`), `generation_max` is what card and slot
    have in common; `port_*` is what the kernel says of the port above. None is not known."""

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


def card_lanes(nvml: int | None, kernel: int | None) -> int | None:
    """The lanes of the card itself. NVML's maximum is the lesser of card and slot on some drivers, the kernel's is the card's."""
    return max((lanes for lanes in (nvml, kernel) if lanes), default=None)


def slot_lanes(link: Link) -> int | None:
    """The lanes of the slot. A port that claims fewer than the link has now is a hypervisor's, and not believed."""
    return link.port_width if link.port_width and link.port_width >= (link.width or 0) else None


def slot_problem(link: Link) -> str | None:
    """A slot with fewer lanes than the card."""
    slot = slot_lanes(link)
    if link.unified_memory or not slot or not link.width_max or slot >= link.width_max:
        return None
    return (
        f"the card has {link.width_max} PCIe lanes, its slot {slot}: move it to a slot with {link.width_max}, or look at "
        "bifurcation in the BIOS; copies between host and GPU are slower by as much"
    )


def width_problem(link: Link) -> str | None:
    """Fewer lanes than card and slot have in common."""
    possible = [lanes for lanes in (link.width_max, slot_lanes(link)) if lanes]
    if link.unified_memory or not link.width or not link.width_max or link.width >= min(possible):
        return None
    return (
        f"PCIe link has {link.width} lanes of {min(possible)}: reseat the card, look at riser and slot; "
        "copies between host and GPU are slower by as much"
    )


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


def inactive_problem(active: int | None, inactive: int | None) -> str | None:
    """Some NVLinks of a GPU are active, and some are not."""
    if not active or not inactive:
        return None
    return (
        f"{inactive} of {active + inactive} NVLinks are not active: look at the bridges, or at the fabric manager and its log; "
        "copies between GPUs are slower"
    )


def error_problem(per_second: Mapping[str, float]) -> str | None:
    """NVLink errors that come faster than a link that is well has them, by their kind and a second of the last minute."""
    found = [kind for kind, limit in _NVLINK_LIMITS.items() if _is_over(per_second.get(kind, 0.0), limit)]
    if not found:
        return None
    told = ", ".join(f"{kind.replace('_', ' ')} {per_second[kind]:.3g}/s" for kind in found)
    return f"NVLink errors rise ({told}): reseat bridge or board; if they go on, have the board replaced"


def _is_over(rate: float, limit: float) -> bool:
    return rate > 0.0 and rate >= limit
