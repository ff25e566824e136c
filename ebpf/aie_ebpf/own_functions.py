"""Functions that this process has loaded, as the kernel wants them to be named: a file, and an offset in it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from aie_ebpf.door import BpfError


class Place(NamedTuple):
    """A function as the kernel wants it to be named: a file, and an offset in it."""

    path: str
    offset: int


def place_of(function: Any) -> Place:
    """Where a function that ctypes has loaded lies in its file, by what this process maps: no symbol table is needed, and of
    a name with several versions it is the one that is called. Raises BpfError."""
    address = address_of(function)
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in fields[0].split("-"))
        if start <= address < end and len(fields) == 6:
            return Place(fields[5], address - start + int(fields[2], 16))
    raise BpfError(f"no mapped file has the function at {address:#x}")


def address_of(function: Any) -> int:
    """Its address here; 0 for none."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
