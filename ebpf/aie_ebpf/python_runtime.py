"""Where a process's CPython keeps its GIL.

The interpreter's state is one variable, `_PyRuntime`, which every build exports (3.7 and later), stripped or not. The mutex and the
condition of the GIL lie in it: until 3.11 in the state of all interpreters, from 3.12 on in that of the main interpreter, which is
part of the same variable. A thread that waits for the GIL waits on a futex whose address is in there. Other locks in there are
seldom waited for. The GIL of a subinterpreter that has one of its own (PEP 684) is not in there, and not seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.elf import Elf, ElfError
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.elf_file import Segment
from aie_ebpf.mappings import PROC, MappedFile, access_path, load_bias, mapped_files

_LIBRARY: Final = re.compile(r"libpython\d")
_RUNTIME: Final = "_PyRuntime"
# From 3.11 on the variable has a section of its own, which a file keeps that hides the symbol.
_SECTION: Final = ".PyRuntime"


class _Layout(NamedTuple):
    """What of a file has to be known: the variable's address in it and size in bytes, and how it is loaded."""

    runtime: tuple[int, int] | None
    segments: tuple[Segment, ...]


class Interpreter(NamedTuple):
    """The CPython of a process: the file that holds it, a path that opens it, and the addresses of `_PyRuntime` in memory: the
    first, and the one behind the last."""

    file: MappedFile
    path: Path
    start: int
    end: int


def interpreter(
    tgid: int, proc: Path = PROC, cache: ElfCache | None = None, files: Sequence[MappedFile] | None = None
) -> Interpreter | None:
    """None where the process is no CPython, where its symbol is hidden, or when it is gone. `files` where its mappings were read
    already."""
    cache = cache or ElfCache()
    for file in _candidates(tgid, mapped_files(tgid, proc) if files is None else files, proc):
        path = access_path(file, proc)
        if path is None:
            continue
        try:
            layout = cache.ask(path, _RUNTIME, _layout)
            if layout.runtime is not None:
                vaddr, size = layout.runtime
                start = vaddr + load_bias(file, layout.segments)
                return Interpreter(file, path, start, start + size)
        except ElfError:  # a file that is named like an interpreter and is none
            continue
    return None


def gil_range(
    tgid: int, proc: Path = PROC, cache: ElfCache | None = None, files: Sequence[MappedFile] | None = None
) -> tuple[int, int] | None:
    """The addresses of `_PyRuntime` in a process: the first, and the one behind the last. None, and `files`, as for
    `interpreter`."""
    found = interpreter(tgid, proc, cache, files)
    return (found.start, found.end) if found is not None else None


def _candidates(tgid: int, files: Sequence[MappedFile], proc: Path) -> list[MappedFile]:
    """The files of a process that may hold an interpreter: the executable, whose symbols go before a library's, and libpython."""
    executable = _executable(tgid, proc)
    return [file for file in files if file.path == executable] + [file for file in files if _LIBRARY.match(file.name)]


def _executable(tgid: int, proc: Path) -> str | None:
    try:
        return os.readlink(proc / str(tgid) / "exe")
    except OSError:  # gone, a kernel thread, or not for us
        return None


def _layout(elf: Elf) -> _Layout:
    found = elf.data_symbol(_RUNTIME)
    section = elf.section(_SECTION) if found is None else None
    return _Layout((section.vaddr, section.size) if section is not None else found, elf.segments)
