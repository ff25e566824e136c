"""Names of functions by address: binutils' nm is the oracle."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from aie_ebpf.elf import Elf, ElfError
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
