"""The functions of CUDA's driver API as programs number them, and what counts by them: failures."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from aie_ebpf.door import Module, text
from aie_ebpf.messages import CudaFailure

CALLS: Final = tuple(re.findall(r"\bCALL_(\w+)", text("cuda.h").partition("enum call {")[2].partition("}")[0]))
"""Names by number: the program's own list, so that the two cannot differ."""


class FailureReader:
    """Reads the map `failures`."""

    def __init__(self, module: Module) -> None:
        """Raises BpfError."""
        self._failures = module.table("failures", "IIII", "Q")
        self._last: dict[tuple[int, int, int], int] = {}

    def read(self) -> dict[int, tuple[CudaFailure, ...]]:
        """Calls that failed since the reading before, by tgid. Raises BpfError."""
        found: dict[int, list[CudaFailure]] = defaultdict(list)
        for (tgid, call, code, _), (count,) in self._failures.items():
            gained = count - self._last.get((tgid, call, code), 0)
            self._last[tgid, call, code] = count
            if gained:
                found[tgid].append(CudaFailure(call=CALLS[call], code=code, count=gained))
        return {tgid: tuple(rows) for tgid, rows in found.items()}

    def forget(self, tgid: int) -> None:
        """Drops what is kept of a process."""
        for key in [key for key in self._last if key[0] == tgid]:
            del self._last[key]
            self._failures.delete(*key, 0)
