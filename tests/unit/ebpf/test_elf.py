"""What is found in ELF files, against readelf, on libraries of this host and on small ones that are made for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from aie_ebpf.elf import Elf, ElfError
from tests.fakes.compiled import program, shared_library, tool

VERSIONED = """
int old(void) { return 1; }
int new(void) { return 2; }
int only_old(void) { return 3; }
__asm__(".symver old,call@V1");
__asm__(".symver new,call@@V2");
__asm__(".symver only_old,gone@V1");
int plain(void) { return 4; }
int shared_data[5] = {1};
"""
VERSIONS = "V1 { global: call; gone; local: old; new; only_old; }; V2 { global: call; plain; shared_data; } V1;\n"


class Row(NamedTuple):
    """A row of `readelf --dyn-syms`."""

    vaddr: int
    size: int
    kind: str
    section: str
    name: str


def dynamic_symbols(path: Path) -> list[Row]:
    out = subprocess.run([tool("readelf"), "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in out.splitlines() if re.match(r"\s*\d+: ", line)]
    return [Row(int(row[1], 16), int(row[2], 0), row[3], row[6], row[7]) for row in rows if len(row) >= 8]


def loaded_at(path: Path, vaddr: int) -> int:
    """The offset in the file of an address, by readelf's program headers."""
    out = subprocess.run([tool("readelf"), "-W", "-l", path], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        words = line.split()
        if words[:1] == ["LOAD"]:
            offset, start, _, size = (int(word, 16) for word in words[1:5])
            if start <= vaddr < start + size:
                return vaddr - start + offset
    raise AssertionError(f"{vaddr:#x} is not loaded")


def library_of_host(name: str) -> Path:
    """Where the process that runs the tests has a library mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(None, 5)[-1]
        if re.fullmatch(rf".*/lib{name}[.-][^/]*", path):
            return Path(path)
    pytest.skip(f"lib{name} is not mapped")


@pytest.fixture
def versioned(tmp_path: Path) -> Path:
    script = tmp_path / "versions"
    script.write_text(VERSIONS)
    return shared_library(tmp_path / "libversioned.so", VERSIONED, f"-Wl,--version-script={script}")


def the_default_is_readelfs(path: Path, most: int) -> int:
    """Compares every `most`-th exported function with readelf; says how many."""
    rows = [row for row in dynamic_symbols(path) if row.kind == "FUNC" and row.section not in ("UND", "ABS")]
    defaults = [row for row in rows if "@" not in row.name or "@@" in row.name]
    step = max(1, len(defaults) // most)
    shift = defaults[0].vaddr - loaded_at(path, defaults[0].vaddr)  # code is in one segment
    with Elf.open(path) as elf:
        for row in defaults[::step]:
            name, _, version = row.name.partition("@@")
            symbol = elf.exported(name)
            assert symbol is not None, row
            assert (symbol.vaddr, symbol.size_bytes, symbol.version) == (row.vaddr, row.size, version or None)
            assert symbol.offset == row.vaddr - shift
    return len(defaults[::step])


def test_functions_of_libc_are_where_readelf_says() -> None:
    assert the_default_is_readelfs(library_of_host("c"), most=300) >= 100


def test_functions_of_the_interpreter_are_where_readelf_says() -> None:
    with Elf.open("/proc/self/exe") as own:
        needed = own.needed
    path = library_of_host("python3.11") if any("libpython" in name for name in needed) else Path(sys.executable).resolve()
    assert the_default_is_readelfs(path, most=200) >= 100


def test_a_default_version_goes_before_an_older_one(versioned: Path) -> None:
    by_name = {row.name: row for row in dynamic_symbols(versioned)}
    with Elf.open(versioned) as elf:
        call = elf.exported("call")
        assert call is not None
        assert (call.version, call.vaddr) == ("V2", by_name["call@@V2"].vaddr)
        assert call.vaddr != by_name["call@V1"].vaddr
        assert elf.exported("gone") is None, "only an old version: nobody who is linked today gets it"
        assert elf.exported("only_old") is None, "local"


def test_what_bcc_resolves_wrongly_in_libc() -> None:
    path = library_of_host("c")
    rows = {row.name: row for row in dynamic_symbols(path)}
    wanted = next((row for name, row in rows.items() if name.startswith("pthread_cond_timedwait@@")), None)
    if wanted is None:
        pytest.skip("this libc has no pthread_cond_timedwait with versions")
    with Elf.open(path) as elf:
        symbol = elf.exported("pthread_cond_timedwait")
    assert symbol is not None
    assert symbol.vaddr == wanted.vaddr


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_either_hash_section_will_do(tmp_path: Path, style: str) -> None:
    source = (
        "".join(f"int function_{n}(void) {{ return {n}; }}\n" for n in range(200))
        + "int puts(const char *);int user(void){return puts(0);}"
    )
    path = shared_library(tmp_path / f"lib{style}.so", source, f"-Wl,--hash-style={style}")
    assert the_default_is_readelfs(path, most=1000) == 201
    with Elf.open(path) as elf:
        assert elf.exported("function_200") is None
        assert elf.exported("puts") is None, "it is only used here"
        assert elf.imports("puts")
        assert not elf.imports("function_1")
        assert not elf.imports("nobody")


@pytest.mark.parametrize("flags", [("-no-pie",), ("-pie",), ("-static-pie",), ("-fuse-ld=gold",), ("-Wl,-z,noseparate-code",)])
def test_text_whose_offset_is_not_its_address(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source = "int wanted(void){return 7;} int main(void){return wanted();}"
    path = program(tmp_path / "program", source, *flags)
    out = subprocess.run([tool("nm"), path], capture_output=True, text=True, check=True).stdout
    vaddr = next(int(line.split()[0], 16) for line in out.splitlines() if line.endswith(" T wanted"))
    with Elf.open(path) as elf:
        symbol = elf.in_symbol_table(["wanted", "nobody"])["wanted"]
        assert (symbol.vaddr, symbol.offset) == (vaddr, loaded_at(path, vaddr))
        assert elf.exported("wanted") is None, "an executable exports nothing unless it is told to"
        code = elf.read(symbol.offset, symbol.size_bytes)
    assert (7).to_bytes(4, "little") in code, "mov $7, %eax"


def test_segments_may_lie_anywhere_in_the_file(tmp_path: Path) -> None:
    source = "int wanted(void){return 7;}"
    path = shared_library(tmp_path / "libfar.so", source, "-Wl,-Ttext-segment=0x7000000", "-Wl,--hash-style=gnu")
    with Elf.open(path) as elf:
        symbol = elf.exported("wanted")
    assert symbol is not None
    assert symbol.vaddr > 0x7000000 > symbol.offset
    assert symbol.offset == loaded_at(path, symbol.vaddr)


def test_a_stripped_library_still_exports(versioned: Path) -> None:
    subprocess.run([tool("strip"), "--strip-all", versioned], check=True)
    with Elf.open(versioned) as elf:
        assert elf.exported("call") is not None
        assert elf.in_symbol_table(["only_old"]) == {}


def test_a_library_without_section_headers_still_exports(versioned: Path) -> None:
    data = bytearray(versioned.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:62] = bytes(2)  # e_shnum
    versioned.write_bytes(data)
    with Elf.open(versioned) as elf:
        assert elf.sections == ()
        assert elf.exported("call") is not None
        assert elf.usdt_notes() == ()


def test_code_that_is_chosen_at_load_is_refused() -> None:
    with Elf.open(library_of_host("c")) as elf, pytest.raises(ElfError, match=r"memcpy is chosen when it is loaded \(IFUNC\)"):
        elf.exported("memcpy")


def test_data(versioned: Path) -> None:
    row = next(row for row in dynamic_symbols(versioned) if row.name.startswith("shared_data"))
    with Elf.open(versioned) as elf:
        assert elf.data_symbol("shared_data") == (row.vaddr, 20)
        assert elf.data_symbol("call") is None
        assert elf.exported("shared_data") is None


def test_build_id(tmp_path: Path) -> None:
    source = "int x;"
    with Elf.open(shared_library(tmp_path / "a.so", source, "-Wl,--build-id=0xfeedbeef")) as elf:
        assert elf.build_id == "feedbeef"
    with Elf.open(shared_library(tmp_path / "b.so", source, "-Wl,--build-id=none")) as elf:
        assert elf.build_id is None


def test_needed(tmp_path: Path) -> None:
    with Elf.open(shared_library(tmp_path / "a.so", "double sin(double); double f(double x) { return sin(x); }", "-lm")) as elf:
        assert {"libm.so.6", "libc.so.6"} >= set(elf.needed) >= {"libm.so.6"}


def test_what_is_no_elf_file_is_refused_in_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\n")
    empty = tmp_path / "empty"
    empty.touch()
    for path in (text, empty, tmp_path, tmp_path / "absent", Path("/dev/null"), tmp_path / "with\0nul"):
        with pytest.raises(ElfError, match=r"^[^\n]+$"):
            Elf.open(path)


def test_a_pipe_in_its_place_does_not_stop_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ElfError, match="not a plain file"):
        Elf.open(tmp_path / "pipe")


def test_files_of_other_machines_are_refused(versioned: Path) -> None:
    data = bytearray(versioned.read_bytes())
    for position, value in ((4, 1), (5, 2)):  # 32 bits; big-endian
        changed = bytearray(data)
        changed[position] = value
        versioned.write_bytes(changed)
        with pytest.raises(ElfError, match="64 bits, little-endian"):
            Elf.open(versioned)
