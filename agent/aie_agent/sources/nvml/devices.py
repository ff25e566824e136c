"""What a GPU is: the things about it that do not change while it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from aie_agent.sources.nvml.bus_id import bus_id, sysfs_name
from aie_agent.sources.nvml.door import Absent, Device, Door, number

_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_NODE_SCOPE: Final = 0
_NODE_WORDS: Final = 4  # 256 NUMA nodes


class Identity(NamedTuple):
    """`pci_bus_id` as nvidia-smi writes it; `architecture` and `numa_node` are None where neither driver nor kernel tell, and
    `minor`, the number of the GPU's file in /dev, where the driver does not. `uuid` is "" of a GPU that NVML never showed.
    `is_partial` is whether something could not be told now that may be told the next time."""

    uuid: str
    name: str
    pci_bus_id: str
    architecture: str | None
    numa_node: int | None
    minor: int | None = None
    is_partial: bool = False


def identify(door: Door, device: Device) -> Identity | Absent:
    """Who this is. Without a UUID it is nobody."""
    uuid = door.query("nvmlDeviceGetUUID", device)
    if isinstance(uuid, Absent):
        return uuid
    name, pci = door.query("nvmlDeviceGetName", device), door.query("nvmlDeviceGetPciInfo", device)
    bus = "" if isinstance(pci, Absent) else _text(pci.busId)
    architecture = door.query("nvmlDeviceGetArchitecture", device)
    node = _numa_node(door, device, bus)
    minor = door.query("nvmlDeviceGetMinorNumber", device)
    if device.gone is not None:
        return Absent(device.gone)
    answers = (name, pci, architecture, node, minor)
    plain_minor = number(minor)
    return Identity(
        uuid=_text(uuid),
        name=_text(name),
        pci_bus_id=bus,
        architecture=_architecture(door.nvml, architecture),
        numa_node=None if isinstance(node, Absent) else node,
        minor=None if isinstance(plain_minor, Absent) else int(plain_minor),
        is_partial=any(isinstance(answer, Absent) and not answer.is_for_good for answer in answers),
    )


def simulated(nvml: Any) -> bool:
    """Whether the library behind the binding is aie's stand-in."""
    return hasattr(getattr(nvml, "nvmlLib", None), "aie_stand_in_attach")


def _text(value: object) -> str:
    return "" if isinstance(value, Absent) else str(value)


def _architecture(nvml: Any, answer: int | Absent) -> str | None:
    prefix = "NVML_DEVICE_ARCH_"
    names = {getattr(nvml, name): name.removeprefix(prefix) for name in dir(nvml) if name.startswith(prefix)}
    found = None if isinstance(answer, Absent) else names.get(answer)
    return None if found in (None, "UNKNOWN") else found.capitalize()


def _numa_node(door: Door, device: Device, bus: str) -> int | Absent | None:
    """Of the host, as the kernel has it; else the first node that NVML calls near. -1 in sysfs is none."""
    try:
        node = int((_PCI_DEVICES / sysfs_name(bus_id(bus) or "") / "numa_node").read_text())
    except (OSError, ValueError):
        node = -1
    if node >= 0:
        return node
    words = door.query("nvmlDeviceGetMemoryAffinity", device, _NODE_WORDS, _NODE_SCOPE)
    if isinstance(words, Absent):
        return words
    return next((64 * place + (word & -word).bit_length() - 1 for place, word in enumerate(words) if word), None)
