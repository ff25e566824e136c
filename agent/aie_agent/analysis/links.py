"""Whether the links of a GPU are what they should be. Pure: numbers in, sentences out.

PCIe: fewer lanes than card and slot have are never normal, whatever the GPU does; neither is a slot with fewer lanes than the card.
An older generation than possible is normal while the GPU idles (it saves power), so only a GPU that is busy is judged, and only by
the best that it showed in `BUSY_FOR_S` of unbroken work, or of six periods where readings are further apart than that allows.

NVLink: a card without any active link has no bridge, which is normal; one with some active links and some that are not has lost
some. A board that has its links built in (`has_built_in_links`), or whose neighbour of the same model has active ones, has lost all
of them where none is active; but not while it is divided by MIG, for which A100 switches its links off, and not where it is the
only GPU, for then it has nothing to be linked to. Errors are judged by how fast their counters rise.

When it is wrong. A GPU that is busy for ten seconds without ever using its link could stay at a lower generation; drivers do not
do this in the performance states 0 to 2, which are asked for: the null test is a simulated day of idle and busy times without an
alarm, looked at once a second, and a month of them, looked at once a minute. Lanes and inactive links are exact, and a false alarm
is a host that was built so: a riser with fewer lanes, a virtual machine with a part of a mesh of links, a card that can have more
bridges than it has (A100 PCIe has room for three), or cards of one model of which some are bridged and some are not. The
thresholds of NVLink's errors are those of NVIDIA's own health check (DCGM: any replay or recovery, 100 CRC errors a second; of
NVLink 5 any packet that was lost or spoilt); below them nothing is said, and a link that is well sends nothing again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

BUSY_RATIO: Final = 0.5
BUSY_FOR_S: Final = 10.0
_FASTEST_STATES: Final = 2
# Readings come once a second: with fewer than this in the time, some are missing, and nobody knows what the GPU did. Where they are
# to come more rarely (`gpu.period`), the time is longer.
_LEAST_READINGS: Final = 5


NVLINK_WINDOW_S: Final = 60.0
_NVLINK_LIMITS: Final[Mapping[str, float]] = {
    "recovery_failed": 0.0,
    "link_integrity": 0.0,
    "buffer_overrun": 0.0,
    "malformed_packet": 0.0,
    "receive_general": 0.0,
    "receive": 0.0,
    "receive_remote": 0.0,
    "effective": 0.0,
    "recovery": 0.0,
    "replay": 0.0,
    "crc_flit": 100.0,
    "crc_data": 100.0,
}
"""Errors a second up to which a link is well, by their kind, the worst first. What else NVLink 5 counts, symbol errors and discards
on sending, DCGM does not judge either: the one is corrected on the way, the other is what became of a link that is down."""

# Boards whose links are traces and not bridges, by what the driver calls them: modules, with or without a word that says so. Not a
# lone Grace Hopper, which may be sold with no partner.
_MODULES: Final = re.compile(r"SXM|\bHBM3|\b(H20|H200|H800|B100|B200|B300|GB200|GB300)\b")
_NO_MODULES: Final = re.compile(r"\b(PCIE|NVL|GH200)\b", re.IGNORECASE)


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
    if link.unified_memory or not possible or (link.generation or 0) >= min(possible):
        return None
    known = list(recent)
    for_s = busy_for_s(known[-1].time_s - known[-2].time_s) if len(known) > 1 else BUSY_FOR_S
    best = best_while_busy([moment for moment in known if moment.time_s >= now_s - for_s])
    if best is None or best >= min(possible):
        return None
    return (
        f"PCIe link runs as generation {best} of {min(possible)} while the GPU is busy: "
        "look at BIOS settings, riser and cable; copies between host and GPU are slower"
    )


def busy_for_s(spacing_s: float) -> float:
    """For how long a GPU must be busy whose readings are so far apart."""
    return max(BUSY_FOR_S, (_LEAST_READINGS + 1) * spacing_s)


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


class Linked(NamedTuple):
    """The NVLinks of a GPU, by state, and what they are judged by. `name` is the driver's. `best_of_peers` is the most active links
    that another GPU of this name has, None where there is none. None is not known."""

    active: int | None = None
    inactive: int | None = None
    name: str = ""
    best_of_peers: int | None = None
    is_only_gpu: bool = False
    is_divided: bool = False


def has_built_in_links(name: str) -> bool:
    """Whether a board of this name is linked to its neighbours by how it was built, without bridges."""
    return _MODULES.search(name) is not None and _NO_MODULES.search(name) is None


def inactive_problem(links: Linked) -> str | None:
    """Some NVLinks of a GPU are active and some are not; or none is, where some should be."""
    if links.active is None or not links.inactive:
        return None
    if links.active:
        return (
            f"{links.inactive} of {links.active + links.inactive} NVLinks are not active: look at the bridges, or at the fabric "
            "manager and its log; copies between GPUs are slower"
        )
    if links.is_divided or links.is_only_gpu or not (links.best_of_peers or has_built_in_links(links.name)):
        return None
    why = f"another {links.name} has {links.best_of_peers}" if links.best_of_peers else "this board has them built in"
    return (
        f"none of {links.inactive} NVLinks is active, and {why}: look whether the fabric manager runs, at its log and at XIDs of "
        "the link; copies between GPUs are slower, and CUDA may not start"
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
