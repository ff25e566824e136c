"""The processes that programs count for: the map `watched`, which all modules share (programs/watched.h)."""

from __future__ import annotations

import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from aie_ebpf.calibrate import UNKNOWN, UPROBE, UPROBE_EMULATED, URETPROBE
from aie_ebpf.door import Module

SETS: Final = ("locks", "sched", "faults", "cuda_memory", "cuda_sync", "cuda_copy", "cuda_launch", "gc", "lock_stacks")
"""In the order of `enum set`."""

STEPPED, EMULATED = 1, 2
"""Cookies: what costs a hit of a uprobe that is attached with one (`enum hit_kind`)."""

_KINDS: Final = (UNKNOWN, UPROBE, UPROBE_EMULATED, URETPROBE)
"""In the order of `enum hit_kind`."""

_COUNTED: Final = tuple((name, kind) for kind in _KINDS for name in SETS)
_HEAD: Final = struct.Struct("3Q")  # gil_start, gil_end, off
_COUNTS: Final = struct.Struct(f"{len(_COUNTED) + 1}Q")  # hits, major_faults
_ENTERED: Final = struct.Struct("Q")
# So many are asked for one by one. A reading of the whole map costs about as much as that.
_FEW: Final = 16


class WatchedProcesses:
    """Puts processes in and takes them out, and reads how often programs ran for each."""

    def __init__(self, module: Module) -> None:
        """`module` is the one that owns the map. Raises BpfError."""
        self._table = module.table("watched", "I", f"{_HEAD.size}s{_COUNTS.size}s{_ENTERED.size}s")
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
            self._table.put((tgid,), (head, known[1] if known is not None else bytes(_COUNTS.size), bytes(_ENTERED.size)))
            self._known.add(tgid)
            self._faults.setdefault(tgid, 0)

    def forget(self, tgid: int) -> None:
        """Ends to count for a process."""
        self._table.delete(tgid)
        self._known.discard(tgid)
        for known in (self._last, self._faults):
            known.pop(tgid, None)

    def hits(self, tgids: Collection[int] | None = None) -> dict[int, dict[str, Counter[str]]]:
        """How often programs ran for each of these processes (None: for all) since it was last asked for, by set, and by what costs
        a hit: UNKNOWN for tracepoints, and where probes cannot be told apart. Without those for which none ran. Raises BpfError."""
        found = {}
        for tgid, counts in self._counts(tgids):
            before = self._last.get(tgid, 0)
            now = int.from_bytes(counts, sys.byteorder)
            if now != before and tgid in self._known:
                *hits, faults = _COUNTS.unpack((now - before).to_bytes(_COUNTS.size, sys.byteorder))
                found[tgid] = _by_set(hits)
                self._last[tgid] = now
                self._faults[tgid] += faults
        return found

    def _counts(self, tgids: Collection[int] | None) -> Iterator[tuple[int, bytes]]:
        if tgids is None or len(tgids) > _FEW:
            return ((tgid, counts) for (tgid,), (_, counts, _) in self._table.items() if tgids is None or tgid in tgids)
        values = ((tgid, self._table.get(tgid)) for tgid in tgids)
        return ((tgid, value[1]) for tgid, value in values if value is not None)

    def entered(self, tgid: int) -> int:
        """Where the function begins that a process entered last, of those with probes that are detached one by one; 0: none."""
        value = self._table.get(tgid)
        return _ENTERED.unpack(value[2])[0] if value is not None else 0

    def major_faults(self) -> dict[int, int]:
        """Page faults that needed the disk since the last call, as of the last readings of `hits`."""
        found, self._faults = self._faults, dict.fromkeys(self._faults, 0)
        return found


def _by_set(hits: Sequence[int]) -> dict[str, Counter[str]]:
    """Those that are not 0."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for (name, kind), count in zip(_COUNTED, hits, strict=True):
        if count:
            found[name][kind] = count
    return found
