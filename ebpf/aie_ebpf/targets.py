"""Where in a process's files the rows of probes are attached: names into files and offsets.

The process's own files are looked at, never the host's library of the same name: a container has its own copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.cuda_probes import Uprobe
from aie_ebpf.elf import Elf, ElfError
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.mappings import PROC, MappedFile, access_path

_LIBRARY_SUFFIX: Final = ".so"
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class AttachPoint:
    """A row and the function that it is attached to: at an offset of a file, which `path` opens now. Two are the same where row,
    file and offset are: a library that is replaced while it is used keeps its device and inode, and has another path from then on.
    `semaphore_offset` is where in the file the counter of a USDT probe lies; 0 where there is none."""

    row: Uprobe
    symbol: str = field(compare=False)
    path: Path = field(compare=False)
    device: int
    inode: int
    offset: int
    semaphore_offset: int = 0


class Unseen(NamedTuple):
    """A row whose calls are not seen in this process, or not all of them, and why: one line."""

    row: Uprobe
    reason: str


class _Functions(NamedTuple):
    """Which of the wanted functions a file defines, by name: their offsets, or why they cannot be attached to."""

    offsets: dict[str, int]
    refused: dict[str, str]


class _Holder(NamedTuple):
    """A file that has, or should have, the functions of a library."""

    file: MappedFile
    path: Path
    functions: _Functions


def attach_points(
    files: Sequence[MappedFile], rows: Sequence[Uprobe], proc: Path = PROC, cache: ElfCache | None = None
) -> tuple[list[AttachPoint], list[Unseen]]:
    """Resolves rows against the files of one process. A function that has several names is attached to once for each set.

    A row that is optional, or newer than every row that its library does have, is not missed: the library is older, and nobody can
    call it. Where no file has the library's name, the program itself may hold it, linked statically.
    """
    cache = cache or ElfCache()
    points: dict[tuple[str, int, int, int], AttachPoint] = {}
    unseen: list[Unseen] = []
    for library in dict.fromkeys(row.soname for row in rows):
        of_library = [row for row in rows if row.soname == library]
        holders, obstacles = _holders(files, library, of_library, proc, cache)
        newest = _newest(of_library, holders)
        for row in of_library:
            for key, point in _points(row, holders):
                points.setdefault(key, point)
            unseen += (Unseen(row, reason) for reason in _reasons(row, holders, obstacles, newest))
    return list(points.values()), unseen


def _holders(
    files: Sequence[MappedFile], library: str, rows: Sequence[Uprobe], proc: Path, cache: ElfCache
) -> tuple[list[_Holder], list[str]]:
    """The files that have a library's functions, and why others that should cannot be looked at."""
    names = tuple(dict.fromkeys(name for row in rows for name in row.symbols))
    by_name = [file for file in files if file.name.startswith(library)]
    programs = [] if by_name else [file for file in files if _LIBRARY_SUFFIX not in file.name]
    holders, obstacles = [], []
    for file in by_name or programs:
        path = access_path(file, proc)
        if path is None:
            obstacles.append(f"{file.name} is mapped and cannot be opened: its path leads elsewhere, or we lack CAP_SYS_ADMIN")
            continue
        try:
            functions = cache.ask(path, (names, bool(by_name)), _in_library(names) if by_name else _in_program(names))
        except ElfError as error:
            obstacles.append(f"{file.name}: {error}")
            continue
        if by_name or functions.offsets:
            holders.append(_Holder(file, path, functions))
    if not by_name and not holders and not all(row.optional for row in rows):
        obstacles = [f"no file {library}* is mapped, and the program does not hold it", *obstacles]
    return holders, obstacles


def _in_library(names: Iterable[str]) -> Callable[[Elf], _Functions]:
    return lambda elf: _exported(elf, names)


def _in_program(names: Iterable[str]) -> Callable[[Elf], _Functions]:
    def look(elf: Elf) -> _Functions:
        exported = _exported(elf, names)
        hidden = elf.in_symbol_table([name for name in names if name not in exported.offsets])
        return _Functions({**exported.offsets, **{name: symbol.offset for name, symbol in hidden.items()}}, exported.refused)

    return look


def _exported(elf: Elf, names: Iterable[str]) -> _Functions:
    offsets, refused = {}, {}
    for name in names:
        try:
            symbol = elf.exported(name)
        except ElfError as error:
            refused[name] = str(error)
        else:
            if symbol is not None:
                offsets[name] = symbol.offset
    return _Functions(offsets, refused)


def _points(row: Uprobe, holders: Iterable[_Holder]) -> Iterator[tuple[tuple[str, int, int, int], AttachPoint]]:
    """The points of a row, with what tells two of them apart."""
    for holder in holders:
        for name in row.symbols:
            offset = holder.functions.offsets.get(name)
            if offset is not None:
                key = row.set, holder.file.device, holder.file.inode, offset
                yield key, AttachPoint(row, name, holder.path, holder.file.device, holder.file.inode, offset)


def _reasons(row: Uprobe, holders: Sequence[_Holder], obstacles: Sequence[str], newest: tuple[int, ...] | None) -> Iterator[str]:
    """Why calls of a row are not seen."""
    yield from obstacles
    for holder in holders:
        yield from (
            f"{holder.file.name}: {holder.functions.refused[name]}" for name in row.symbols if name in holder.functions.refused
        )
    found = any(name in holder.functions.offsets or name in holder.functions.refused for holder in holders for name in row.symbols)
    is_newer = newest is not None and _version(row.since) > newest
    if holders and not found and not row.optional and not is_newer:
        names = ", ".join(holder.file.name for holder in holders)
        yield f"{names} does not export {row.symbols[0]}"


def _newest(rows: Iterable[Uprobe], holders: Sequence[_Holder]) -> tuple[int, ...] | None:
    """The newest CUDA version of which a function is there: the library is at least of that one. None: no function is."""
    there = (row for row in rows if any(name in holder.functions.offsets for holder in holders for name in row.symbols))
    return max((_version(row.since) for row in there), default=None)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(text))
