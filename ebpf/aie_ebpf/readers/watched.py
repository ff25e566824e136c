"""The processes that programs count for: the map `watched`, which all modules share (programs/watched.h)."""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterator
from typing import Final

from aie_ebpf.door import Module

SETS: Final = ("locks", "sched", "faults", "cuda_memory", "cuda_sync", "cuda_copy", "cuda_launch", "gc", "lock_stacks")
"""In the order of `enum set`."""

_HEAD: Final = struct.Struct("3Q")  # gil_start, gil_end, off
_COUNTS: Final = struct.Struct(f"{len(SETS) + 1}Q")  # hits, major_faults
# So many are asked for one by one. A reading of the whole map costs about as much as that.
_FEW: Final = 16


class WatchedProcesses:
    """Puts processes in and takes them out, and reads how often programs ran for each."""

    def __init__(self, module: Module) -> None:
        """`module` is the one that owns the map. Raises BpfError."""
        self._table = module.table("watched", "I", f"{_HEAD.size}s{_COUNTS.size}s")
        self._known: set[int] = set()
        # By process: all its counters as one long number. They only grow, so that one subtraction is that of each.
        self._last: dict[int, int] = {}
        self._faults: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        """The tgids."""
        return iter(self._known)

    def watch(self, tgid: int, gil: tuple[int, int] | None, off: Collection[str]) -> None:
        """Begins to count for a process, or tells anew where its interpreter keeps the GIL and which sets are to leave it alone.
        Raises BpfError (too many)."""
        head = _HEAD.pack(*(gil or (0, 0)), sum(1 << SETS.index(name) for name in off))
        known = self._table.get(tgid) if tgid in self._known else None
        if known is None or known[0] != head:
            # Hits of this very moment are overwritten: a few, when a process is new or has changed.
            self._table.put((tgid,), (head, known[1] if known is not None else bytes(_COUNTS.size)))
            self._known.add(tgid)
            self._faults.setdefault(tgid, 0)

    def forget(self, tgid: int) -> None:
        """Ends to count for a process."""
        self._table.delete(tgid)
        self._known.discard(tgid)
        for known in (self._last, self._faults):
            known.pop(tgid, None)

    def hits(self, tgids: Collection[int] | None = None) -> dict[int, dict[str, int]]:
        """How often programs ran for each of these processes (None: for all) since it was last asked for, by set; without those for
        which none ran. Raises BpfError."""
        found = {}
        for tgid, counts in self._counts(tgids):
            before = self._last.get(tgid, 0)
            now = int.from_bytes(counts, sys.byteorder)
            if now != before and tgid in self._known:
                *hits, faults = _COUNTS.unpack((now - before).to_bytes(_COUNTS.size, sys.byteorder))
                found[tgid] = {name: count for name, count in zip(SETS, hits, strict=True) if count}
                self._last[tgid] = now
                self._faults[tgid] += faults
        return found

    def _counts(self, tgids: Collection[int] | None) -> Iterator[tuple[int, bytes]]:
        if tgids is None or len(tgids) > _FEW:
            return ((tgid, counts) for (tgid,), (_, counts) in self._table.items() if tgids is None or tgid in tgids)
        values = ((tgid, self._table.get(tgid)) for tgid in tgids)
        return ((tgid, value[1]) for tgid, value in values if value is not None)

    def major_faults(self) -> dict[int, int]:
        """Page faults that needed the disk since the last call, as of the last readings of `hits`."""
        found, self._faults = self._faults, dict.fromkeys(self._faults, 0)
        return found
