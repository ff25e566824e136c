"""ELF files that are truncated, damaged or made to hurt: one kind of error, and a bounded amount of work, whatever they hold."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aie_ebpf.elf import Elf, ElfError
from tests.fakes.compiled import shared_library

SOURCE = """
int old(void) { return 1; }
int new(void) { return 2; }
int puts(const char *);
__asm__(".symver old,call@V1");
__asm__(".symver new,call@@V2");
int user(void) { return puts(""); }
int shared_data[5] = {1};
unsigned short semaphore __attribute__((section(".probes"))) = 0;
void probed(void) {
  __asm__ volatile("990: nop\\n"
    ".pushsection .note.stapsdt,\\"\\",\\"note\\"\\n.balign 4\\n.4byte 8, 992f-991f, 3\\n.asciz \\"stapsdt\\"\\n"
    "991: .8byte 990b, 0, semaphore\\n.asciz \\"provider\\"\\n.asciz \\"name\\"\\n.asciz \\"\\"\\n992: .balign 4\\n.popsection\\n");
}
"""
ASK: tuple[Callable[[Elf], object], ...] = (
    lambda elf: elf.exported("call"),
    lambda elf: elf.exported("nobody"),
    lambda elf: elf.data_symbol("shared_data"),
    lambda elf: elf.in_symbol_table(["probed", "user"]),
    lambda elf: elf.imports("puts"),
    lambda elf: elf.needed,
    lambda elf: elf.build_id,
    lambda elf: elf.sections,
    lambda elf: elf.usdt_notes(),
)
# What the whole of ASK may read of one file. An undamaged one takes some 200 reads and 100 kB.
MOST_READS = 40_000
MOST_BYTES = 16 << 20


class Counted(Elf):
    """Counts what is read."""

    reads = 0
    bytes_read = 0

    def read(self, offset: int, size: int) -> bytes:
        data = super().read(offset, size)
        self.reads += 1
        self.bytes_read += len(data)
        return data


def ask_everything(data: bytes) -> tuple[int, list[object]]:
    """Opens and asks; returns how much was read, and answers or errors."""
    fd = os.memfd_create("hostile")
    os.write(fd, data)
    answers: list[object] = []
    try:
        with Counted(fd) as elf:
            for question in ASK:
                try:
                    answers.append(question(elf))
                except ElfError as error:
                    answers.append(error)
            reads = elf.reads
            assert reads <= MOST_READS
            assert elf.bytes_read <= MOST_BYTES
    except ElfError as error:
        return 0, [error]
    return reads, answers


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("elf")
    script = folder / "versions"
    script.write_text("V1 { global: call; }; V2 { global: *; } V1;\n")
    return shared_library(folder / "lib.so", SOURCE, f"-Wl,--version-script={script}", "-Wl,--hash-style=both").read_bytes()


def test_the_undamaged_one_answers_everything(healthy: bytes) -> None:
    _, answers = ask_everything(healthy)
    assert not [answer for answer in answers if isinstance(answer, ElfError)]
    assert [bool(answer) for answer in answers] == [True, False, True, True, True, True, True, True, True]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes(healthy: bytes, data: st.DataObject) -> None:
    changed = bytearray(healthy)
    # Headers, tables of the loader and the section headers decide; most of the rest is padding.
    places = st.one_of(st.integers(0, 1023), st.integers(0, len(healthy) - 9), st.integers(len(healthy) - 2500, len(healthy) - 9))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(places)
        value = data.draw(
            st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f"]))
        )
        changed[at : at + len(value)] = value
    for answer in ask_everything(bytes(changed))[1]:
        if isinstance(answer, ElfError):
            assert "\n" not in str(answer)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_anywhere(healthy: bytes, data: st.DataObject) -> None:
    ask_everything(healthy[: data.draw(st.integers(0, len(healthy)))])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300).map(lambda rest: b"\x7fELF\x02\x01\x01" + bytes(9) + rest))
def test_anything_behind_a_right_beginning(data: bytes) -> None:
    ask_everything(data)


def at_vaddr(healthy: bytes, tag: str) -> int:
    """Where in the file a table of the dynamic section lies."""
    fd = os.memfd_create("healthy")
    os.write(fd, healthy)
    with Elf(fd) as elf:
        return elf.offset_of(elf.dynamic[tag][0])


def test_a_chain_that_does_not_end(healthy: bytes) -> None:
    changed = bytearray(healthy)
    at = at_vaddr(healthy, "DT_HASH")
    buckets, chains = struct.unpack_from("<2I", changed, at)
    struct.pack_into(f"<{buckets}I", changed, at + 8, *([1] * buckets))
    struct.pack_into(f"<{chains}I", changed, at + 8 + buckets * 4, *([1] * chains))
    for position in range(0, 4096, 16):  # the newer hash section out of the way: its tag is another then
        if changed[at_vaddr_of_dynamic(healthy) + position :][:8] == struct.pack("<Q", 0x6FFFFEF5):
            struct.pack_into("<Q", changed, at_vaddr_of_dynamic(healthy) + position, 0x6FFFFFFF + 0x1000)
    _, answers = ask_everything(bytes(changed))
    assert "a chain of its hash section does not end" in str(answers[1])


def at_vaddr_of_dynamic(healthy: bytes) -> int:
    """Where in the file the dynamic section lies."""
    (headers,) = struct.unpack_from("<Q", healthy, 32)
    for index in range(struct.unpack_from("<H", healthy, 56)[0]):
        kind, _, offset = struct.unpack_from("<IIQ", healthy, headers + index * 56)
        if kind == 2:  # PT_DYNAMIC
            return int(offset)
    raise AssertionError("no dynamic section")


def test_version_definitions_that_do_not_end(healthy: bytes) -> None:
    changed = bytearray(healthy)
    at = at_vaddr(healthy, "DT_VERDEF")
    # Each of index 1, and the next is itself a little further on, for ever: it runs out of the file or of patience.
    struct.pack_into("<HHHHIII", changed, at, 1, 0, 1, 1, 0, 20, 0xFFFFFFFF)
    _, answers = ask_everything(bytes(changed))
    assert isinstance(answers[0], ElfError)


def test_a_name_that_is_repeated_for_ever_costs_no_memory(tmp_path: Path) -> None:
    """Names of 16 MB, all the same: those that were merged by no linker are not all kept."""
    source = "int wanted(void) { return 1; }"
    names = b"".join([b"\0", b"wanted\0" * (1 << 21)])
    path = shared_library(tmp_path / "lib.so", source)
    changed = bytearray(path.read_bytes())
    with Elf.open(path) as elf:
        table = next(section for section in elf.sections if section.kind == "SHT_SYMTAB")
        headers = struct.unpack_from("<Q", changed, 40)[0]
        struct.pack_into("<QQ", changed, headers + table.link * 64 + 24, len(changed), len(names))
    path.write_bytes(changed + names)
    tracemalloc.start()
    try:
        with Elf.open(path) as elf:
            elf.in_symbol_table(["wanted"])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * len(names)


def test_more_headers_than_any_file_has(healthy: bytes) -> None:
    for position, words in ((56, "program headers"), (60, "section headers")):
        changed = bytearray(healthy)
        struct.pack_into("<H", changed, position, 0xFFFF)
        _, answers = ask_everything(bytes(changed))
        assert any(words in str(answer) for answer in answers), answers


def test_a_file_that_shrinks_while_it_is_read(healthy: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(healthy)
    with Elf.open(path) as elf:
        assert elf.exported("call") is not None
        os.truncate(path, 100)
        with pytest.raises(ElfError, match="truncated"):
            elf.exported("call")
