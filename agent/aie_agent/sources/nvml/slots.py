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
# Red Hat's (QEMU), virtio's and VMware's: their ports are programs, and say what the program's version says.
_HYPERVISORS: Final = frozenset({"0x1b36", "0x1af4", "0x15ad"})
_NO_BOARDS_LANES: Final = 32  # the widest slot of any board has 16
_GENERATION, _WIDTH = "aie_gpu_pcie_link_generation", "aie_gpu_pcie_link_width"


class Slot(NamedTuple):
    """Generations and lanes that the card and the port above it have at most; None where the kernel does not tell. Of a port that
    is a hypervisor's (`is_virtual`) nothing is believed."""

    card_generation: int | None
    card_width: int | None
    port_generation: int | None
    port_width: int | None
    is_virtual: bool = False

    def judged(self, width: float | None, generation: float | None) -> Slot:
        """The same, or without its port where the link does more now than that claims in one way: then it is a hypervisor's, and
        what else it claims is no truer."""
        more = ((self.port_width, width), (self.port_generation, generation))
        if any(claim is not None and now is not None and claim < now for claim, now in more):
            return Slot(self.card_generation, self.card_width, None, None, is_virtual=True)
        return self


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

    The port is the device above it. In a virtual machine that is a port of the hypervisor's, which may say anything: it is known by
    its vendor, by lanes that no board has, or by what the link does (`judged`).
    """
    link = (root or PCI_DEVICES) / sysfs_name(bus)
    try:
        card = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    speed, width = _link(card)
    port_speed, port_width = _link(card.parent)
    if _read(card.parent / "vendor").strip() in _HYPERVISORS or (port_width or 0) >= _NO_BOARDS_LANES:
        return Slot(speed, width, None, None, is_virtual=True)
    return Slot(speed, width, port_speed, port_width)


def _link(device: Path) -> tuple[int | None, int | None]:
    return generation(_read(device / "max_link_speed")), lanes(_read(device / "max_link_width"))


def judged(slot: Slot, points: Iterable[Point]) -> Slot:
    """`Slot.judged` by a GPU's points. Whoever keeps what this returns does not believe again what was proved wrong: an idle link
    is slow enough for any port's claim."""
    now = {point.name: point.value for point in points if point.name in (_GENERATION, _WIDTH)}
    return slot.judged(now.get(_WIDTH), now.get(_GENERATION))


def capped(points: Iterable[Point], slot: Slot | None) -> list[Point]:
    """A GPU's points with what the kernel knows: `aie_gpu_pcie_link_generation_max` is the lesser of card and slot,
    `aie_gpu_pcie_link_width_max` the card's own lanes, `aie_gpu_pcie_slot_width` the slot's. NVML's maxima are the card's alone on
    some hosts, and the lesser of card and slot on others."""
    found = list(points)
    if slot is None:
        return found
    slot = judged(slot, found)
    taken = [_with_slot(point, slot) for point in found]
    width = next((point for point in found if point.name == _WIDTH), None)
    if width is not None and slot.port_width is not None:
        taken.append(width._replace(name="aie_gpu_pcie_slot_width", value=float(slot.port_width)))
    return taken


def _with_slot(point: Point, slot: Slot) -> Point:
    if point.name == f"{_GENERATION}_max" and slot.port_generation is not None:
        return point._replace(value=min(point.value, float(slot.port_generation)))
    if point.name == f"{_WIDTH}_max" and slot.card_width is not None:
        return point._replace(value=max(point.value, float(slot.card_width)))
    return point


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
