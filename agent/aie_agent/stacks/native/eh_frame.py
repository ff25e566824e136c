"""Where the frames of compiled code lie: the rows of .eh_frame, found through the index that the C++ runtime itself uses.

Compilers write these tables for exceptions, so that almost every library has them, stripped or not. Only the one entry that covers
an address is read: a library of a gigabyte costs no more than a small one. Formats: LSB Core, "Exception Frames"; DWARF 5, 6.4.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from aie_agent.stacks.native.cfa import Program, Row, row_of
from aie_agent.stacks.native.cursor import Cursor, pointer_bytes
from aie_ebpf.elf import Elf, ElfError

_MOST_ENTRY_BYTES: Final = 1 << 13
"""The longest of libtorch_cpu, libclang and OpenBLAS have 7956; beyond that an entry says nothing."""
_MOST_FUNCTIONS: Final = 1 << 24
_INDEX_ROW: Final = struct.Struct("<ii")  # where a function begins, where its entry lies: from where the index lies
_INDEX_HEAD: Final = struct.Struct("<4B")  # version, encodings: of the pointer to .eh_frame, of the count, of the rows
_DATA_RELATIVE_4: Final = 0x3B
_EXTENDED_LENGTH: Final = 0xFFFFFFFF

_OMITTED: Final = 0xFF


class _Common(NamedTuple):
    """A common information entry (CIE): what several functions' entries share."""

    code_align: int
    data_align: int
    return_column: int
    pointers: int
    has_augmentation: bool
    is_signal: bool
    instructions: bytes


def row_at(elf: Elf, vaddr: int) -> Row | None:
    """How to get from a function's frame to its caller's, at an instruction. None where the file has no table, or none for that
    code (assembly without annotations). Raises ElfError where the table is not what it says."""
    entry_at = _entry_of(elf, vaddr)
    if entry_at is None:
        return None
    cursor, is_common, back = _entry(elf, entry_at)
    if is_common:
        raise ElfError("its index leads to no function's entry")
    common = _common(elf, back)
    begin = cursor.pointer(common.pointers)
    length = cursor.pointer(common.pointers & 0x0F)
    if not begin <= vaddr < begin + length:
        return None
    if common.has_augmentation:
        cursor.take(cursor.uleb())
    program = Program(common.code_align, common.data_align, common.return_column, common.is_signal)
    return row_of(program, common.instructions, cursor.rest(), vaddr - begin)


def _entry_of(elf: Elf, vaddr: int) -> int | None:
    """Where the entry lies of the last function that begins at or before an address."""
    if elf.unwind_index is None:
        return None
    index_at, _ = elf.unwind_index
    head = elf.read_at(index_at, _INDEX_HEAD.size)
    version, frame_encoding, count_encoding, row_encoding = head
    if version != 1 or row_encoding != _DATA_RELATIVE_4 or _OMITTED in (frame_encoding, count_encoding):
        return None
    rest_at = index_at + _INDEX_HEAD.size
    cursor = Cursor(elf.read_at(rest_at, pointer_bytes(frame_encoding) + pointer_bytes(count_encoding)), rest_at)
    cursor.pointer(frame_encoding)
    count = cursor.pointer(count_encoding)
    if count > _MOST_FUNCTIONS:
        raise ElfError(f"its index has {count} functions: that is none")
    rows_at = rest_at + cursor.at
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        begin, _ = _INDEX_ROW.unpack(elf.read_at(rows_at + middle * _INDEX_ROW.size, _INDEX_ROW.size))
        low, high = (middle + 1, high) if index_at + begin <= vaddr else (low, middle)
    if low == 0:
        return None
    _, entry = _INDEX_ROW.unpack(elf.read_at(rows_at + (low - 1) * _INDEX_ROW.size, _INDEX_ROW.size))
    return index_at + int(entry)


def _entry(elf: Elf, vaddr: int) -> tuple[Cursor, bool, int]:
    """The content of an entry, whether it is a CIE, and, if it is not, where its CIE lies."""
    length, head = int.from_bytes(elf.read_at(vaddr, 4), "little"), 4
    if length == _EXTENDED_LENGTH:
        length, head = int.from_bytes(elf.read_at(vaddr + 4, 8), "little"), 12
    if not 4 <= length <= _MOST_ENTRY_BYTES:
        raise ElfError(f"an entry of .eh_frame has {length} bytes: that is none")
    data = elf.read_at(vaddr + head, length)
    back = int.from_bytes(data[:4], "little")
    return Cursor(data[4:], vaddr + head + 4), back == 0, vaddr + head - back


def _common(elf: Elf, vaddr: int) -> _Common:
    cursor, is_common, _ = _entry(elf, vaddr)
    version = cursor.unpack("<B")
    if not is_common or version not in (1, 3):
        raise ElfError(f"a common entry of .eh_frame of version {version}")
    augmentation = cursor.text()
    code_align, data_align = cursor.uleb(), cursor.sleb()
    return_column = cursor.unpack("<B") if version == 1 else cursor.uleb()
    pointers, is_signal = 0, False
    if augmentation.startswith(b"z"):
        size = cursor.uleb()
        inside = Cursor(cursor.take(size))
        for letter in augmentation[1:]:
            if letter == ord("R"):
                pointers = inside.unpack("<B")
            elif letter == ord("L"):
                inside.unpack("<B")
            elif letter == ord("P"):
                inside.pointer(inside.unpack("<B") & 0x0F)
            elif letter == ord("S"):
                is_signal = True
            elif letter not in b"BG":
                break  # its data, and that of what follows, cannot be told apart
    elif augmentation:
        raise ElfError(f"a common entry of .eh_frame with augmentation {augmentation[:8]!r}")
    return _Common(code_align, data_align, return_column, pointers, augmentation.startswith(b"z"), is_signal, cursor.rest())
