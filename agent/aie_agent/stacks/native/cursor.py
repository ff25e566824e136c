"""Numbers and pointers as .eh_frame and DWARF write them."""

from __future__ import annotations

import struct
from typing import Final

from aie_ebpf.elf import ElfError

_FORMATS: Final = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
"""Pointers by the lower half of their encoding."""
_PC_RELATIVE: Final = 0x10
_ABSOLUTE: Final = 0x00


class Cursor:
    """Bytes read from a place on. Every method raises ElfError where they end too early."""

    def __init__(self, data: bytes, vaddr: int = 0) -> None:
        """`vaddr` is where the data lies."""
        self._data = data
        self._vaddr = vaddr
        self.at = 0

    def unpack(self, layout: str) -> int:
        """A number of a struct format."""
        size = struct.calcsize(layout)
        (value,) = struct.unpack(layout, self.take(size))
        return int(value)

    def take(self, size: int) -> bytes:
        """So many bytes."""
        if size < 0 or self.at + size > len(self._data):
            raise ElfError("an entry of .eh_frame ends too early")
        self.at += size
        return self._data[self.at - size : self.at]

    def uleb(self) -> int:
        """An unsigned number of DWARF's variable length."""
        value, _ = self._leb()
        return value

    def sleb(self) -> int:
        """A signed one."""
        value, bits = self._leb()
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def _leb(self) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.unpack("<B")
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value, shift + 7
        raise ElfError("a number of .eh_frame does not end")

    def text(self) -> bytes:
        """Bytes up to the next NUL, which is passed over."""
        end = self._data.find(b"\0", self.at)
        found = self.take(max(end, self.at) - self.at)
        self.take(1)
        return found

    def pointer(self, encoding: int) -> int:
        """An address. Raises ElfError for encodings that no linker uses here."""
        relative = encoding & 0xF0
        if relative not in (_ABSOLUTE, _PC_RELATIVE):
            raise ElfError(f"a pointer of .eh_frame is encoded as {encoding:#x}")
        here = self._vaddr + self.at
        value = self.unpack(_layout(encoding))
        return (value + here) & (2**64 - 1) if relative == _PC_RELATIVE else value

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data) - self.at)


def pointer_bytes(encoding: int) -> int:
    """How long a pointer of an encoding is. Raises ElfError."""
    return struct.calcsize(_layout(encoding))


def _layout(encoding: int) -> str:
    layout = _FORMATS.get(encoding & 0x0F)
    if layout is None:
        raise ElfError(f"a pointer of .eh_frame is encoded as {encoding:#x}")
    return layout
