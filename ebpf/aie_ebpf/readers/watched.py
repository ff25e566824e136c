"""The processes that programs count for: the map `watched`, which all modules share (programs/watched.h)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from aie_ebpf.door import Module

SETS: Final = ("locks", "sched", "faults", "cuda_memory", "cuda_sync", "cuda_copy", "cuda_launch", "gc", "lock_stacks")
"""In the order of `enum set`."""

_BEFORE_HITS: Final = 3  # gil_start, gil_end, off
_FIELDS: Final = _BEFORE_HITS + len(SETS) + 1  # hits, major_faults


class WatchedProcesses:
    """Puts processes in and takes them out, and reads how often programs ran for each."""

    def __init__(self, module: Module) -> None:
        """`module` is the one that owns the map. Raises BpfError."""
        self._table = module.table("watched", "I", f"{_FIELDS}Q")
        self._known: set[int] = set()
        self._last_hits: dict[int, tuple[int, ...]] = {}
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

    def forget(self, tgid: int) -> None:
        """Ends to count for a process."""
        self._table.delete(tgid)
        self._known.discard(tgid)
        self._last_hits.pop(tgid, None)
        self._last_faults.pop(tgid, None)

    def hits(self) -> dict[int, dict[str, int]]:
        """How often programs ran for each process since the last call, by set. Raises BpfError."""
        found = {}
        for tgid, value in self._entries():
            now = value[_BEFORE_HITS : _BEFORE_HITS + len(SETS)]
            before = self._last_hits.get(tgid, (0,) * len(SETS))
            self._last_hits[tgid] = now
            found[tgid] = {name: after - earlier for name, after, earlier in zip(SETS, now, before, strict=True) if after > earlier}
        return found

    def major_faults(self) -> dict[int, int]:
        """Page faults that needed the disk since the last call. Raises BpfError."""
        found = {}
        for tgid, value in self._entries():
            found[tgid] = value[-1] - self._last_faults.get(tgid, 0)
            self._last_faults[tgid] = value[-1]
        return found

    def _entries(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        return ((key[0], value) for key, value in self._table.items() if key[0] in self._known)
