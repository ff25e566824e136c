"""Whether this host has anything to do with NVIDIA GPUs: where it has not, there is no source, and it costs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aie_agent.sources.nvml import shared_object

_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"  # PCI class 03: VGA and 3D controllers
_SIGNS: Final = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia"))


def is_expected(pci_devices: Path = _PCI_DEVICES) -> bool:
    """Whether a GPU of NVIDIA is on the bus, or a driver or its library is there."""
    return any(path.exists() for path in _SIGNS) or _on_bus(pci_devices) or shared_object.is_installed()


def _on_bus(devices: Path) -> bool:
    try:
        return any(
            _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_DISPLAY) for device in devices.iterdir()
        )
    except OSError:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
