"""Bytes that copies asked for: the maps of cuda_copy."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from aie_ebpf.door import Module
from aie_ebpf.messages import CudaCopy
from aie_ebpf.readers.histograms import FIELDS, SLOTS, gained

DIRECTIONS: Final = ("htod", "dtoh", "dtod", "peer", "unified")
"""In the order of `enum direction` in programs/cuda_copy.bpf.c."""

_ZEROS: Final = (0,) * FIELDS


class CopyReader:
    """Reads the maps of cuda_copy."""

    def __init__(self, module: Module) -> None:
        """Raises BpfError."""
        self._copies = module.table("copies", "II", f"{FIELDS}Q")
        self._bursts = module.table("bursts", "II", "3Q")
        self._last: dict[tuple[int, int], tuple[int, ...]] = {}

    def read(self) -> dict[int, tuple[CudaCopy, ...]]:
        """What each process copied since the reading before. Raises BpfError."""
        bursts = {key: largest for key, (_, _, largest) in self._bursts.drain()}
        found: dict[int, list[CudaCopy]] = defaultdict(list)
        for (tgid, direction), now in self._copies.items():
            before = self._last.get((tgid, direction), _ZEROS)
            self._last[tgid, direction] = now
            sizes = gained(now, before, scale=1.0)
            if sizes is not None:
                found[tgid].append(
                    CudaCopy(
                        direction=DIRECTIONS[direction],
                        bytes=now[SLOTS] - before[SLOTS],
                        sizes=sizes,
                        burst_bytes=bursts.get((tgid, direction), 0),
                    )
                )
        return {tgid: tuple(rows) for tgid, rows in found.items()}

    def forget(self, tgid: int) -> None:
        """Drops all of a process. Raises BpfError."""
        for key in [key for key, _ in self._copies.items() if key[0] == tgid]:
            self._copies.delete(*key)
            self._bursts.delete(*key)
            self._last.pop((key[0], key[1]), None)
