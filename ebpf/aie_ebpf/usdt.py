"""USDT probes that a process's interpreter has compiled in, as points to attach to.

Each is a nop, and most have a counter in the file's data that the program tests before it prepares the arguments. The kernel raises
the counter while we are attached (the semaphore's offset goes with the uprobe) and lowers it when we go, however we go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aie_ebpf.cuda_probes import Uprobe
from aie_ebpf.elf import ElfError
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.mappings import PROC, access_path
from aie_ebpf.python_runtime import interpreter_files
from aie_ebpf.targets import AttachPoint

_PROVIDER: Final = "python"
_NEW_IN: Final = "CPython 3.6"

GC_PROBES: Final = (
    Uprobe("gc", "python", ("gc__start",), "gc_start", None, "gc__start(int generation)", _NEW_IN),
    Uprobe("gc", "python", ("gc__done",), "gc_done", None, "gc__done(long collected)", _NEW_IN),
)
"""A probe's name stands for its symbol."""


def gc_points(tgid: int, proc: Path = PROC, cache: ElfCache | None = None) -> tuple[list[AttachPoint], str]:
    """Where to attach the programs of `gc` in a process, or an empty list and why it cannot be seen there."""
    cache = cache or ElfCache()
    reason = "the process is no CPython"
    for file in interpreter_files(tgid, proc):
        path = access_path(file, proc)
        if path is None:
            reason = f"{file.name} cannot be opened"
            continue
        try:
            notes = cache.ask(path, "usdt", lambda elf: elf.usdt_notes())
        except ElfError as error:
            reason = f"{file.name}: {error}"
            continue
        by_name = {row.symbols[0]: row for row in GC_PROBES}
        points = [
            AttachPoint(by_name[note.name], note.name, path, note.offset, note.semaphore_offset)
            for note in notes
            if note.provider == _PROVIDER and note.name in by_name
        ]
        if {point.symbol for point in points} == set(by_name):
            return points, ""
        reason = f"{file.name} was built without USDT probes (--with-dtrace)"
    return [], reason
