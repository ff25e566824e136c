"""Bytes of an ELF file, by offset and by address, within bounds: a file of a container may be truncated, replaced while it is read,
or made to hurt whoever reads it. Nothing is mapped (a file that shrinks would kill the reader), and no size that the file states is
believed.

pyelftools gives the layouts of the structures. Its own walk over a file trusts counts and offsets, and reads symbol tables whole.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.constants import P_FLAGS
from elftools.elf.structs import ELFStructs

_LAYOUTS: Final = ELFStructs(little_endian=True, elfclass=64)
_LAYOUTS.create_basic_structs()
_LAYOUTS.create_advanced_structs("ET_DYN", "EM_X86_64", "ELFOSABI_SYSV")

# More than any file has that a linker made. Beyond them a file is refused, so that a hostile one costs little.
_MOST_SEGMENTS: Final = 256
_MOST_SECTIONS: Final = 2048
_MOST_NOTES: Final = 4096
_MOST_DYNAMIC: Final = 1024
_LARGEST_NAMES: Final = 1 << 20
_LARGEST_NOTES: Final = 1 << 20
_NOTE: Final = struct.Struct("<III")
_NOTE_ALIGNMENT: Final = 4


class ElfError(Exception):
    """This is no ELF file that can be read: one line that says why."""


class Segment(NamedTuple):
    """A part of the file that is loaded (PT_LOAD): `offset` to `offset + file_size` appears at `vaddr`."""

    offset: int
    vaddr: int
    file_size: int
    memory_size: int
    is_executable: bool


class Section(NamedTuple):
    """A section. `kind` is its SHT_ name, a number where it has none. `link` is the index of its companion: a table's strings."""

    name: str
    kind: str | int
    vaddr: int
    offset: int
    size: int
    link: int


class Note(NamedTuple):
    """An entry of a note section or segment."""

    owner: bytes
    kind: int
    description: bytes


class _ProgramHeaders(NamedTuple):
    """What is used of them. Each pair is a place and a size in bytes: an offset in the file, of `unwind_index` an address."""

    segments: tuple[Segment, ...]
    dynamic: tuple[int, int] | None
    notes: tuple[tuple[int, int], ...]
    unwind_index: tuple[int, int] | None


