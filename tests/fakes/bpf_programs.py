"""The BPF programs that the kernel holds: of one process, and all."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path
from typing import Final

_BPF: Final = {"x86_64": 321, "aarch64": 280}[platform.machine()]
_PROG_GET_NEXT_ID: Final = 11


class _NextId(ctypes.Structure):
    """The part of `union bpf_attr` for BPF_PROG_GET_NEXT_ID (uapi/linux/bpf.h)."""

    _fields_ = (("start_id", ctypes.c_uint32), ("next_id", ctypes.c_uint32), ("open_flags", ctypes.c_uint32))


def all_programs() -> set[int]:
    """The ids of all programs that are loaded. Needs root. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: set[int] = set()
    attributes = _NextId()
    while libc.syscall(_BPF, _PROG_GET_NEXT_ID, ctypes.byref(attributes), ctypes.sizeof(attributes)) == 0:
        found.add(attributes.next_id)
        attributes.start_id = attributes.next_id
    if ctypes.get_errno() != errno.ENOENT:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def programs_of(pid: int) -> set[int]:
    """The ids of the programs that a process has descriptors of. Empty when it is gone."""
    found = set()
    for path in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            text = path.read_text()
        except OSError:  # closed meanwhile
            continue
        found |= {int(line.split()[1]) for line in text.splitlines() if line.startswith("prog_id:")}
    return found
