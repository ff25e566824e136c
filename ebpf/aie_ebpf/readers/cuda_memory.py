"""Memory asked from the CUDA driver and not given back: the maps of cuda_memory."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.door import Module
from aie_ebpf.messages import Allocations

KINDS: Final = ("device", "managed", "async", "vmm", "host", "registered")
"""In the order of `enum kind` in programs/cuda_memory.bpf.c."""

ModuleAt = Callable[[int, int], str]
"""The name of the file whose code is at an address: of (tgid, address)."""

_VMM: Final = KINDS.index("vmm")
# Where in a value of `memory_calls` the process is.
_CALL_TGID: Final = 11
_SIGN_BIT: Final = 1 << 63
# What the driver opens before it makes a context: on Linux, and on Windows' Linux.
_DEVICE_FILES: Final = ("/dev/nvidia", "/dev/dxg")


class MemoryUse(NamedTuple):
    """`contexts` is now, and None where some may have been made before we came. The rest are increases, except `outstanding_*`."""

    allocations: tuple[Allocations, ...]
    contexts: int | None
    unknown_frees: int


class _Group(NamedTuple):
    """A key of the map `groups`."""

    caller: int
    tgid: int
    generation: int
    kind: int
    size_class: int


class _GroupUse(NamedTuple):
    """A value of the map `groups`."""

    outstanding_bytes: int
    outstanding: int
    allocated_bytes: int
    allocations: int
    freed_bytes: int
    frees: int


class _Row(NamedTuple):
    """What groups are merged by."""

    kind: int
    size_class: int
    module: str


class _Process(NamedTuple):
    """A value of the map `cuda_processes`."""

    unknown_frees: int
    contexts: int
    generation: int
    seen_from_start: int


class MemoryReader:
    """Reads and tidies the maps of cuda_memory. `watch` a process when its probes are attached, `forget` it when it ends."""

    def __init__(self, module: Module) -> None:
        """Raises BpfError."""
        self._groups = module.table("groups", "QIIII", "6Q")
        self._processes = module.table("cuda_processes", "I", "QQII")
        self._live = module.table("live", "QII", "QQII")
        self._contexts = module.table("contexts", "QII", "Q")
        self._calls = module.table("memory_calls", "I", "9QII6I")
        self._last: dict[_Group, _GroupUse] = {}
        self._last_unknown: dict[int, int] = {}
        self._modules: dict[tuple[int, int], str] = {}

    def watch(self, tgid: int, proc: Path = Path("/proc")) -> bool:
        """A process's probes are attached. Returns whether it has not opened a GPU by now: then all of its contexts will be seen,
        and all of its memory. Raises BpfError."""
        known = self._processes.get(tgid) or (0, 0, 0, 0)
        is_new = not opened_a_gpu(tgid, proc)
        self._processes.put((tgid,), (*known[:3], int(is_new)))
        return is_new

    def read(self, module_at: ModuleAt) -> dict[int, MemoryUse]:
        """What each process allocated and freed since the reading before, and what it has outstanding now. Raises BpfError."""
        # Processes are read first: a generation that begins in between is not taken for an older one.
        processes = {key[0]: _Process(*value) for key, value in self._processes.items()}
        rows: dict[int, dict[_Row, _GroupUse]] = defaultdict(dict)
        dead: list[_Group] = []
        for key, value in self._groups.items():
            group, use = _Group(*key), _GroupUse(*(_no_less_than_0(each) for each in value))
            if _is_dead(group, processes):
                dead.append(group)
                use = _all_freed(use)
            gained = _since(use, self._last.get(group))
            self._last[group] = use
            if any(gained):
                row = _Row(group.kind, group.size_class, self._module(group, module_at))
                rows[group.tgid][row] = _sum(gained, rows[group.tgid].get(row))
        self._drop(dead)
        return {tgid: self._use(tgid, process, rows[tgid]) for tgid, process in processes.items()}

    def forget(self, tgid: int) -> None:
        """Drops all of a process: it ended, and its memory with it. Raises BpfError."""
        self._drop([group for key, _ in self._groups.items() if (group := _Group(*key)).tgid == tgid])
        for key in [key for key, _ in self._contexts.items() if key[1] == tgid]:
            self._contexts.delete(*key)
        for key in [key for key, value in self._calls.items() if value[_CALL_TGID] == tgid]:
            self._calls.delete(*key)
        self._processes.delete(tgid)
        self._last_unknown.pop(tgid, None)
        for place in [place for place in self._modules if place[0] == tgid]:
            del self._modules[place]

    def _drop(self, groups: Collection[_Group]) -> None:
        """Removes groups and all that is live in them: reading `live` takes 12 MB, so only where there are some."""
        if not groups:
            return
        for group in groups:
            self._groups.delete(*group)
            self._last.pop(group, None)
        gone = {(group.tgid, group.kind, group.generation) for group in groups}
        places = [key for key, (_, _, kind, generation) in self._live.items() if (key[1], kind, generation) in gone]
        for place in places:
            self._live.delete(*place)

    def _use(self, tgid: int, process: _Process, rows: dict[_Row, _GroupUse]) -> MemoryUse:
        unknown = process.unknown_frees - self._last_unknown.get(tgid, 0)
        self._last_unknown[tgid] = process.unknown_frees
        return MemoryUse(
            allocations=tuple(_allocations(row, use) for row, use in rows.items()),
            contexts=process.contexts if process.seen_from_start else None,
            unknown_frees=unknown,
        )

    def _module(self, group: _Group, module_at: ModuleAt) -> str:
        """Asked for once: what is mapped there later is another file."""
        place = group.tgid, group.caller
        if place not in self._modules:
            self._modules[place] = module_at(*place)
        return self._modules[place]


def opened_a_gpu(tgid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a GPU's device file open: then it may have contexts. True as well where that cannot be seen."""
    try:
        with os.scandir(proc / str(tgid) / "fd") as descriptors:
            return any(os.readlink(each.path).startswith(_DEVICE_FILES) for each in descriptors)
    except OSError:
        return True


def _is_dead(group: _Group, processes: Mapping[int, _Process]) -> bool:
    """Whether its memory went with the last context of its process. cuMemCreate's belongs to none."""
    process = processes.get(group.tgid)
    return process is not None and group.kind != _VMM and group.generation < process.generation


def _all_freed(use: _GroupUse) -> _GroupUse:
    return _GroupUse(
        0, 0, use.allocated_bytes, use.allocations, use.freed_bytes + use.outstanding_bytes, use.frees + use.outstanding
    )


def _since(use: _GroupUse, before: _GroupUse | None) -> _GroupUse:
    """What is outstanding, as it is; the rest, as it rose."""
    if before is None:
        return use
    return _GroupUse(*use[:2], *(now - then for now, then in zip(use[2:], before[2:], strict=True)))


def _sum(use: _GroupUse, other: _GroupUse | None) -> _GroupUse:
    return use if other is None else _GroupUse(*(one + another for one, another in zip(use, other, strict=True)))


def _no_less_than_0(value: int) -> int:
    """Below 0 where an allocation was freed by another thread before it was counted: for a moment."""
    return 0 if value & _SIGN_BIT else value


def _allocations(row: _Row, use: _GroupUse) -> Allocations:
    return Allocations(
        kind=KINDS[row.kind],
        size_class_bytes=1 << row.size_class,
        module=row.module,
        **use._asdict(),
    )
