"""USDT probes in files and in processes, against readelf."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aie_ebpf.elf import Elf
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.usdt import GC_PROBES, gc_points
from tests.fakes import usdt_library
from tests.fakes.compiled import program, shared_library, tool
from tests.fakes.loaded import LOADER, running

WAITS = "print(1, flush=True); input()"
NOP = 0x90
DEBIAN_PYTHON = Path("/usr/bin/python3")


def has_usdt(path: Path) -> bool:
    out = subprocess.run([tool("readelf"), "-n", path], capture_output=True, text=True, check=False).stdout
    return "gc__start" in out


def notes_of_readelf(path: Path) -> dict[tuple[str, str], tuple[int, int, str]]:
    """Location, semaphore and arguments by provider and name, as the notes say; base and section have to agree."""
    out = subprocess.run([tool("readelf"), "-n", "-W", path], capture_output=True, text=True, check=True).stdout
    rows = re.findall(
        r"Provider: (\S+)\s+Name: (\S+)\s+Location: 0x(\w+), Base: 0x\w+, Semaphore: 0x(\w+)\s+Arguments: ?([^\n]*)", out
    )
    return {(provider, name): (int(at, 16), int(counter, 16), arguments.strip()) for provider, name, at, counter, arguments in rows}


def file_offset(path: Path, vaddr: int) -> int:
    with Elf.open(path) as elf:
        return elf.offset_of(vaddr)


@pytest.mark.parametrize("semaphore", [True, False])
def test_notes_are_what_readelf_says(tmp_path: Path, semaphore: bool) -> None:
    path = shared_library(tmp_path / "libprobed.so", usdt_library.source(semaphore=semaphore))
    expected = notes_of_readelf(path)
    assert set(expected) == {("aie", "first"), ("aie", "second")}
    with Elf.open(path) as elf:
        notes = elf.usdt_notes()
        assert [elf.read(note.offset, 1)[0] for note in notes] == [NOP, NOP]
    for note in notes:
        location, counter, arguments = expected[note.provider, note.name]
        assert (note.offset, note.arguments) == (file_offset(path, location), arguments)
        assert note.semaphore_offset == (file_offset(path, counter) if semaphore else 0)


def test_a_file_that_was_moved_after_its_notes_were_written(tmp_path: Path) -> None:
    still = shared_library(tmp_path / "still.so", usdt_library.source())
    moved = shared_library(tmp_path / "moved.so", usdt_library.source(moved_by=0x100))
    with Elf.open(still) as one, Elf.open(moved) as other:
        assert one.usdt_notes() == other.usdt_notes() != ()


def test_a_file_without_notes(tmp_path: Path) -> None:
    with Elf.open(shared_library(tmp_path / "plain.so", "int a;")) as elf:
        assert elf.usdt_notes() == ()


@pytest.mark.skipif(not (DEBIAN_PYTHON.exists() and has_usdt(DEBIAN_PYTHON)), reason="the distribution's Python has no USDT")
def test_the_collector_of_an_interpreter_with_usdt() -> None:
    path = DEBIAN_PYTHON.resolve()
    expected = notes_of_readelf(path)
    with running([DEBIAN_PYTHON, "-c", WAITS]) as tgid:
        points, reason = gc_points(tgid)
        assert reason == ""
        assert {point.path.read_bytes()[point.offset] for point in points} == {NOP}
    assert {point.row for point in points} == set(GC_PROBES)
    for point in points:
        location, counter, _ = expected["python", point.symbol]
        assert (point.offset, point.semaphore_offset) == (file_offset(path, location), file_offset(path, counter))


def test_an_interpreter_without_usdt_says_so() -> None:
    with running([sys.executable, "-c", WAITS]) as tgid:
        loaded = re.findall(r"\S*/(?:lib)?python3[^\s/]*$", Path(f"/proc/{tgid}/maps").read_text(), re.MULTILINE)
        if any(has_usdt(Path(path)) for path in loaded):
            pytest.skip("the interpreter of the tests has USDT")
        points, reason = gc_points(tgid)
    assert points == []
    assert re.fullmatch(r"\S*python\S* was built without USDT probes \(--with-dtrace\)", reason)


def test_what_is_no_python_says_so(tmp_path: Path) -> None:
    with running([program(tmp_path / "server", LOADER, "-ldl")]) as tgid:
        points, reason = gc_points(tgid, cache=ElfCache())
    assert (points, reason) == ([], "the process is no CPython")
    assert gc_points(tgid) == ([], "the process is no CPython"), "it has ended"
