"""What the child of the agent holds in the kernel and in descriptors, looked at from outside."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from pathlib import Path
from typing import Final

# type, id, key_size, value_size, max_entries, flags, name (struct bpf_map_info of uapi/linux/bpf.h).
_INFO: Final = struct.Struct("=6I16s")
_HASH: Final = 1


def descriptors(pid: int) -> Counter[str]:
    """How many a process holds of each kind: "bpf_link", "[perf_event]", "[pidfd]" and others."""
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[os.readlink(link).rpartition(":")[2]] += 1
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def entries(pid: int) -> dict[str, int]:
    """How many entries each hash map has that a process holds, by the map's name, which the kernel cuts at 15 letters. Without
    those that drop what is old by themselves (LRU)."""
    libbcc = ctypes.CDLL("libbcc.so.0", use_errno=True)
    found: dict[str, int] = {}
    for map_id in _map_ids(pid):
        descriptor = libbcc.bpf_map_get_fd_by_id(ctypes.c_uint32(map_id))
        assert descriptor >= 0, os.strerror(ctypes.get_errno())
        try:
            info, size = ctypes.create_string_buffer(_INFO.size), ctypes.c_uint32(_INFO.size)
            assert libbcc.bpf_obj_get_info_by_fd(descriptor, info, ctypes.byref(size)) == 0
            kind, _, key_bytes, *_, name = _INFO.unpack(info.raw)
            if kind == _HASH:
                found[name.rstrip(b"\0").decode()] = _count(libbcc, descriptor, key_bytes)
        finally:
            os.close(descriptor)
    return found


def _map_ids(pid: int) -> set[int]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = descriptor.read_text().splitlines()
        except FileNotFoundError:  # closed meanwhile
            continue
        found |= {int(line.split(":\t")[1]) for line in lines if line.startswith("map_id:")}
    return found


def _count(libbcc: ctypes.CDLL, descriptor: int, key_bytes: int) -> int:
    count, key = 0, ctypes.create_string_buffer(key_bytes)
    at = None
    while libbcc.bpf_get_next_key(descriptor, at, key) == 0:
        count, at = count + 1, key
    return count
