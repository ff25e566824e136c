"""The name that a GPU has on the PCI bus, which NVML, the kernel's log and sysfs each write in their own way."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_BUS_ID: Final = re.compile(r"(?:PCI:)?(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?")


@lru_cache(maxsize=256)  # every second the same few are asked for
def bus_id(text: str) -> str | None:
    """`domain:bus:device` in lower case with a domain of 4 digits (8 where it needs them): "0000:3b:00" for NVML's
    "00000000:3B:00.0", the log's "PCI:0000:3b:00" and sysfs' "0000:3b:00.0". None for what is no bus id.

    GPUs have one function, 0: it is left out.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2].lower()}:{match[3].lower()}"


def long_name(bus: str) -> str:
    """A bus id as NVML and nvidia-smi write it: "00000000:3B:00.0"."""
    domain, _, rest = bus.partition(":")
    return f"{domain:0>8}:{rest}.0".upper()


def sysfs_name(bus: str) -> str:
    """The directory below /sys/bus/pci/devices of the GPU with this bus id."""
    return f"{bus}.0"
