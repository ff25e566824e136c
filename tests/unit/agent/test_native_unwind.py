"""From registers and a stack to calls, by stacks made by hand. Real ones: tests/integration/agent/test_native_stacks.py."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.stacks.native.cfa import Cfa, How, Row, Rule
from aie_agent.stacks.native.code import CALLS
from aie_agent.stacks.native.unwind import MACHINES, MOST_FRAMES, By, Copy, End, walk
from aie_ebpf.elf import ElfError

X86 = MACHINES["x86_64"]
ARM = MACHINES["aarch64"]
BASE = 0x7FFF_0000
LEAF, CALLER, OUTER = 0x1000, 0x2000, 0x3000
RETURN_BELOW = {16: Rule(How.AT, -8)}


class Known:
    """Code whose rows are given by function (of 4 KiB), and whose calls are given addresses."""

    def __init__(self, rows: Mapping[int, Row | None], calls: Collection[int] = ()) -> None:
        self._rows = rows
        self._calls = calls

    def row(self, address: int) -> Row | None:
        """Raises ElfError for the functions that have an entry of None."""
        page = address & ~0xFFF
        if page in self._rows and self._rows[page] is None:
            raise ElfError("a broken table")
        return self._rows.get(page)

    def is_code(self, address: int) -> bool:
        """The functions, wherever in them."""
        return LEAF <= address < OUTER + 0x1000

    def is_after_call(self, address: int) -> bool:
        """Only where it was said."""
        return address in self._calls


def frame(size: int, **more: Rule) -> Row:
    """A function of x86_64 whose frame is so large, with its return address above it."""
    return Row(Cfa(7, size), RETURN_BELOW | {int(name[1:]): rule for name, rule in more.items()}, 16, False)


OUTERMOST = Row(Cfa(7, 8), {16: Rule(How.UNDEFINED)}, 16, False)


def stack(*words: int) -> Copy:
    return Copy(BASE, struct.pack(f"<{len(words)}Q", *words))


def test_by_tables_to_the_root() -> None:
    code = Known({LEAF: frame(16), CALLER: frame(24), OUTER: OUTERMOST})
    found = walk(X86, LEAF + 5, {}, stack(7, CALLER + 9, 8, 9, OUTER + 3), code)
    assert [(each.address, each.sp - BASE, each.by) for each in found.frames] == [
        (LEAF + 5, 0, By.LEAF), (CALLER + 9, 16, By.TABLE), (OUTER + 3, 40, By.TABLE),
    ]  # fmt: skip
    assert found.end is End.ROOT


def test_a_call_at_the_end_of_a_function_belongs_to_that_function() -> None:
    """What comes behind is another's: a function that never returns ends in its call."""
    code = Known({LEAF: frame(8), CALLER: OUTERMOST})
    found = walk(X86, LEAF, {}, stack(OUTER), code)
    assert found.frames[1].within == OUTER - 1
    assert found.end is End.ROOT, "the row of the function before was used"


def test_a_callee_saved_register_is_the_callers_again() -> None:
    """The caller's frame is told by rbp, which the innermost function had pushed."""
    by_rbp = Row(Cfa(6, 16), RETURN_BELOW, 16, False)
    code = Known({LEAF: frame(16, r6=Rule(How.AT, -16)), CALLER: by_rbp, OUTER: OUTERMOST})
    found = walk(X86, LEAF, {6: 1}, stack(BASE + 24, CALLER + 4, 5, 6, OUTER + 4), code)
    assert [each.address for each in found.frames] == [LEAF, CALLER + 4, OUTER + 4]
    assert found.end is End.ROOT


def test_where_the_copy_ends() -> None:
    code = Known({LEAF: frame(16), CALLER: frame(512)})
    found = walk(X86, LEAF, {}, stack(7, CALLER + 4), code)
    assert [each.address for each in found.frames] == [LEAF, CALLER + 4]
    assert found.end is End.CUT


@pytest.mark.parametrize("row", [None, "broken"])
def test_frame_pointers_where_there_is_no_table(row: str | None) -> None:
    rows = {OUTER: OUTERMOST} | ({LEAF: None, CALLER: None} if row else {})
    code = Known(rows, calls={CALLER + 4, OUTER + 4})
    found = walk(X86, LEAF, {6: BASE + 8}, stack(1, BASE + 32, CALLER + 4, 2, 3, OUTER + 4), code)
    assert [(each.address, each.by) for each in found.frames[:2]] == [(LEAF, By.LEAF), (CALLER + 4, By.FRAME_POINTER)]


def test_a_frame_pointer_that_leads_to_no_call_is_none() -> None:
    code = Known({OUTER: OUTERMOST}, calls={OUTER + 4})
    found = walk(X86, LEAF, {6: BASE + 8}, stack(1, 2, 3, CALLER, OUTER + 4), code)
    assert [(each.address, each.by) for each in found.frames] == [(LEAF, By.LEAF), (OUTER + 4, By.SCAN)]
    assert found.end is End.ROOT


