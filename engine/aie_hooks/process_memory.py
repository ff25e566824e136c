"""What a process knows of its own memory beside torch's allocator: what malloc and Python hold, and what is resident.

Read where it is needed and by this process only. What a system does not tell is None: malloc's numbers need glibc 2.33.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_STATUS: Final = Path("/proc/self/status")
_ANONYMOUS: Final = ("RssAnon:", "VmSwap:")
_IN_MALLOC_H: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class MallocBytes(NamedTuple):
    """Of glibc's malloc: `used_bytes` in chunks that were asked for and not freed, `held_bytes` what it has of the system for them,
    free chunks included."""

    used_bytes: int
    held_bytes: int


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h. `arena` are bytes taken by brk and for arenas, `hblkhd` those in mapped chunks; `uordblks` of
    the former are in use."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _IN_MALLOC_H)


def malloc_bytes() -> MallocBytes | None:
    """What malloc holds now, over all its arenas; None where it does not tell. Takes each arena's lock for a moment."""
    read = _mallinfo2()
    if read is None:
        return None
    info = read()
    return MallocBytes(info.uordblks + info.hblkhd, info.arena + info.hblkhd)


def malloc_trim() -> bool | None:
    """Gives the system back what malloc holds and nobody uses; whether there was any, None where malloc cannot. Other threads'
    calls of malloc wait meanwhile: milliseconds for each GB, the interpreter does not."""
    trim = getattr(_c_library(), "malloc_trim", None)  # glibc only
    return None if trim is None else bool(trim(0))


def python_blocks() -> int:
    """Blocks of memory that the interpreter holds, of any size. Some 0.1 ms for each million of small objects."""
    return sys.getallocatedblocks()


def physical_bytes(status: Path = _STATUS) -> int | None:
    """Anonymous memory of this process, resident or swapped out: what the agent compares with the allocator's. None where there is
    no such /proc."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(_ANONYMOUS)]
    return sum(found) if found else None


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:  # a static interpreter
        return None


@functools.cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    read = getattr(_c_library(), "mallinfo2", None)
    if read is None:
        return None
    read.restype = _Mallinfo2
    read.argtypes = ()
    return read  # type: ignore[no-any-return]  # of a ctypes function nothing more is known