class ElfFile:
    """An open ELF file: 64 bits, little-endian, as on every host that CUDA runs on. Close it, or use it in a `with`."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor. Raises ElfError, and has then closed it."""
        self._fd = fd
        self._sections: tuple[Section, ...] | None = None
        try:
            self._size = _size(fd)
            self._header = self._ehdr()
            self.segments, self._dynamic_at, self._notes_at, self.unwind_index = self._program_headers()
            self.dynamic = self._dynamic()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Opens a file by path; never waits, even where it is a pipe. Raises ElfError."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise ElfError(f"cannot be opened: {getattr(error, 'strerror', error)}") from error
        return cls(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; again is no fault."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections; empty where a tool has taken away their table. Raises ElfError."""
        if self._sections is None:
            self._sections = tuple(self._section_headers())
        return self._sections

    def section(self, name: str) -> Section | None:
        """The first section of that name. Raises ElfError."""
        return next((section for section in self.sections if section.name == name), None)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes at an offset of the file. Raises ElfError where there are fewer."""
        if offset < 0 or size < 0 or offset + size > self._size:
            raise ElfError(f"truncated: {size} bytes at {offset:#x} of a file of {self._size} bytes")
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as error:
            raise ElfError(f"cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise ElfError(f"truncated while it was read, at {offset:#x}")
        return data

    def read_at(self, vaddr: int, size: int) -> bytes:
        """Exactly `size` bytes that are loaded at an address. Raises ElfError."""
        return self.read(self.offset_of(vaddr, size), size)

    def offset_of(self, vaddr: int, size: int = 1) -> int:
        """Where in the file lies what is loaded at an address. Raises ElfError when nothing of the file is."""
        for segment in self.segments:
            if segment.vaddr <= vaddr and vaddr + size <= segment.vaddr + segment.file_size:
                return vaddr - segment.vaddr + segment.offset
        raise ElfError(f"address {vaddr:#x} is in no segment of the file")

    def parse(self, layout: str, offset: int) -> Any:
        """A structure of pyelftools, by its name there, at an offset of the file. Raises ElfError."""
        return self._parse(layout, self.read(offset, size_of(layout)))

    @property
    def build_id(self) -> str | None:
        """The build id in hexadecimal; None where the linker wrote none. Raises ElfError."""
        for offset, size in self._notes_at:
            for note in self.notes(offset, size):
                if note.owner == b"GNU" and note.kind == _NT_GNU_BUILD_ID:
                    return note.description.hex()
        return None

    def notes(self, offset: int, size: int) -> Iterator[Note]:
        """The notes at an offset of the file. Raises ElfError."""
        if size > _LARGEST_NOTES:
            raise ElfError(f"notes of {size} bytes: at most {_LARGEST_NOTES} are read")
        data = self.read(offset, size)
        position = 0
        for _ in range(_MOST_NOTES):
            if position + _NOTE.size > size:
                return
            owner_size, description_size, kind = _NOTE.unpack_from(data, position)
            owner_at = position + _NOTE.size
            description_at = _aligned(owner_at + owner_size)
            end = description_at + description_size
            if end > size:
                raise ElfError(f"a note of {description_size} bytes reaches beyond its section")
            yield Note(data[owner_at : owner_at + owner_size].rstrip(b"\0"), kind, data[description_at:end])
            position = _aligned(end)

    def _ehdr(self) -> Any:
        ident = self.read(0, min(self._size, 16))
        if ident[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if ident[4:6] != _64_BITS_LITTLE_ENDIAN:
            raise ElfError("not a file of 64 bits, little-endian")
        return self.parse("Elf_Ehdr", 0)

    def _program_headers(self) -> _ProgramHeaders:
        count, entry = self._header.e_phnum, self._header.e_phentsize
        if count > _MOST_SEGMENTS or (count and entry != size_of("Elf_Phdr")):
            raise ElfError(f"{count} program headers of {entry} bytes: that is no table")
        segments, dynamic, notes, unwind_index = [], None, [], None
        for index in range(count):
            header = self.parse("Elf_Phdr", self._header.e_phoff + index * entry)
            if header.p_type == "PT_LOAD":
                executable = bool(header.p_flags & P_FLAGS.PF_X)
                segments.append(Segment(header.p_offset, header.p_vaddr, header.p_filesz, header.p_memsz, executable))
            elif header.p_type == "PT_DYNAMIC":
                dynamic = header.p_offset, header.p_filesz
            elif header.p_type == "PT_NOTE":
                notes.append((header.p_offset, header.p_filesz))
            elif header.p_type == "PT_GNU_EH_FRAME":
                unwind_index = header.p_vaddr, header.p_memsz
        return _ProgramHeaders(tuple(segments), dynamic, tuple(notes), unwind_index)

    def _dynamic(self) -> dict[str | int, tuple[int, ...]]:
        """Values by tag (DT_ name); a tag may be there more than once."""
        found: dict[str | int, tuple[int, ...]] = {}
        if self._dynamic_at is None:
            return found
        offset, size = self._dynamic_at
        entry = size_of("Elf_Dyn")
        for index in range(min(size // entry, _MOST_DYNAMIC)):
            row = self.parse("Elf_Dyn", offset + index * entry)
            if row.d_tag == "DT_NULL":
                break
            found[row.d_tag] = (*found.get(row.d_tag, ()), row.d_val)
        return found

    def _section_headers(self) -> Iterator[Section]:
        count, entry = self._header.e_shnum, self._header.e_shentsize
        if self._header.e_shoff == 0 or count == 0:
            return
        if count > _MOST_SECTIONS or entry != size_of("Elf_Shdr"):
            raise ElfError(f"{count} section headers of {entry} bytes: that is no table")
        headers = [self.parse("Elf_Shdr", self._header.e_shoff + index * entry) for index in range(count)]
        names = b""
        if self._header.e_shstrndx < count:
            table = headers[self._header.e_shstrndx]
            names = self.read(table.sh_offset, min(table.sh_size, _LARGEST_NAMES))
        for header in headers:
            name = string_at(names, header.sh_name)
            yield Section(name, header.sh_type, header.sh_addr, header.sh_offset, header.sh_size, header.sh_link)

    @staticmethod
    def _parse(layout: str, data: bytes) -> Any:
        try:
            return struct_parse(getattr(_LAYOUTS, layout), io.BytesIO(data))
        except ELFError as error:
            raise ElfError(f"{layout.removeprefix('Elf_')} cannot be read: {error}") from error


_64_BITS_LITTLE_ENDIAN: Final = b"\x02\x01"
_NT_GNU_BUILD_ID: Final = 3


def size_of(layout: str) -> int:
    """The size in bytes of a structure of pyelftools."""
    return int(getattr(_LAYOUTS, layout).sizeof())


def string_at(table: bytes, offset: int) -> str:
    """The string at an offset of a string table; "" where there is none."""
    end = table.find(b"\0", offset) if offset < len(table) else -1
    return table[offset:end].decode("utf-8", "replace") if end >= 0 else ""


def _size(fd: int) -> int:
    """The size of a file that is open, if it is a plain one."""
    try:
        status = os.fstat(fd)
    except OSError as error:
        raise ElfError(f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ElfError("not a plain file")
    return status.st_size


def _aligned(position: int) -> int:
    return position + -position % _NOTE_ALIGNMENT
