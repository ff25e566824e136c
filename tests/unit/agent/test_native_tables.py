"""Rows of .eh_frame: those that pyelftools reads from real files are the oracle; broken files are refused, and no more."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.dwarf.callframe import FDE, RegisterRule
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_agent.stacks.native.cfa import How, Program, Row, Rule, row_of
from aie_agent.stacks.native.cursor import Cursor
from aie_agent.stacks.native.eh_frame import row_at
from aie_agent.stacks.native.expression import evaluate
from aie_ebpf.elf import Elf, ElfError
from tests.fakes.compiled import program, shared_library, tool

SOURCE = """
#include <alloca.h>
#include <math.h>
#include <string.h>
__attribute__((noinline)) double deep(double *values, int count, const char *text) {
    char *room = alloca(count + 16);
    memset(room, count, count);
    double sum = strlen(text);
    for (int i = 0; i < count; i++) sum += values[i] * room[i % 3] + values[count - i - 1];
    return sum;
}
__attribute__((noinline)) int switches(int n, int m) { return n > m ? switches(n - 1, m) * 3 + n : m - n; }
int main(int argc, char **argv) {
    double values[64] = {1.5};
    return (int)deep(values, argc + 7, argv[0]) + switches(argc + 40, argc);
}
"""
PROGRAM = Program(1, -8, 16, False)
_TO_HOW = {RegisterRule.OFFSET: How.AT, RegisterRule.VAL_OFFSET: How.IS, RegisterRule.UNDEFINED: How.UNDEFINED}


@pytest.fixture(scope="module", params=["-O2", "-O0", "-Os", "-O3 -funroll-loops -fno-plt"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("compiled") / "program", SOURCE, *request.param.split(), "-lm")


def test_every_row_is_pyelftools(compiled: Path) -> None:
    """At each instruction where a row begins, and at the last byte before the next one: PLT, start-up code and our functions."""
    seen = 0
    with compiled.open("rb") as file, Elf.open(compiled) as elf:
        for entry in ELFFile(file).get_dwarf_info().EH_CFI_entries():
            if not isinstance(entry, FDE):
                continue
            for begin, end, table in _rows(entry):
                for vaddr in {begin, end - 1}:
                    assert _plain(row_at(elf, vaddr)) == table, hex(vaddr)
                    seen += 1
    assert seen > 20


def _rows(entry: FDE) -> Iterator[tuple[int, int, object]]:
    table = entry.get_decoded().table
    ends = [row["pc"] for row in table[1:]] + [entry["initial_location"] + entry["address_range"]]
    for row, end in zip(table, ends, strict=True):
        if row["pc"] < end:
            cfa = bytes(row["cfa"].expr) if row["cfa"].expr is not None else (row["cfa"].reg, row["cfa"].offset)
            rules = {key: (_TO_HOW[rule.type], rule.arg or 0) for key, rule in row.items() if isinstance(key, int)}
            yield row["pc"], end, (cfa, rules)


def _plain(row: Row | None) -> object:
    assert row is not None
    cfa = row.cfa.expression or (row.cfa.register, row.cfa.offset)
    return cfa, {register: (rule.how, rule.value) for register, rule in row.rules.items()}


def test_nobody_called_the_first_function(compiled: Path) -> None:
    with Elf.open(compiled) as elf, compiled.open("rb") as file:
        start = ELFFile(file).header["e_entry"]
        row = row_at(elf, start)
    assert row is not None
    assert row.rules[16].how is How.UNDEFINED


def test_code_that_no_table_covers(compiled: Path, tmp_path: Path) -> None:
    with Elf.open(compiled) as elf:
        assert row_at(elf, 0) is None
        assert row_at(elf, 1 << 40) is None
    bare = shared_library(
        tmp_path / "bare.so",
        "int f(int a) { return a * 3; }",
        "-nostdlib",
        "-fno-asynchronous-unwind-tables",
        "-Wl,--no-eh-frame-hdr",
    )
    with Elf.open(bare) as elf:
        assert elf.unwind_index is None
        assert row_at(elf, elf.segments[0].vaddr) is None


def test_a_damaged_file_gives_rows_or_an_error(compiled: Path, tmp_path: Path) -> None:
    """Bytes of both sections replaced at random, many times: nothing else is raised, and it always ends."""
    sections = {}
    with compiled.open("rb") as file:
        whole = bytearray(file.read())
        file.seek(0)
        for name in (".eh_frame", ".eh_frame_hdr"):
            section = ELFFile(file).get_section_by_name(name)
            sections[name] = section["sh_offset"], section["sh_size"]
        text = ELFFile(file).get_section_by_name(".text")
    dice = random.Random(7)
    errors = 0
    for _ in range(150):
        data = bytearray(whole)
        for offset, size in sections.values():
            for _ in range(dice.randrange(1, 12)):
                data[offset + dice.randrange(size)] = dice.randrange(256)
        damaged = tmp_path / "damaged"
        damaged.write_bytes(data)
        with Elf.open(damaged) as elf:
            for vaddr in range(text["sh_addr"], text["sh_addr"] + text["sh_size"], 37):
                try:
                    row_at(elf, vaddr)
                except ElfError:
                    errors += 1
    assert errors > 0


@given(instructions=st.binary(max_size=200), common=st.binary(max_size=40), offset=st.integers(0, 1 << 20))
@settings(max_examples=300)
def test_any_bytes_are_a_row_or_an_error(instructions: bytes, common: bytes, offset: int) -> None:
    try:
        row = row_of(PROGRAM, common, instructions, offset)
    except ElfError:
        return
    assert all(isinstance(rule, Rule) for rule in row.rules.values())


@given(expression=st.binary(max_size=60))
@settings(max_examples=300)
def test_any_bytes_are_a_value_or_an_error(expression: bytes) -> None:
    try:
        value = evaluate(expression, dict.fromkeys(range(17), 3), lambda address: address)
    except ElfError:
        return
    assert value is None or 0 <= value < 1 << 64


@pytest.mark.parametrize(
    ("instructions", "why"),
    [
        (b"\x0b", "restores"),
        (b"\x0e\x10", "an offset that it has not"),
        (b"\x0d\x07", "a register that it has not"),
        (b"\x3f", "instruction 0x3f"),
        (b"\x0c\x07", "too early"),
        (b"\x0a" * 65, "remembers too much"),
        (b"", "not where a frame lies"),
    ],
)
def test_what_is_wrong_is_said(instructions: bytes, why: str) -> None:
    with pytest.raises(ElfError, match=why):
        row_of(PROGRAM, b"", instructions, 1 << 20)


def test_numbers_of_variable_length_are_those_of_the_standard() -> None:
    """DWARF 5, figures 7.2 (unsigned) and 7.3 (signed)."""
    for value, data in ((2, "02"), (127, "7f"), (128, "8001"), (129, "8101"), (12857, "b964")):
        assert Cursor(bytes.fromhex(data)).uleb() == value
    for value, data in (
        (2, "02"),
        (-2, "7e"),
        (127, "ff00"),
        (-127, "817f"),
        (128, "8001"),
        (-128, "807f"),
        (129, "8101"),
        (-129, "ff7e"),
    ):
        assert Cursor(bytes.fromhex(data)).sleb() == value
    with pytest.raises(ElfError, match="does not end"):
        Cursor(b"\x80" * 20).uleb()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the PLT's expression is x86_64's")
def test_an_entry_of_the_plt_is_an_expression(tmp_path: Path) -> None:
    """`call` from a PLT: after its first instruction pushed a number, the frame is 8 bytes deeper. By binutils' `readelf -wF`, the
    expression is breg7+8 + (((breg16 & 15) >= 11) << 3)."""
    lazy = program(tmp_path / "lazy", SOURCE, "-O2", "-lm", "-Wl,-z,lazy", "-fplt", "-fcf-protection=none")
    assert tool("readelf")
    with lazy.open("rb") as file:
        plt = ELFFile(file).get_section_by_name(".plt")
        begin = plt["sh_addr"]
    with Elf.open(lazy) as elf:
        row = row_at(elf, begin + 16)
    assert row is not None
    assert row.cfa.expression
    for within, deeper in ((0, 8), (6, 8), (11, 16)):
        assert evaluate(row.cfa.expression, {7: 1000, 16: begin + 16 + within}, lambda _: None) == 1000 + deeper


def test_what_takes_too_long_is_refused(tmp_path: Path) -> None:
    """An expression and an entry that do nothing, at length; whoever made the file made us follow them in each frame."""
    assert evaluate(b"\x31" + b"\x12\x13" * 127, {}, lambda _: None) == 1
    with pytest.raises(ElfError, match="has 257 bytes"):
        evaluate(b"\x31" + b"\x12\x13" * 128, {}, lambda _: None)
    source = f"""
    __attribute__((naked)) int f(void) {{ __asm__("{".cfi_remember_state; .cfi_restore_state; " * 5000} ret"); }}
    """
    library = shared_library(tmp_path / "long.so", source, "-nostdlib")
    with Elf.open(library) as elf:
        symbol = elf.exported("f")
        assert symbol is not None
        with pytest.raises(ElfError, match="bytes: that is none"):
            row_at(elf, symbol.vaddr)
