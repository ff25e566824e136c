"""What programs could not note because a map was full: `lost` of programs/common.h. Of what is old in it, room is made."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_ebpf.door import Module, Table

MAPS: Final = (
    "futex_waiting", "locks", "threads", "devices", "events", "calls", "allocations", "groups",
    "visits", "requests", "runtime_calls",
)  # fmt: skip
"""In the order of `enum lost`."""

OLD_NS: Final = 60_000_000_000
_TRIED_EVERY_NS: Final = 10_000_000_000


class _Renewed(NamedTuple):
    """A map from which nothing tells when an entry is of no use any more. It could drop the oldest by itself (LRU), and would say
    nothing when it drops what is used. `is_time`: a value is when the entry was used, by the monotonic clock; else all go."""

    key: str
    value: str
    is_time: bool


_RENEWED: Final = {
    "visits": _Renewed("2Q", "Q", is_time=True),
    "requests": _Renewed("2Q", "Q", is_time=True),
    "runtime_calls": _Renewed("I", "3Q", is_time=False),
}


class LostReader:
    """Reads one module's counts."""

    def __init__(self, module: Module) -> None:
        """Raises BpfError."""
        self._lost = module.table("lost", "I", "Q")
        self._last = [0] * len(MAPS)
        self._tables = {name: module.table(name, each.key, each.value) for name, each in _RENEWED.items() if module.has(name)}
        self._tried_ns: dict[str, int] = {}

    def read(self, now_ns: int) -> dict[str, int]:
        """Increases by map since the reading before, only those above 0; `now_ns` is the monotonic clock. Raises BpfError."""
        now = [0] * len(MAPS)
        for (index,), (count,) in self._lost.items():
            now[index] = count
        gained = {name: after - before for name, after, before in zip(MAPS, now, self._last, strict=True) if after > before}
        self._last = now
        for name in gained.keys() & self._tables.keys():
            if now_ns - self._tried_ns.get(name, -_TRIED_EVERY_NS) >= _TRIED_EVERY_NS:
                self._tried_ns[name] = now_ns
                _make_room(self._tables[name], _RENEWED[name], now_ns)
        return gained


def _make_room(table: Table, kind: _Renewed, now_ns: int) -> None:
    """Where all of it is used, the map is too small: then nothing goes, and what finds no room goes on to be counted."""
    if not kind.is_time:
        table.drain()
        return
    for key, (used_ns,) in table.items():
        if now_ns - used_ns > OLD_NS:
            table.delete(*key)
