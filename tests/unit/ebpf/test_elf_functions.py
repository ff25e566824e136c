"""Names of functions by address: binutils' nm is the oracle."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_ebpf import elf_functions
from aie_ebpf.elf import Elf, ElfError
from aie_ebpf.elf_file import Section
from aie_ebpf.elf_functions import Function, functions_at
from tests.fakes.compiled import program, shared_library, tool

SOURCE = """
int shared_value = 3;
static int helper(int a) { return a * shared_value + 1; }
int visible(int a) { return helper(a) + helper(a + 1); }
int __strange(int a) { return a - shared_value; }
extern __typeof(__strange) plain __attribute__((alias("__strange")));
int main(void) { return visible(2); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("functions") / "program", SOURCE, "-O0", "-rdynamic")


def by_nm(path: Path, *flags: str) -> dict[str, tuple[int, int]]:
    """Where functions begin and how large they are, by name."""
    told = subprocess.run([tool("nm"), "-S", *flags, path], capture_output=True, text=True, check=True).stdout
    return {
        name: (int(begin, 16), int(size, 16)) for begin, size, name in re.findall(r"^(\w+) (\w+) [tT] (\S+)$", told, re.MULTILINE)
    }


def test_every_byte_of_every_function(compiled: Path) -> None:
    functions = by_nm(compiled)
    assert {"helper", "visible", "main"} <= functions.keys()
    wanted = {
        begin + at: name for name, (begin, size) in functions.items() for at in range(size) if name not in ("__strange", "plain")
    }
    with Elf.open(compiled) as elf:
        found = functions_at(elf, wanted)
        begin, size = functions["helper"]
        assert functions_at(elf, [begin - 1, begin + size]).get(begin - 1, Function("", 0)).name != "helper"
    assert {vaddr: function.name for vaddr, function in found.items()} == wanted
    assert all(functions[function.name][0] == function.vaddr for function in found.values())


def test_of_several_names_the_plainest(compiled: Path) -> None:
    begin, _ = by_nm(compiled)["__strange"]
    with Elf.open(compiled) as elf:
        assert functions_at(elf, [begin]) == {begin: Function("plain", begin)}


def test_a_stripped_library_has_its_exported_functions(compiled: Path, tmp_path: Path) -> None:
    library = shared_library(tmp_path / "library.so", SOURCE, "-O0")
    helper, _ = by_nm(library)["helper"]
    subprocess.run([tool("strip"), "--strip-all", library], check=True)
    visible, _ = by_nm(library, "-D")["visible"]
    with Elf.open(library) as elf:
        assert functions_at(elf, [helper, visible, 1 << 40]) == {visible: Function("visible", visible)}
        assert functions_at(elf, []) == {}


def test_data_is_no_function(compiled: Path) -> None:
    told = subprocess.run([tool("nm"), compiled], capture_output=True, text=True, check=True).stdout
    (value,) = re.findall(r"^(\w+) D shared_value$", told, re.MULTILINE)
    with Elf.open(compiled) as elf:
        assert functions_at(elf, [int(value, 16)]) == {}


def test_a_damaged_file_gives_names_or_an_error(compiled: Path, tmp_path: Path) -> None:
    whole = compiled.read_bytes()
    wanted = range(0x1000, 0x1400, 5)
    dice = random.Random(11)
    errors = 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 60)):
            data[dice.randrange(64, len(data))] = dice.randrange(256)
        damaged = tmp_path / "damaged"
        damaged.write_bytes(data)
        try:
            with Elf.open(damaged) as elf:
                functions_at(elf, wanted)
        except ElfError:
            errors += 1
    assert errors > 0


def hostile(path: Path, symbols: int, tables: int = 1) -> Path:
    """A file whose symbols all claim every address, under a name that does not end within what is read of one."""
    table = struct.pack("<IBBHQQ", 1, 2, 0, 1, 0, 1 << 40) * symbols
    names = b"\0" + b"A" * 600 + b"\0"
    sections_at = 128 + len(table) + len(names)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 1, 64, tables + 2, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 1 << 20, 1 << 20, 4096)

    def section(kind: int, at: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, tables + 1, 0, 8, 24)

    headers = section(0, 0, 0) + section(2, 128, len(table)) * tables + section(3, 128 + len(table), len(names))
    path.write_bytes((head + segment).ljust(128, b"\0") + table + names + headers)
    return path


def test_a_table_that_claims_everything_takes_little(tmp_path: Path) -> None:
    """Of 30 million claims one an address is kept; the name is one that shows it was cut."""
    wanted = range(1000, 2000)
    with Elf.open(hostile(tmp_path / "hostile.so", 30_000)) as elf:
        tracemalloc.start()
        found = functions_at(elf, wanted)
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found == dict.fromkeys(wanted, Function("A" * 513, 0))
    assert most_bytes < 4 << 20


def test_one_table_of_a_kind_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As linkers write them: a thousand tables of a million symbols would take a quarter of an hour."""
    looked: list[int] = []
    rows = elf_functions._rows

    def watched(elf: Elf, table: Section) -> Iterator[tuple[int, ...]]:
        looked.append(table.size)
        return rows(elf, table)

    monkeypatch.setattr(elf_functions, "_rows", watched)
    with Elf.open(hostile(tmp_path / "hostile.so", 3, tables=500)) as elf:
        assert len(functions_at(elf, [7])) == 1
    assert looked == [72]


def test_names_that_are_read_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One address that half a million symbols claim."""
    monkeypatch.setattr(elf_functions, "_MOST_NAMES", 50)
    read: list[int] = []
    name = elf_functions._name

    def watched(elf: Elf, strings: Section, at: int) -> str:
        read.append(at)
        return name(elf, strings, at)

    monkeypatch.setattr(elf_functions, "_name", watched)
    with Elf.open(hostile(tmp_path / "hostile.so", 200)) as elf:
        assert functions_at(elf, [7])[7].vaddr == 0
    assert len(read) == 50
