"""What the kernel knows of the PCIe link of a GPU: what the card could do, and what the slot that it sits in allows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.samples import Point
from aie_agent.sources.nvml.bus_id import sysfs_name

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")

# Transfers a second of each generation, as the kernel writes them: "16.0 GT/s PCIe".
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_SPEED: Final = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_MAX_LANES: Final = 32
_GENERATION, _WIDTH = "aie_gpu_pcie_link_generation", "aie_gpu_pcie_link_width"


class Slot(NamedTuple):
    """Generations and lanes that the card and the port above it have at most; None where the kernel does not tell."""

    card_generation: int | None
    card_width: int | None
    port_generation: int | None
    port_width: int | None


def generation(speed: str) -> int | None:
    """The PCIe generation of a `max_link_speed`. None for "Unknown"."""
    match = _SPEED.match(speed)
    return _GENERATIONS.get(float(match[1])) if match else None


def lanes(width: str) -> int | None:
    """A `max_link_width`. None for what is none: a link that is down says 0 or 255."""
    text = width.strip()
    return int(text) if text.isdecimal() and 0 < int(text) <= _MAX_LANES else None


def read_slot(bus: str, root: Path | None = None) -> Slot | None:
    """The link of the GPU with this bus id. None where the kernel shows no such device.

    The port is the device above it. In a virtual machine that is a port of the hypervisor's, which may say anything: whoever
    compares takes what the link does now as possible.
    """
    link = (root or PCI_DEVICES) / sysfs_name(bus)
    try:
        card = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    port = card.parent
    return Slot(
        generation(_read(card / "max_link_speed")),
        lanes(_read(card / "max_link_width")),
        generation(_read(port / "max_link_speed")),
        lanes(_read(port / "max_link_width")),
    )


def capped(points: Iterable[Point], slot: Slot | None) -> list[Point]:
    """A GPU's points with what the kernel knows: `aie_gpu_pcie_link_generation_max` is the lesser of card and slot,
    `aie_gpu_pcie_link_width_max` the card's own lanes, `aie_gpu_pcie_slot_width` the slot's. NVML's maxima are the card's alone on
    some hosts, and the lesser of card and slot on others. A port that claims less than the link does now is a hypervisor's, and not
    believed."""
    found = list(points)
    if slot is None:
        return found
    now = {point.name: point for point in found if point.name in (_GENERATION, _WIDTH)}
    generation_limit = _believed(slot.port_generation, now.get(_GENERATION))
    taken = [_with_slot(point, slot, generation_limit) for point in found]
    width = now.get(_WIDTH)
    port = _believed(slot.port_width, width)
    if width is not None and port is not None:
        taken.append(width._replace(name="aie_gpu_pcie_slot_width", value=float(port)))
    return taken


def _believed(port: int | None, now: Point | None) -> int | None:
    return None if port is None or (now is not None and port < now.value) else port


def _with_slot(point: Point, slot: Slot, generation_limit: int | None) -> Point:
    if point.name == f"{_GENERATION}_max" and generation_limit is not None:
        return point._replace(value=min(point.value, float(generation_limit)))
    if point.name == f"{_WIDTH}_max" and slot.card_width is not None:
        return point._replace(value=max(point.value, float(slot.card_width)))
    return point


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
