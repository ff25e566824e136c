"""The processes that programs count for: the map `watched`, which all modules share (programs/watched.h)."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Final

from aie_ebpf.door import Module

SETS: Final = ("locks", "sched", "faults", "cuda_memory", "cuda_sync", "cuda_copy", "cuda_launch", "gc", "lock_stacks")
"""In the order of `enum set`."""

_BEFORE_HITS: Final = 3  # gil_start, gil_end, off
_FIELDS: Final = _BEFORE_HITS + len(SETS) + 1  # hits, major_faults
_NO_HITS: Final = (0,) * len(SETS)


class WatchedProcesses:
    """Puts processes in and takes them out, and reads how often programs ran for each."""

    def __init__(self, module: Module) -> None:
        """`module` is the one that owns the map. Raises BpfError."""
        self._table = module.table("watched", "I", f"{_FIELDS}Q")
        self._known: set[int] = set()
        self._last_hits: dict[int, tuple[int, ...]] = {}
        self._faults: dict[int, int] = {}
        self._last_faults: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        """The tgids."""
        return iter(self._known)

    def watch(self, tgid: int, gil: tuple[int, int] | None, off: Collection[str]) -> None:
        """Begins to count for a process, or tells anew where its interpreter keeps the GIL and which sets are to leave it alone.
        Raises BpfError (too many)."""
        head = (*(gil or (0, 0)), sum(1 << SETS.index(name) for name in off))
        known = self._table.get(tgid) if tgid in self._known else None
        if known is None or known[:_BEFORE_HITS] != head:
            # Hits of this very moment are overwritten: a few, when a process is new or has changed.
            self._table.put((tgid,), (*head, *(known or (0,) * _FIELDS)[_BEFORE_HITS:]))
            self._known.add(tgid)
            self._faults.setdefault(tgid, 0)

    def forget(self, tgid: int) -> None:
        """Ends to count for a process."""
        self._table.delete(tgid)
        self._known.discard(tgid)
        for known in (self._last_hits, self._faults, self._last_faults):
            known.pop(tgid, None)

    def hits(self) -> dict[int, dict[str, int]]:
        """How often programs ran for each process since the last call, by set; without those for which none ran. Raises
        BpfError."""
        found = {}
        for (tgid,), value in self._table.items():
            if tgid not in self._known:
                continue
            now = value[_BEFORE_HITS:-1]
            before = self._last_hits.get(tgid, _NO_HITS)
            if now != before:
                gained = map(operator.sub, now, before)
                found[tgid] = {name: hits for name, hits in zip(SETS, gained, strict=True) if hits > 0}
                self._last_hits[tgid], self._faults[tgid] = now, value[-1]
        return found

    def major_faults(self) -> dict[int, int]:
        """Page faults that needed the disk since the last call, as of the last reading of `hits`."""
        found = {tgid: faults - self._last_faults.get(tgid, 0) for tgid, faults in self._faults.items()}
        self._last_faults |= self._faults
        return found