def test_nothing_leads_on() -> None:
    found = walk(X86, LEAF, {}, stack(1, 2, 3), Known({}))
    assert found.frames[0].address == LEAF
    assert (len(found.frames), found.end) == (1, End.LOST)


def test_a_return_address_outside_of_code_is_not_believed() -> None:
    found = walk(X86, LEAF, {}, stack(7, 0xDEAD0000), Known({LEAF: frame(16)}))
    assert (len(found.frames), found.end) == (1, End.LOST)


def test_a_frame_that_takes_no_room_ends_it() -> None:
    """A table that leads in a circle, as a damaged file may have one."""
    circle = Row(Cfa(7, 0), {16: Rule(How.AT, 0)}, 16, False)
    found = walk(X86, LEAF, {}, stack(CALLER + 4, CALLER + 4), Known({LEAF: circle, CALLER: circle}))
    assert found.end is End.LOST
    assert len(found.frames) <= 3


def test_a_recursion_without_end_is_cut_off() -> None:
    found = walk(X86, LEAF, {}, stack(*[LEAF + 1] * 500), Known({LEAF: frame(8)}))
    assert (len(found.frames), found.end) == (MOST_FRAMES, End.DEEP)


def test_the_kernels_call_into_a_signals_handler_is_between_two_instructions() -> None:
    row = Row(Cfa(7, 16), RETURN_BELOW, 16, True)
    found = walk(X86, LEAF, {}, stack(1, CALLER), Known({LEAF: row, CALLER: OUTERMOST}))
    assert found.frames[1].within == CALLER


def test_aarch64_has_the_innermost_return_address_in_a_register() -> None:
    """A leaf that saves nothing, then a frame record; addresses carry signatures in their upper bits."""
    signed = 0x00B7 << 48
    record = Row(Cfa(31, 32), {29: Rule(How.AT, -32), 30: Rule(How.AT, -24)}, 30, False)
    outermost = Row(Cfa(31, 0), {30: Rule(How.UNDEFINED)}, 30, False)
    code = Known({LEAF: Row(Cfa(31, 0), {}, 30, False), CALLER: record, OUTER: outermost})
    found = walk(ARM, LEAF, {30: signed | CALLER + 4, 29: 0}, stack(0, signed | OUTER + 8, 1, 2), code)
    assert [each.address for each in found.frames] == [LEAF, CALLER + 4, OUTER + 8]
    assert found.end is End.ROOT


ROWS = st.dictionaries(
    st.sampled_from([LEAF, CALLER, OUTER]),
    st.none()
    | st.builds(
        lambda register, size: Row(Cfa(register, size), RETURN_BELOW, 16, False), st.sampled_from([6, 7]), st.integers(-64, 128)
    ),
)


@given(data=st.binary(max_size=512), rows=ROWS, registers=st.dictionaries(st.sampled_from([3, 6, 12]), st.integers(0, 2**64 - 1)))
def test_whatever_lies_there_it_ends_and_goes_upwards(data: bytes, rows: dict[int, Row | None], registers: dict[int, int]) -> None:
    data = data.replace(b"\x00\x00", struct.pack("<H", CALLER))
    found = walk(X86, LEAF, registers, Copy(BASE, data), Known(rows, calls=range(LEAF, OUTER, 8)))
    assert 1 <= len(found.frames) <= MOST_FRAMES
    stack_pointers = [each.sp for each in found.frames]
    assert stack_pointers == sorted(stack_pointers)
    assert len(set(stack_pointers[1:])) == len(stack_pointers[1:])


@pytest.mark.parametrize(
    ("code", "is_call"),
    [
        ("9090e800000000", True),  # call rel32
        ("9090909090ffd0", True),  # call *%rax
        ("9090909041ffd4", True),  # call *%r12
        ("90ff1500000000", True),  # call *rip-relative: what -fno-plt makes
        ("90909090ff5008", True),  # call *8(%rax)
        ("9090909090ff10", True),  # call *(%rax)
        ("90ff9000010000", True),  # call *0x100(%rax)
        ("909090ff542408", True),  # call *8(%rsp)
        ("ff942400010000", True),  # call *0x100(%rsp)
        ("90909090ff1424", True),  # call *(%rsp)
        ("90909090909090", False),
        ("9090e900000000", False),  # jmp
        ("9090909090ffe0", False),  # jmp *%rax
        ("9090909090ff30", False),  # push (%rax)
        ("909090909090c3", False),
    ],
)
def test_calls_of_x86_64(code: str, is_call: bool) -> None:
    """As objdump disassembles the last instruction."""
    assert CALLS["x86_64"](bytes.fromhex(code)) == is_call


@pytest.mark.parametrize(
    ("word", "is_call"),
    [(0x97FFFFF0, True), (0xD63F0000, True), (0xD63F0200, True), (0x14000001, False), (0xD65F03C0, False), (0xD61F0200, False)],
)
def test_calls_of_aarch64(word: int, is_call: bool) -> None:
    """bl, blr x0, blr x16; b, ret, br x16."""
    assert CALLS["aarch64"](bytes(3) + word.to_bytes(4, "little")) == is_call
