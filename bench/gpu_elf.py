"""What a shared library of 64 bits exports: symbols with versions, by address; and where an address lies in its file.

A uprobe is put at an offset in a file, and two versions of a symbol are two addresses, so names alone do not tell what is probed.
"""

from __future__ import annotations

import mmap
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_EHDR: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR: Final = struct.Struct("<IIQQQQQQ")
_SHDR: Final = struct.Struct("<IIQQQQIIQQ")
_SYM: Final = struct.Struct("<IBBHQQ")
_VERDEF: Final = struct.Struct("<HHHHIII")
_PT_LOAD, _SHT_DYNSYM, _SHT_VERSYM, _SHT_VERDEF = 1, 11, 0x6FFFFFFF, 0x6FFFFFFD
_UNDEFINED: Final = 0
_FUNCTION_TYPES: Final = frozenset({2, 10})  # STT_FUNC, STT_GNU_IFUNC
_HIDDEN: Final = 0x8000
_FIRST_VERSION: Final = 2


class Symbol(NamedTuple):
    """A function that is exported: its address in the file's own numbering. `version` is None where it has none; only a default one
    is found by name alone, and written with two signs."""

    name: str
    address: int
    version: str | None
    is_default: bool

    @property
    def full_name(self) -> str:
        """As linkers write it."""
        return self.name if self.version is None else f"{self.name}{'@@' if self.is_default else '@'}{self.version}"


class _Section(NamedTuple):
    type: int
    offset: int
    size: int
    link: int
    info: int


class Library:
    """Reads a file at once. Raises ValueError for what is no such library, and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            header = _EHDR.unpack_from(image)
            if header[0][:6] != b"\x7fELF\x02\x01":
                raise ValueError(f"{path} is no library of 64 bits, little-endian")
            programs = (_PHDR.unpack_from(image, header[5] + place * header[9]) for place in range(header[10]))
            self._loads = [(address, offset, size) for kind, _, offset, address, _, size, _, _ in programs if kind == _PT_LOAD]
            sections = [_section(image, header[6] + place * header[11]) for place in range(header[12])]
            self.symbols = tuple(_symbols(image, sections))
        by_address: dict[int, list[Symbol]] = defaultdict(list)
        for symbol in self.symbols:
            by_address[symbol.address].append(symbol)
        self.by_address = dict(by_address)

    def offset(self, address: int) -> int | None:
        """Where in the file an address lies; None for one that is not loaded from it."""
        found = (offset + address - begin for begin, offset, size in self._loads if begin <= address < begin + size)
        return next(found, None)


def _section(image: mmap.mmap, at: int) -> _Section:
    _, kind, _, _, offset, size, link, info, _, _ = _SHDR.unpack_from(image, at)
    return _Section(kind, offset, size, link, info)


def _symbols(image: mmap.mmap, sections: list[_Section]) -> Iterator[Symbol]:
    table = next((section for section in sections if section.type == _SHT_DYNSYM), None)
    if table is None:
        raise ValueError("it exports nothing")
    versym = next((section for section in sections if section.type == _SHT_VERSYM), None)
    versions = _versions(image, sections)
    names = sections[table.link].offset
    for place in range(table.size // _SYM.size):
        name, info, _, section, address, _ = _SYM.unpack_from(image, table.offset + place * _SYM.size)
        if section == _UNDEFINED or info & 0xF not in _FUNCTION_TYPES:
            continue
        number = 1 if versym is None else struct.unpack_from("<H", image, versym.offset + 2 * place)[0]
        version = versions.get(number & ~_HIDDEN) if number & ~_HIDDEN >= _FIRST_VERSION else None
        yield Symbol(_text(image, names + name), address, version, not number & _HIDDEN)


def _versions(image: mmap.mmap, sections: list[_Section]) -> dict[int, str]:
    """Names of the versions that the library defines, by number."""
    found: dict[int, str] = {}
    for section in sections:
        if section.type != _SHT_VERDEF:
            continue
        at, names = section.offset, sections[section.link].offset
        for _ in range(section.info):
            _, _, number, _, _, auxiliary, following = _VERDEF.unpack_from(image, at)
            found[number] = _text(image, names + struct.unpack_from("<I", image, at + auxiliary)[0])
            at += following
    return found


def _text(image: mmap.mmap, at: int) -> str:
    return image[at : image.find(b"\0", at)].decode(errors="replace")
