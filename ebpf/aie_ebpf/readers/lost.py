"""What programs could not note because a map was full: `lost` of programs/common.h."""

from __future__ import annotations

from typing import Final

from aie_ebpf.door import Module

MAPS: Final = ("futex_waiting", "locks", "threads", "devices", "events", "calls", "allocations", "groups")
"""In the order of `enum lost`."""


class LostReader:
    """Reads one module's counts."""

    def __init__(self, module: Module) -> None:
        """Raises BpfError."""
        self._lost = module.table("lost", "I", "Q")
        self._last = [0] * len(MAPS)

    def read(self) -> dict[str, int]:
        """Increases by map since the reading before, only those above 0. Raises BpfError."""
        now = [0] * len(MAPS)
        for (index,), (count,) in self._lost.items():
            now[index] = count
        gained = {name: after - before for name, after, before in zip(MAPS, now, self._last, strict=True) if after > before}
        self._last = now
        return gained
