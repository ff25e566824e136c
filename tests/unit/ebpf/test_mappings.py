"""What processes map, on real ones: files that moved away or were replaced, code of nobody, and names that are meant to confuse."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aie_ebpf.elf import Elf, ElfError
from aie_ebpf.mappings import MappedFile, access_path, address_space, load_bias, mapped_files
from tests.fakes.compiled import program, shared_library, tool
from tests.fakes.loaded import LOADER, loaded, running

ANONYMOUS = (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
TELLS = """
#include <stdio.h>
int wanted(void) { return 7; }
int main(void) { printf("%p\\n", (void *)wanted); fflush(stdout); getchar(); }
"""
SOURCE = "int wanted(void) { return 7; }"


def may_open_mappings() -> bool:
    """Whether /proc/PID/map_files is for us to open."""
    file = mapped_files(os.getpid())[0]
    return os.access(f"/proc/self/map_files/{file.start:x}-{file.end:x}", os.R_OK)


needs_map_files = pytest.mark.skipif(not may_open_mappings(), reason="map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")


def named(files: tuple[MappedFile, ...], name: str) -> MappedFile:
    return next(file for file in files if file.name == name)


def content(path: Path | None) -> bytes:
    assert path is not None
    return path.read_bytes()


def test_a_library_is_opened_by_its_path(tmp_path: Path) -> None:
    library = shared_library(tmp_path / "libplain.so", SOURCE)
    with loaded(tmp_path, library) as tgid:
        file = named(mapped_files(tgid), "libplain.so")
        assert file.path == str(library)
        assert not file.is_deleted
        path = access_path(file)
        assert path == Path(f"/proc/{tgid}/root{library}")
        assert content(path) == library.read_bytes()
        assert named(mapped_files(tgid), "program").path == str(tmp_path / "program")


@needs_map_files
def test_a_deleted_library_is_opened_through_its_mapping(tmp_path: Path) -> None:
    library = shared_library(tmp_path / "libgone.so", SOURCE)
    before = library.read_bytes()
    with loaded(tmp_path, library) as tgid:
        library.unlink()
        file = named(mapped_files(tgid), "libgone.so")
        assert file.is_deleted
        path = access_path(file)
        assert path is not None
        assert "map_files" in path.parts
        assert content(path) == before


@needs_map_files
def test_a_replaced_library_is_not_taken_for_the_one_that_is_mapped(tmp_path: Path) -> None:
    library = shared_library(tmp_path / "libnew.so", SOURCE)
    before = library.read_bytes()
    with loaded(tmp_path, library) as tgid:
        other = shared_library(tmp_path / "other.so", "int another(void) { return 8; }")
        os.rename(other, library)
        file = named(mapped_files(tgid), "libnew.so")
        path = access_path(file)
        assert content(path) == before != library.read_bytes()


@needs_map_files
def test_a_file_that_is_called_deleted_and_is_not(tmp_path: Path) -> None:
    library = shared_library(tmp_path / "libodd.so", SOURCE)
    odd = tmp_path / "libodd.so (deleted)"
    os.rename(library, odd)
    with loaded(tmp_path, odd) as tgid:
        file = named(mapped_files(tgid), "libodd.so")
        assert content(access_path(file)) == odd.read_bytes()


def test_a_name_with_a_newline_stays_one_file_and_reaches_no_terminal(tmp_path: Path) -> None:
    library = shared_library(tmp_path / "libline.so", SOURCE)
    odd = tmp_path / "lib\n\x1b[31mred.so"
    os.rename(library, odd)
    with loaded(tmp_path, odd) as tgid:
        file = next(file for file in mapped_files(tgid) if file.path == str(odd))
        assert file.name == "lib??[31mred.so"
        assert content(access_path(file)) == odd.read_bytes()


def test_a_container_has_a_copy_of_its_own_at_the_same_path(tmp_path: Path) -> None:
    """In its mount namespace another file lies at the library's path."""
    ours = shared_library(tmp_path / "libboth.so", SOURCE)
    theirs = shared_library(tmp_path / "theirs.so", "int another(void) { return 8; }")
    executable = program(tmp_path / "program", LOADER, "-ldl")
    bind = f"mount --bind {theirs} {ours}"
    unshare = [tool("unshare"), "--mount", "sh", "-c"]
    if subprocess.run([*unshare, bind], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces for this user")
    with running([*unshare, f"{bind} && exec {executable} {ours}"]) as tgid:
        file = named(mapped_files(tgid), "libboth.so")
        assert file.path == str(ours)
        assert content(access_path(file)) == theirs.read_bytes() != ours.read_bytes()


@pytest.mark.parametrize(
    "flags", [("-no-pie",), ("-pie",), ("-fuse-ld=gold",), ("-Wl,-z,noseparate-code",), ("-Wl,-Ttext-segment=0x7000000",)]
)
def test_load_bias_leads_to_the_code(tmp_path: Path, flags: tuple[str, ...]) -> None:
    path = program(tmp_path / "tells", TELLS, *flags)
    process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        told = int(process.stdout.readline(), 16)
        file = named(mapped_files(process.pid), "tells")
        with Elf.open(path) as elf:
            symbol = elf.in_symbol_table(["wanted"])["wanted"]
            assert load_bias(file, elf.segments) + symbol.vaddr == told
        assert address_space(process.pid).module_at(told) == "tells"
    finally:
        process.kill()
        process.communicate()


def test_a_mapping_of_no_segment_is_an_error(tmp_path: Path) -> None:
    file = MappedFile(1, "/x", 1, 1, 0x1000, 0x2000, 1 << 40)
    with Elf.open(shared_library(tmp_path / "a.so", SOURCE)) as elf, pytest.raises(ElfError, match="of no segment"):
        load_bias(file, elf.segments)


def test_modules_of_addresses_in_this_process() -> None:
    space = address_space(os.getpid())
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert address is not None
    assert space.module_at(address).startswith("libc")
    pages = [mmap.mmap(-1, mmap.PAGESIZE, flags, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) for flags in ANONYMOUS]
    holders = [(ctypes.c_char * mmap.PAGESIZE).from_buffer(page) for page in pages]
    fresh = address_space(os.getpid())
    assert [fresh.module_at(ctypes.addressof(holder)) for holder in holders] == ["[anonymous]", "[anonymous]"]
    assert [space.module_at(ctypes.addressof(holder)) for holder in holders] == ["?", "?"], "they came after the look"
    assert fresh.module_at(0) == "?"
    assert fresh.module_at((1 << 64) - 1) in ("?", "[vsyscall]")
    del holders


def test_files_come_once_each() -> None:
    files = mapped_files(os.getpid())
    assert len({(file.device, file.inode) for file in files}) == len(files)
    lines = [line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines()]
    executable = {line[5] for line in lines if "x" in line[1] and len(line) > 5 and line[5].startswith("/")}
    assert {file.path for file in files} == executable


def test_a_process_that_is_gone_has_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    space = address_space(process.pid)
    assert space.files == ()
    assert space.module_at(0x1000) == "?"


def test_a_process_that_ends_between_looks(tmp_path: Path) -> None:
    with loaded(tmp_path) as tgid:
        files = mapped_files(tgid)
    assert files
    assert [access_path(file) for file in files] == [None] * len(files)
