"""Where the GIL is, in every CPython of this host: threads that fight for it wait at addresses inside `_PyRuntime`."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.python_runtime import gil_range
from tests.fakes.compiled import program, tool
from tests.fakes.loaded import LOADER, running
from tests.fakes.pythons import interpreters

FIGHT = """
import sys, threading
def spin():
    while True:
        pass
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
WAITS_TO_SEE = 30


def waiting_at(tgid: int) -> list[int]:
    """The futex addresses at which threads of a process wait at this moment."""
    addresses = []
    for path in Path(f"/proc/{tgid}/task").glob("*/syscall"):
        words = path.read_text().split()
        if words and words[0] == str(FUTEX):
            addresses.append(int(words[1], 16))
    return addresses


@pytest.mark.skipif(FUTEX is None, reason="the number of futex is not known here")
@pytest.mark.parametrize("interpreter", interpreters())
def test_threads_that_want_the_gil_wait_inside_it(interpreter: str) -> None:
    with running([interpreter, "-c", FIGHT]) as tgid:
        found = gil_range(tgid)
        assert found is not None
        start, end = found
        seen: list[int] = []
        while len(seen) < WAITS_TO_SEE:  # the spinning threads never end their fight
            seen += waiting_at(tgid)
        assert all(start <= address < end for address in seen), [hex(address) for address in (start, end, *seen)]


def test_its_size_is_what_readelf_says() -> None:
    with running([sys.executable, "-c", "print(1, flush=True); input()"]) as tgid:
        found = gil_range(tgid)
        assert found is not None
        files = re.findall(r"\S*/(?:lib)?python3[^\s/]*$", Path(f"/proc/{tgid}/maps").read_text(), re.MULTILINE)
        out = "".join(
            subprocess.run([tool("readelf"), "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
            for path in set(files)
        )
    sizes = {int(line.split()[2], 0) for line in out.splitlines() if line.endswith(" _PyRuntime") and " UND " not in line}
    assert found[1] - found[0] in sizes


def test_an_interpreter_that_hides_the_symbol_is_found_by_its_section(tmp_path: Path) -> None:
    """Stripped of its dynamic symbol, a build of 3.11 or later still has the section."""
    source = LOADER + 'char runtime[4096] __attribute__((section(".PyRuntime"))) = {1};\n'
    with running([program(tmp_path / "python3.13", source, "-ldl", "-s")]) as tgid:
        found = gil_range(tgid)
    assert found is not None
    assert found[1] - found[0] == 4096


def test_what_is_no_python(tmp_path: Path) -> None:
    with running([program(tmp_path / "python", LOADER, "-ldl")]) as tgid:
        assert gil_range(tgid) is None
    assert gil_range(tgid) is None, "it has ended"


def test_a_second_look_reads_no_file_again(tmp_path: Path) -> None:
    cache = ElfCache()
    with running([sys.executable, "-c", "print(1, flush=True); input()"]) as tgid:
        first = gil_range(tgid, cache=cache)
        assert first == gil_range(tgid, cache=cache) == gil_range(tgid)
        with running([sys.executable, "-c", "print(1, flush=True); input()"]) as other:
            assert gil_range(other, cache=cache) == gil_range(other)
