"""GPUs that the driver serves and NVML does not count: they fell off the bus, or failed, before the session was opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aie_agent.sources.nvml.bus_id import bus_id, sysfs_name

GPU_FOLDERS: Final = Path("/proc/driver/nvidia/gpus")
_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_DEV: Final = Path("/dev")
# What every read of a device brings that does not answer.
_NOBODY: Final = b"\xff\xff\xff\xff"
_MODEL: Final = re.compile(r"^Model:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_MINOR: Final = re.compile(r"^Device Minor:[ \t]*(\d{1,5})[ \t]*$", re.MULTILINE)
_LEFT_OUT: Final = re.compile(r"^GPU (?:Excluded|Blacklisted):[ \t]*Yes[ \t]*$", re.MULTILINE)


def may_be_lost(folders: Path, names: Iterable[str], pci_devices: Path = _PCI_DEVICES, dev: Path = _DEV) -> dict[str, str]:
    """Models by bus id of those among these folders that should be reached: by their names in `folders`, where the driver tells of
    each in a file `information`. To be subtracted are those that NVML has.

    A GPU that does not answer on the bus, or whose device file this process may use. Not one that was given to another container,
    or that the driver was told to leave out. Reads files of the driver's, which may wait for its locks.
    """
    found = {}
    for name in names:
        bus = bus_id(name)
        told = _read(folders / name / "information").decode("utf-8", "replace")
        if bus is None or _LEFT_OUT.search(told):
            continue
        minor = _MINOR.search(told)
        is_silent = _read(pci_devices / sysfs_name(bus) / "config", len(_NOBODY)) == _NOBODY
        if is_silent or (minor is not None and os.access(dev / f"nvidia{minor[1]}", os.R_OK | os.W_OK)):
            model = _MODEL.search(told)
            found[bus] = model[1] if model is not None and model[1] != "Unknown" else ""
    return found


def _read(path: Path, most: int = 4096) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(most) or b""
    except OSError:
        return b""
