"""How long CPython's garbage collector takes: the maps of gc."""

from __future__ import annotations

from aie_ebpf.door import Module
from aie_ebpf.messages import Histogram
from aie_ebpf.readers.histograms import FIELDS, gained


class GcReader:
    """Reads the module that holds gc."""

    def __init__(self, module: Module) -> None:
        """Raises BpfError."""
        self._pauses = module.table("gc_pauses", "I", f"{FIELDS}Q")
        self._last: dict[int, tuple[int, ...]] = {}

    def read(self) -> dict[int, Histogram]:
        """Collections that ended since the reading before, by tgid: only processes that had any. Raises BpfError."""
        found = {}
        for (tgid,), now in self._pauses.items():
            histogram = gained(now, self._last.get(tgid, (0,) * FIELDS))
            self._last[tgid] = now
            if histogram is not None:
                found[tgid] = histogram
        return found

    def forget(self, tgid: int) -> None:
        """A process ended or is released: a later one with its number begins at nothing."""
        self._pauses.delete(tgid)
        self._last.pop(tgid, None)
