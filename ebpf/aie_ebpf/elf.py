"""What of an ELF file can be attached to or found in memory: functions and data by name, USDT probes.

Names are looked up through the hash section that the dynamic loader itself uses: a library of a gigabyte costs no more than a small
one.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final, NamedTuple

from aie_ebpf.elf_file import ElfError, ElfFile, Section, string_at

__all__ = ["Elf", "ElfError", "Symbol", "UsdtNote"]

_SYMBOL: Final = struct.Struct("<IBBHQQ")  # st_name, st_info, st_other, st_shndx, st_value, st_size
_WORD: Final = struct.Struct("<I")
_GNU_HASH: Final = struct.Struct("<4I")  # buckets, first hashed symbol, 64-bit words of the Bloom filter, its shift
_SYSV_HASH: Final = struct.Struct("<2I")  # buckets, chains

_UNDEFINED: Final = 0
_ABSOLUTE: Final = 0xFFF1
_LOCAL: Final = 0
_NO_TYPE, _OBJECT, _FUNCTION, _IFUNC = 0, 1, 2, 10
_HIDDEN_VERSION: Final = 0x8000
_LOCAL_VERSION: Final = 0
_UNVERSIONED: Final = 1

# A chain of a real hash section has a handful of symbols.
_LONGEST_CHAIN: Final = 4096
_MOST_VERSIONS: Final = 1024
_MOST_IMPORTS: Final = 1 << 16
_LONGEST_NAME: Final = 4096
_LARGEST_SYMTAB: Final = 16 << 20
_LARGEST_STRTAB: Final = 32 << 20
_MOST_OCCURRENCES: Final = 64  # of one name among a file's names: linkers merge them
_NT_STAPSDT: Final = 3
_USDT: Final = struct.Struct("<QQQ")  # location, base, semaphore


class Symbol(NamedTuple):
    """A function that the file defines. `offset` is where in the file its code begins: what a uprobe is attached at. `version` is
    the default one, which a caller that is linked today gets; None where symbols have no versions."""

    name: str
    version: str | None
    vaddr: int
    offset: int
    size_bytes: int


class UsdtNote(NamedTuple):
    """A USDT probe: where in the file its nop is, and the counter that the kernel raises while somebody looks (0: it has none).
    `arguments` is as the compiler wrote them."""

    provider: str
    name: str
    offset: int
    semaphore_offset: int
    arguments: str


class _Entry(NamedTuple):
    """A row of a symbol table, and which."""

    row: int
    kind: int
    binding: int
    section: int
    value: int
    size: int


class Elf(ElfFile):
    """An ELF file whose names can be asked for. Every method raises ElfError where the file is not what it says."""

    def exported(self, name: str) -> Symbol | None:
        """The function of that name which the file defines for others, at its default version. None where it only uses it, or has
        it in older versions alone. Raises ElfError also where the code is chosen when the file is loaded (IFUNC): which, the
        file does not say."""
        found = self._default(name)
        if found is None or found.kind not in (_NO_TYPE, _FUNCTION, _IFUNC):
            return None
        return self._function(name, found, self._version_name(found.row))

    def data_symbol(self, name: str) -> tuple[int, int] | None:
        """Address (before the load bias) and size in bytes of data that the file defines for others, or None."""
        found = self._default(name)
        return (found.value, found.size) if found is not None and found.kind in (_NO_TYPE, _OBJECT) else None

    def in_symbol_table(self, names: Collection[str]) -> dict[str, Symbol]:
        """Those functions that are in the full symbol table, which most files are stripped of, exported or not. The table is read
        whole: ask only executables and small files. Raises ElfError where it is too large."""
        table = next((section for section in self.sections if section.kind == "SHT_SYMTAB"), None)
        if table is None or table.link >= len(self.sections):
            return {}
        rows = self._rows_of(names, table, self.sections[table.link])
        return {name: self._function(name, row, None) for name, row in rows.items() if row.kind != _IFUNC}

    def imports(self, name: str) -> bool:
        """Whether the file uses that name and leaves it to others to define."""
        if "DT_SYMTAB" not in self.dynamic:
            return False
        wanted = name.encode()
        return any(entry.section == _UNDEFINED and self._name_is(name_at, wanted) for name_at, entry in self._before_the_hashed())

    @property
    def needed(self) -> tuple[str, ...]:
        """The libraries that the loader brings with this file, by DT_NEEDED."""
        return tuple(self._string(offset) for offset in self.dynamic.get("DT_NEEDED", ()))

    def usdt_notes(self) -> tuple[UsdtNote, ...]:
        """The USDT probes that were compiled in."""
        section = self.section(".note.stapsdt")
        if section is None:
            return ()
        base = self.section(".stapsdt.base")
        notes = self.notes(section.offset, section.size)
        found = (note for note in notes if note.owner == b"stapsdt" and note.kind == _NT_STAPSDT)
        return tuple(self._usdt(note.description, base.vaddr if base else None) for note in found)

    def _usdt(self, description: bytes, base: int | None) -> UsdtNote:
        if len(description) < _USDT.size:
            raise ElfError("a USDT note of too few bytes")
        location, noted_base, semaphore = _USDT.unpack_from(description)
        # prelink moves a file after the notes were written: the section beside them tells by how much.
        moved = base - noted_base if base is not None else 0
        provider, name, arguments = (*description[_USDT.size :].split(b"\0"), b"", b"", b"")[:3]
        return UsdtNote(
            provider.decode("utf-8", "replace"),
            name.decode("utf-8", "replace"),
            self.offset_of(location + moved),
            self.offset_of(semaphore + moved, 2) if semaphore else 0,
            arguments.decode("utf-8", "replace"),
        )

    def _function(self, name: str, entry: _Entry, version: str | None) -> Symbol:
        if entry.kind == _IFUNC:
            raise ElfError(f"{name} is chosen when it is loaded (IFUNC)")
        for segment in self.segments:
            if segment.is_executable and segment.vaddr <= entry.value < segment.vaddr + segment.file_size:
                return Symbol(name, version, entry.value, entry.value - segment.vaddr + segment.offset, entry.size)
        raise ElfError(f"{name} is not in the file's code")

    def _default(self, name: str) -> _Entry | None:
        """The global symbol that defines a name at its default version."""
        if "DT_SYMTAB" not in self.dynamic:
            return None
        wanted = name.encode()
        for index in self._candidates(wanted):
            name_at, entry = self._dynamic_symbol(index)
            defined = entry.section not in (_UNDEFINED, _ABSOLUTE) and entry.binding != _LOCAL
            if defined and self._name_is(name_at, wanted) and self._is_default(index):
                return entry
        return None

    def _candidates(self, name: bytes) -> Iterator[int]:
        """Indices of dynamic symbols whose hash is that of a name."""
        if "DT_GNU_HASH" in self.dynamic:
            return self._gnu_candidates(name)
        if "DT_HASH" in self.dynamic:
            return self._sysv_candidates(name)
        raise ElfError("its dynamic symbols have no hash section")

    def _gnu_candidates(self, name: bytes) -> Iterator[int]:
        table = self._tag("DT_GNU_HASH")
        buckets, first, filter_words, _shift = _GNU_HASH.unpack(self.read_at(table, _GNU_HASH.size))
        if buckets == 0:
            return
        wanted = gnu_hash(name)
        buckets_at = table + _GNU_HASH.size + filter_words * 8
        index = self._word(buckets_at + wanted % buckets * _WORD.size)
        if index < first:  # 0: an empty bucket
            return
        hashes_at = buckets_at + buckets * _WORD.size
        for step in range(_LONGEST_CHAIN):
            found = self._word(hashes_at + (index + step - first) * _WORD.size)
            if found | 1 == wanted | 1:
                yield index + step
            if found & 1:
                return
        raise ElfError("a chain of its hash section does not end")

    def _sysv_candidates(self, name: bytes) -> Iterator[int]:
        table = self._tag("DT_HASH")
        buckets, chains = _SYSV_HASH.unpack(self.read_at(table, _SYSV_HASH.size))
        if buckets == 0:
            return
        buckets_at = table + _SYSV_HASH.size
        index = self._word(buckets_at + sysv_hash(name) % buckets * _WORD.size)
        for _ in range(_LONGEST_CHAIN):
            if index == 0:
                return
            if index >= chains:
                break
            yield index
            index = self._word(buckets_at + (buckets + index) * _WORD.size)
        raise ElfError("a chain of its hash section does not end")

    def _before_the_hashed(self) -> Iterator[tuple[int, _Entry]]:
        """Dynamic symbols that may be undefined: a GNU hash section leaves those out, and has them first; an older one has all."""
        if "DT_GNU_HASH" in self.dynamic:
            count = _GNU_HASH.unpack(self.read_at(self._tag("DT_GNU_HASH"), _GNU_HASH.size))[1]
        elif "DT_HASH" in self.dynamic:
            count = _SYSV_HASH.unpack(self.read_at(self._tag("DT_HASH"), _SYSV_HASH.size))[1]
        else:
            raise ElfError("its dynamic symbols have no hash section")
        if count > _MOST_IMPORTS:
            raise ElfError(f"{count} imported symbols: at most {_MOST_IMPORTS} are looked at")
        rows = self.read_at(self._tag("DT_SYMTAB"), count * _SYMBOL.size)
        for index, row in enumerate(_SYMBOL.iter_unpack(rows)):
            yield row[0], _entry(index, row)

    def _dynamic_symbol(self, index: int) -> tuple[int, _Entry]:
        row = _SYMBOL.unpack(self.read_at(self._tag("DT_SYMTAB") + index * _SYMBOL.size, _SYMBOL.size))
        return row[0], _entry(index, row)

    def _name_is(self, name_at: int, wanted: bytes) -> bool:
        if name_at + len(wanted) >= self._strings_size:
            return False
        return self.read_at(self._tag("DT_STRTAB") + name_at, len(wanted) + 1) == wanted + b"\0"

    def _is_default(self, index: int) -> bool:
        version = self._version(index)
        return not version & _HIDDEN_VERSION and version != _LOCAL_VERSION

    def _version(self, index: int) -> int:
        """The row of .gnu.version: an index of a version, and a bit that says that it is not the default."""
        if "DT_VERSYM" not in self.dynamic:
            return _UNVERSIONED
        return int.from_bytes(self.read_at(self._tag("DT_VERSYM") + index * 2, 2), "little")

    def _version_name(self, index: int) -> str | None:
        version = self._version(index)
        if version <= _UNVERSIONED or "DT_VERDEF" not in self.dynamic:
            return None
        at = self._tag("DT_VERDEF")
        for _ in range(_MOST_VERSIONS):
            definition = self.parse("Elf_Verdef", self.offset_of(at))
            if definition.vd_ndx == version:
                return self._string(self.parse("Elf_Verdaux", self.offset_of(at + definition.vd_aux)).vda_name)
            if definition.vd_next == 0:
                return None
            at += definition.vd_next
        raise ElfError("its version definitions do not end")

    def _rows_of(self, names: Collection[str], table: Section, strings: Section) -> dict[str, _Entry]:
        if table.size > _LARGEST_SYMTAB or strings.size > _LARGEST_STRTAB:
            raise ElfError(f"a symbol table of {table.size} bytes is too large to be searched")
        text = self.read(strings.offset, strings.size)
        # Linkers let a name share the end of a longer one, so that it may begin anywhere.
        name_at = {at: name for name in names for at in islice(_occurrences(text, name.encode() + b"\0"), _MOST_OCCURRENCES)}
        found: dict[str, _Entry] = {}
        if not name_at:
            return found
        rows = self.read(table.offset, table.size - table.size % _SYMBOL.size)
        for index, row in enumerate(_SYMBOL.iter_unpack(rows)):
            name = name_at.get(row[0])
            if name is not None and row[3] not in (_UNDEFINED, _ABSOLUTE):
                entry = _entry(index, row)
                if entry.kind in (_NO_TYPE, _FUNCTION, _IFUNC):
                    found.setdefault(name, entry)
        return found

    @property
    def _strings_size(self) -> int:
        return self._tag("DT_STRSZ")

    def _string(self, offset: int) -> str:
        size = min(self._strings_size - offset, _LONGEST_NAME)
        if size <= 0:
            raise ElfError(f"a name at {offset:#x} is beyond the names")
        return string_at(self.read_at(self._tag("DT_STRTAB") + offset, size), 0)

    def _tag(self, tag: str) -> int:
        values = self.dynamic.get(tag)
        if not values:
            raise ElfError(f"its dynamic section lacks {tag}")
        return values[0]

    def _word(self, vaddr: int) -> int:
        return int.from_bytes(self.read_at(vaddr, _WORD.size), "little")


def gnu_hash(name: bytes) -> int:
    """The hash of a name in a .gnu.hash section."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def sysv_hash(name: bytes) -> int:
    """The hash of a name in a .hash section (System V ABI)."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _entry(index: int, row: tuple[int, ...]) -> _Entry:
    _, info, _, section, value, size = row
    return _Entry(index, info & 0xF, info >> 4, section, value, size)


def _occurrences(data: bytes, wanted: bytes) -> Iterator[int]:
    """Where `wanted` begins."""
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)
