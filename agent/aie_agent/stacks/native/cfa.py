"""Call frame instructions, run up to an address: what they say of the caller's registers there (DWARF 5, 6.4.2; LSB's additions).

Pure. What it takes is bounded by the bytes of the instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from aie_agent.stacks.native.cursor import Cursor
from aie_ebpf.elf import ElfError

_MOST_REMEMBERED: Final = 64
_MOST_REGISTER: Final = 128


class How(Enum):
    """Where the caller's value of a register is."""

    AT = "at"
    """In memory, so many bytes from the canonical frame address."""
    IS = "is"
    """It is the canonical frame address and so many bytes."""
    REGISTER = "register"
    """In another register."""
    AT_EXPRESSION = "at expression"
    IS_EXPRESSION = "is expression"
    UNDEFINED = "undefined"
    """Nowhere: of the return address, that nobody called."""


class Rule(NamedTuple):
    """`value` is bytes or a register's number, by `how`; `expression` the bytes of one."""

    how: How
    value: int = 0
    expression: bytes = b""


class Cfa(NamedTuple):
    """The canonical frame address, which is the caller's stack pointer: a register and an offset, or an expression."""

    register: int = 0
    offset: int = 0
    expression: bytes = b""


class Row(NamedTuple):
    """A register without a rule has the same value in the caller. `is_signal`: the kernel called, between any two instructions."""

    cfa: Cfa
    rules: dict[int, Rule]
    return_column: int
    is_signal: bool


class Program(NamedTuple):
    """What instructions are to be read by."""

    code_align: int
    data_align: int
    return_column: int
    is_signal: bool


class _State:
    """What holds at the address reached so far. Raises ElfError for what is no sensible instruction."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.address = 0
        self.cfa: Cfa | None = None
        self.rules: dict[int, Rule] = {}
        self.initial: dict[int, Rule] = {}
        self.remembered: list[tuple[Cfa | None, dict[int, Rule]]] = []

    def rule(self, register: int, rule: Rule | None) -> None:
        """None: as the common entry has it."""
        if register > _MOST_REGISTER:
            raise ElfError(f"an entry of .eh_frame names register {register}")
        rule = self.initial.get(register) if rule is None else rule
        if rule is None:
            self.rules.pop(register, None)
        else:
            self.rules[register] = rule

    def at(self, register: int, factored: int) -> None:
        """Saved so many of the program's units from the CFA."""
        self.rule(register, Rule(How.AT, factored * self.program.data_align))

    def is_(self, register: int, factored: int) -> None:
        """It is the CFA and so many units."""
        self.rule(register, Rule(How.IS, factored * self.program.data_align))

    def offset(self, offset: int) -> None:
        """The CFA is by the same register, at another offset."""
        if self.cfa is None or self.cfa.expression:
            raise ElfError("an entry of .eh_frame changes an offset that it has not")
        self.cfa = self.cfa._replace(offset=offset)

    def same(self, register: int) -> None:
        """The caller has the same value, whatever the common entry says."""
        self.rules.pop(register, None)

    def remember(self) -> None:
        """Keeps what holds, for `restore`."""
        if len(self.remembered) >= _MOST_REMEMBERED:
            raise ElfError("an entry of .eh_frame remembers too much")
        self.remembered.append((self.cfa, dict(self.rules)))

    def restore(self) -> None:
        """Takes back what was kept last."""
        if not self.remembered:
            raise ElfError("an entry of .eh_frame restores what it never kept")
        self.cfa, self.rules = self.remembered.pop()


_Instruction = Callable[[_State, Cursor], None]


def _data(state: _State) -> int:
    return state.program.data_align


def _block(cursor: Cursor) -> bytes:
    return cursor.take(cursor.uleb())


def _set_cfa(state: _State, register: int, offset: int) -> None:
    state.cfa = Cfa(register, offset)


def _set_cfa_register(state: _State, register: int) -> None:
    if state.cfa is None or state.cfa.expression:
        raise ElfError("an entry of .eh_frame changes a register that it has not")
    state.cfa = state.cfa._replace(register=register)


