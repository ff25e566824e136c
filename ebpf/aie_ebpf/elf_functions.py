"""Which function an address is in, by a file's symbol tables: its exported functions, and all where it was not stripped."""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from aie_ebpf.elf_file import ElfError, ElfFile, Section, string_at

_SYMBOL: Final = struct.Struct("<IBBHQQ")  # st_name, st_info, st_other, st_shndx, st_value, st_size
_FUNCTION, _IFUNC = 2, 10
_UNDEFINED: Final = 0
_LARGEST_TABLE: Final = 24 << 20
"""A million symbols, which take a second to look through; beyond that a function has no name."""
_LONGEST_NAME: Final = 513
"""One more than is shown, which then says that it was cut."""
_MOST_NAMES: Final = 1 << 14
_MOST_MATCHES: Final = 1 << 16
"""Of addresses and symbols, each of which may be said to cover them all. Real functions have a few names and do not overlap: what
comes beyond is not looked at."""
_CHUNK: Final = _SYMBOL.size << 14


class Function(NamedTuple):
    """A function of a file, and where it begins (before the load bias)."""

    name: str
    vaddr: int


def functions_at(elf: ElfFile, vaddrs: Collection[int]) -> dict[int, Function]:
    """The function that each address is in, where one is known. Of several names of one place the plainest: without underscores in
    front, and the shortest. Looks through one table of exported functions and one of all. Raises ElfError where a table is not what
    it says."""
    wanted = sorted(set(vaddrs))
    found: dict[int, Function] = {}
    for vaddr, function in itertools.islice(_matches(elf, _tables(elf), wanted), _MOST_MATCHES):
        known = found.get(vaddr)
        if known is None or _plainness(function) < _plainness(known):
            found[vaddr] = function
    return found


def _plainness(function: Function) -> tuple[int, int, str]:
    name = function.name
    return len(name) - len(name.lstrip("_")), len(name), name


def _tables(elf: ElfFile) -> Iterator[tuple[Section, Section]]:
    """The first table of each kind, as linkers write one, and its names."""
    for kind in ("SHT_DYNSYM", "SHT_SYMTAB"):
        table = next((section for section in elf.sections if section.kind == kind), None)
        if table is not None and table.size <= _LARGEST_TABLE and table.link < len(elf.sections):
            yield table, elf.sections[table.link]


def _matches(elf: ElfFile, tables: Iterable[tuple[Section, Section]], wanted: list[int]) -> Iterator[tuple[int, Function]]:
    names = 0
    for table, strings in tables:
        for name_at, info, _, section, value, size in _rows(elf, table):
            if info & 0xF not in (_FUNCTION, _IFUNC) or section == _UNDEFINED:
                continue
            first = bisect.bisect_left(wanted, value)
            if first < len(wanted) and wanted[first] < value + size:
                names += 1
                if names > _MOST_NAMES:
                    return
                name = _name(elf, strings, name_at)
                for vaddr in wanted[first : bisect.bisect_left(wanted, value + size)]:
                    yield vaddr, Function(name, value)


def _rows(elf: ElfFile, table: Section) -> Iterator[tuple[int, ...]]:
    """A part at a time: a large table is many times as much memory as the answer."""
    for at in range(0, table.size - table.size % _SYMBOL.size, _CHUNK):
        size = min(_CHUNK, table.size - table.size % _SYMBOL.size - at)
        yield from _SYMBOL.iter_unpack(elf.read(table.offset + at, size))


def _name(elf: ElfFile, strings: Section, at: int) -> str:
    size = min(strings.size - at, _LONGEST_NAME)
    if size <= 0:
        raise ElfError("a symbol's name is beyond the names")
    data = elf.read(strings.offset + at, size)
    return string_at(data if b"\0" in data else data + b"\0", 0)
