"""DWARF expressions, as far as .eh_frame has them: where a PLT's or a signal's frame lies (DWARF 5, 2.5). Pure, and bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aie_agent.stacks.native.cursor import Cursor
from aie_ebpf.elf import ElfError

_MASK: Final = 2**64 - 1
_MOST_VALUES: Final = 64
_MOST_BYTES: Final = 256
"""Those of PLTs and of signals have a dozen."""

_CONSTANTS: Final = {
    0x08: "<B", 0x09: "<b", 0x0A: "<H", 0x0B: "<h", 0x0C: "<I", 0x0D: "<i", 0x0E: "<Q", 0x0F: "<q",
}  # fmt: skip
_BINARY: Final[dict[int, Callable[[int, int], int]]] = {
    0x1A: lambda a, b: a & b,
    0x1C: lambda a, b: a - b,
    0x1E: lambda a, b: a * b,
    0x21: lambda a, b: a | b,
    0x22: lambda a, b: a + b,
    0x24: lambda a, b: a << min(b, 64),
    0x25: lambda a, b: a >> min(b, 64),
    0x27: lambda a, b: a ^ b,
    0x29: lambda a, b: int(_signed(a) == _signed(b)),
    0x2A: lambda a, b: int(_signed(a) >= _signed(b)),
    0x2B: lambda a, b: int(_signed(a) > _signed(b)),
    0x2C: lambda a, b: int(_signed(a) <= _signed(b)),
    0x2D: lambda a, b: int(_signed(a) < _signed(b)),
    0x2E: lambda a, b: int(_signed(a) != _signed(b)),
}
_DEREF, _CONSTU, _CONSTS, _DUP, _DROP, _SWAP, _PLUS_UCONST = 0x06, 0x10, 0x11, 0x12, 0x13, 0x16, 0x23
_LIT0, _BREG0, _BREG31 = 0x30, 0x70, 0x8F


def evaluate(
    expression: bytes, registers: Mapping[int, int], word: Callable[[int], int | None], begin: int | None = None
) -> int | None:
    """The value of an expression, which begins with `begin` on its stack. None where a register or memory (`word`) that it needs
    is not known. Raises ElfError for what is no such expression."""
    if len(expression) > _MOST_BYTES:
        raise ElfError(f"an expression of .eh_frame has {len(expression)} bytes")
    values = [] if begin is None else [begin]
    cursor = Cursor(expression)
    while cursor.at < len(expression):
        code = cursor.unpack("<B")
        if _BREG0 <= code <= _BREG31:
            base = registers.get(code - _BREG0)
            if base is None:
                return None
            values.append(base + cursor.sleb())
        elif code == _DEREF:
            found = word(_popped(values) & _MASK)
            if found is None:
                return None
            values.append(found)
        else:
            _plain(code, cursor, values)
        if len(values) > _MOST_VALUES:
            raise ElfError("an expression of .eh_frame holds too much")
        values = [value & _MASK for value in values]
    return _popped(values)


def _plain(code: int, cursor: Cursor, values: list[int]) -> None:
    """An operation of constants and of what is on the stack."""
    if code in _BINARY:
        right = _popped(values)
        values.append(_BINARY[code](_popped(values), right))
    elif code in _CONSTANTS:
        values.append(cursor.unpack(_CONSTANTS[code]))
    elif _LIT0 <= code < _LIT0 + 32:
        values.append(code - _LIT0)
    elif code in (_CONSTU, _CONSTS):
        values.append(cursor.uleb() if code == _CONSTU else cursor.sleb())
    elif code == _PLUS_UCONST:
        values.append(_popped(values) + cursor.uleb())
    elif code == _DUP and values:
        values.append(values[-1])
    elif code == _DROP:
        _popped(values)
    elif code == _SWAP and len(values) >= 2:
        values[-1], values[-2] = values[-2], values[-1]
    else:
        raise ElfError(f"an expression of .eh_frame has operation {code:#x}")


def _popped(values: list[int]) -> int:
    if not values:
        raise ElfError("an expression of .eh_frame takes from nothing")
    return values.pop()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