def _set_cfa_expression(state: _State, expression: bytes) -> None:
    state.cfa = Cfa(expression=expression)


def _nothing(state: _State, cursor: Cursor) -> None:
    """What changes no rule."""


def _passed_over(state: _State, cursor: Cursor) -> None:
    """How much of the arguments is on the stack: of no use here."""
    cursor.uleb()


_EXTENDED: Final[dict[int, _Instruction]] = {
    0x00: _nothing,
    0x05: lambda state, cursor: state.at(cursor.uleb(), cursor.uleb()),
    0x06: lambda state, cursor: state.rule(cursor.uleb(), None),
    0x07: lambda state, cursor: state.rule(cursor.uleb(), Rule(How.UNDEFINED)),
    0x08: lambda state, cursor: state.same(cursor.uleb()),
    0x09: lambda state, cursor: state.rule(cursor.uleb(), Rule(How.REGISTER, cursor.uleb())),
    0x0A: lambda state, cursor: state.remember(),
    0x0B: lambda state, cursor: state.restore(),
    0x0C: lambda state, cursor: _set_cfa(state, cursor.uleb(), cursor.uleb()),
    0x0D: lambda state, cursor: _set_cfa_register(state, cursor.uleb()),
    0x0E: lambda state, cursor: state.offset(cursor.uleb()),
    0x0F: lambda state, cursor: _set_cfa_expression(state, _block(cursor)),
    0x10: lambda state, cursor: state.rule(cursor.uleb(), Rule(How.AT_EXPRESSION, expression=_block(cursor))),
    0x11: lambda state, cursor: state.at(cursor.uleb(), cursor.sleb()),
    0x12: lambda state, cursor: _set_cfa(state, cursor.uleb(), cursor.sleb() * _data(state)),
    0x13: lambda state, cursor: state.offset(cursor.sleb() * _data(state)),
    0x14: lambda state, cursor: state.is_(cursor.uleb(), cursor.uleb()),
    0x15: lambda state, cursor: state.is_(cursor.uleb(), cursor.sleb()),
    0x16: lambda state, cursor: state.rule(cursor.uleb(), Rule(How.IS_EXPRESSION, expression=_block(cursor))),
    0x2D: _nothing,  # aarch64: the return address is signed from here on; `unwind` takes signatures off
    0x2E: _passed_over,
    0x2F: lambda state, cursor: state.at(cursor.uleb(), -cursor.uleb()),
}
"""DW_CFA instructions by number: DWARF 5, table 7.29, and GNU's."""

_ADVANCE: Final = {0x02: "<B", 0x03: "<H", 0x04: "<I"}
_SHORT_ADVANCE, _SHORT_AT, _SHORT_RESTORE = 1, 2, 3


def row_of(program: Program, common: bytes, instructions: bytes, offset: int) -> Row:
    """What holds `offset` bytes into a function: after the common entry's instructions and its own up to there. Raises ElfError."""
    state = _State(program)
    _run(state, common, None)
    state.initial = dict(state.rules)
    _run(state, instructions, offset)
    if state.cfa is None:
        raise ElfError("an entry of .eh_frame says not where a frame lies")
    return Row(state.cfa, state.rules, program.return_column, program.is_signal)


def _run(state: _State, instructions: bytes, until: int | None) -> None:
    cursor = Cursor(instructions)
    while cursor.at < len(instructions):
        code = cursor.unpack("<B")
        kind, operand = code >> 6, code & 0x3F
        if kind == _SHORT_ADVANCE or code in _ADVANCE:
            step = operand if kind == _SHORT_ADVANCE else cursor.unpack(_ADVANCE[code])
            state.address += step * state.program.code_align
            if until is not None and state.address > until:
                return
        elif kind == _SHORT_AT:
            state.at(operand, cursor.uleb())
        elif kind == _SHORT_RESTORE:
            state.rule(operand, None)
        elif code in _EXTENDED:
            _EXTENDED[code](state, cursor)
        else:
            raise ElfError(f"an entry of .eh_frame has instruction {code:#x}")
