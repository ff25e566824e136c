"""From the registers of a thread and a copy of its stack's top to the calls that it is in. Pure: what is known of the code is asked
of a `Code`.

By the tables of .eh_frame where there are some; else by the frame pointer, where what it leads to is a call; else by the next word
of the stack that lies behind a call instruction, which may be left over from a call that returned: such a frame is a guess, and
said to be one. It ends where nobody called, where the copy ends, or where nothing leads on.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from aie_agent.stacks.native.cfa import How, Row, Rule
from aie_agent.stacks.native.expression import evaluate
from aie_ebpf.elf import ElfError

MOST_FRAMES: Final = 48
_WORD: Final = struct.Struct("<Q")
_ADDRESS_BITS: Final = (1 << 48) - 1


class By(StrEnum):
    """What led to a frame."""

    LEAF = "leaf"
    TABLE = "tables"
    FRAME_POINTER = "frame pointers"
    SCAN = "guess"


class End(StrEnum):
    """Why there are no more frames."""

    ROOT = "root"
    """Nobody called it: the stack is whole."""
    CUT = "cut"
    """What comes next lies beyond the copy."""
    LOST = "lost"
    """Nothing leads on, or what does makes no sense."""
    DEEP = "deep"


class Machine(NamedTuple):
    """DWARF numbers of the registers that an unwinder needs. `signs`: return addresses may have a signature in their upper bits."""

    stack_pointer: int
    frame_pointer: int
    return_address: int
    signs: bool


MACHINES: Final = {"x86_64": Machine(7, 6, 16, signs=False), "aarch64": Machine(31, 29, 30, signs=True)}


class Code(Protocol):
    """What is known of a process's code."""

    def row(self, address: int) -> Row | None:
        """How to get to the caller's frame from an instruction. None: nobody says. Raises ElfError."""

    def is_code(self, address: int) -> bool:
        """Whether an address is in executable memory."""

    def is_after_call(self, address: int) -> bool:
        """Whether the instruction before an address is a call, so that it may be a return address."""


class Frame(NamedTuple):
    """`address` is where the thread goes on in it, `sp` its stack pointer there. `within` is an address that is surely in the same
    function: of a caller the byte before, as a call may be a function's last instruction."""

    address: int
    within: int
    sp: int
    by: By


class Walk(NamedTuple):
    """The frames, the innermost first, and why they end."""

    frames: tuple[Frame, ...]
    end: End


class Copy(NamedTuple):
    """The top of a stack: what lies from `base` on."""

    base: int
    data: bytes

    def word(self, address: int) -> int | None:
        """The 8 bytes at an address; None where they are not in the copy."""
        at = address - self.base
        return int(_WORD.unpack_from(self.data, at)[0]) if 0 <= at <= len(self.data) - _WORD.size else None


class _Thread(NamedTuple):
    """A frame's registers. The program counter is not one of them."""

    frame: Frame
    registers: dict[int, int]


def walk(machine: Machine, pc: int, registers: dict[int, int], copy: Copy, code: Code, most: int = MOST_FRAMES) -> Walk:
    """The calls that a thread is in which is at `pc`, with these registers, at most `most` of them. `copy` begins at its stack
    pointer."""
    here = _Thread(Frame(pc, pc, copy.base, By.LEAF), registers | {machine.stack_pointer: copy.base})
    frames = [here.frame]
    while len(frames) < most:
        found = _caller(machine, here, copy, code)
        if isinstance(found, End):
            return Walk(tuple(frames), found)
        frames.append(found.frame)
        here = found
    return Walk(tuple(frames), End.DEEP)


def _caller(machine: Machine, here: _Thread, copy: Copy, code: Code) -> _Thread | End:
    try:
        row = code.row(here.frame.within)
        cfa = None if row is None else _cfa(row, here.registers, copy)
        if row is not None and cfa is not None:
            return _by_table(machine, here, row, cfa, copy, code)
    except ElfError:  # a table that is broken says no more than none
        pass
    return _by_frame_pointer(machine, here, copy, code) or _by_scan(machine, here, copy, code)


def _by_table(machine: Machine, here: _Thread, row: Row, cfa: int, copy: Copy, code: Code) -> _Thread | End:
    """Raises ElfError where the row cannot be followed."""
    registers = dict(here.registers)
    for register, rule in row.rules.items():
        value = _value(rule, cfa, here.registers, copy)
        if value is None:
            registers.pop(register, None)
        else:
            registers[register] = value
    registers[machine.stack_pointer] = cfa
    of_return = row.rules.get(row.return_column)
    if of_return is not None and of_return.how is How.UNDEFINED:
        return End.ROOT
    address = registers.pop(row.return_column, None)
    if address is None:
        return End.CUT
    if machine.signs:
        registers[row.return_column] = address = address & _ADDRESS_BITS
    if address == 0:
        return End.ROOT
    # A frame takes room, except that of a function which saved nothing, and the kernel's on another stack.
    goes_on = cfa > here.frame.sp or (here.frame.by is By.LEAF and cfa == here.frame.sp)
    if not goes_on or not code.is_code(address):
        return End.LOST
    return _Thread(Frame(address, address if row.is_signal else address - 1, cfa, By.TABLE), registers)


def _cfa(row: Row, registers: dict[int, int], copy: Copy) -> int | None:
    """None where it is by a register that is not known: /proc tells only two, and guesses lose the rest."""
    if row.cfa.expression:
        return evaluate(row.cfa.expression, registers, copy.word)
    base = registers.get(row.cfa.register)
    return None if base is None else base + row.cfa.offset


def _value(rule: Rule, cfa: int, registers: dict[int, int], copy: Copy) -> int | None:
    """The caller's value of a register; None where it is not known."""
    if rule.how is How.AT:
        return copy.word(cfa + rule.value)
    if rule.how is How.IS:
        return cfa + rule.value
    if rule.how is How.REGISTER:
        return registers.get(rule.value)
    if rule.how is How.UNDEFINED:
        return None
    value = evaluate(rule.expression, registers, copy.word, cfa)
    return copy.word(value) if rule.how is How.AT_EXPRESSION and value is not None else value


def _by_frame_pointer(machine: Machine, here: _Thread, copy: Copy, code: Code) -> _Thread | None:
    """Of both machines: the caller's frame pointer lies where ours leads, and the return address above it."""
    pointer = here.registers.get(machine.frame_pointer, 0)
    if pointer < here.frame.sp or pointer % _WORD.size:
        return None
    before, address = copy.word(pointer), copy.word(pointer + _WORD.size)
    if before is None or address is None or not code.is_after_call(address):
        return None
    return _at(machine, here, address, pointer + 2 * _WORD.size, By.FRAME_POINTER, before)


def _by_scan(machine: Machine, here: _Thread, copy: Copy, code: Code) -> _Thread | End:
    """Where the frame pointer is not known, it is taken to be saved below the return address, as code that needs it has it."""
    for at in range(here.frame.sp, copy.base + len(copy.data) - _WORD.size + 1, _WORD.size):
        word = copy.word(at)
        if word is not None and code.is_after_call(word):
            pointer = here.registers.get(machine.frame_pointer, copy.word(at - _WORD.size))
            return _at(machine, here, word, at + _WORD.size, By.SCAN, pointer)
    return End.LOST


def _at(machine: Machine, here: _Thread, address: int, sp: int, by: By, frame_pointer: int | None) -> _Thread:
    """The caller, of whose registers these are all that is known."""
    registers = {machine.stack_pointer: sp}
    if frame_pointer is not None:
        registers[machine.frame_pointer] = frame_pointer
    return _Thread(Frame(address, address - 1, sp, by), registers)
