"""Launches of kernels and graphs, by function: the map of cuda_launch."""

from __future__ import annotations

from collections import defaultdict

from aie_ebpf.door import Module
from aie_ebpf.readers.cuda_calls import CALLS


class LaunchReader:
    """Reads the module of cuda_launch."""

    def __init__(self, module: Module) -> None:
        """Raises BpfError."""
        self._launches = module.table("launches", "II", "Q")
        self._last: dict[tuple[int, int], int] = {}

    def read(self) -> dict[int, dict[str, int]]:
        """Launches since the reading before, by tgid and function. Raises BpfError."""
        found: dict[int, dict[str, int]] = defaultdict(dict)
        for (tgid, call), (count,) in self._launches.items():
            gained = count - self._last.get((tgid, call), 0)
            self._last[tgid, call] = count
            if gained:
                found[tgid][CALLS[call]] = gained
        return dict(found)

    def forget(self, tgid: int) -> None:
        """Drops all of a process."""
        for key in [key for key in self._last if key[0] == tgid]:
            del self._last[key]
            self._launches.delete(*key)
