"""USDT probes that a process's interpreter has compiled in, as points to attach to.

Each is a nop, and most have a counter in the file's data that the program tests before it prepares the arguments. The kernel raises
the counter while we are attached (the semaphore's offset goes with the uprobe) and lowers it when we go, however we go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aie_ebpf.cuda_probes import Uprobe
from aie_ebpf.elf import ElfError
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.mappings import PROC, MappedFile
from aie_ebpf.python_runtime import interpreter
from aie_ebpf.targets import AttachPoint

_PROVIDER: Final = "python"
_NEW_IN: Final = "CPython 3.6"

GC_PROBES: Final = (
    Uprobe("gc", "python", ("gc__start",), "gc_start", None, "gc__start(int generation)", _NEW_IN),
    Uprobe("gc", "python", ("gc__done",), "gc_done", None, "gc__done(long collected)", _NEW_IN),
)
"""A probe's name stands for its symbol."""


def gc_points(
    tgid: int, proc: Path = PROC, cache: ElfCache | None = None, files: Sequence[MappedFile] | None = None
) -> tuple[list[AttachPoint], str]:
    """Where to attach the programs of `gc` in a process, or an empty list and why it cannot be seen there. `files` where its
    mappings were read already."""
    cache = cache or ElfCache()
    found = interpreter(tgid, proc, cache, files)
    if found is None:
        return [], "the process is no CPython"
    try:
        notes = cache.ask(found.path, "usdt", lambda elf: elf.usdt_notes())
    except ElfError as error:
        return [], f"{found.file.name}: {error}"
    rows = {row.symbols[0]: row for row in GC_PROBES}
    points = [
        AttachPoint(rows[note.name], note.name, found.path, found.file.device, found.file.inode, note.offset, note.semaphore_offset)
        for note in notes
        if note.provider == _PROVIDER and note.name in rows
    ]
    if {point.symbol for point in points} != set(rows):
        return [], f"{found.file.name} was built without USDT probes (--with-dtrace)"
    return points, ""
