"""Where rows of probes are attached in real processes, and what is said of those that are not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aie_ebpf.cuda_probes import Uprobe
from aie_ebpf.elf import Elf
from aie_ebpf.elf_cache import ElfCache
from aie_ebpf.mappings import mapped_files
from aie_ebpf.targets import AttachPoint, Unseen, attach_points
from tests.fakes.compiled import program, shared_library, tool
from tests.fakes.loaded import LOADER, loaded, running

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuMemAlloc_v2(void **p, unsigned long n) { return 1; }
int cuCtxSynchronize(void) { return 2; }
int cuStreamSynchronize(void *s) { return 3; }
int cuStreamSynchronize_ptsz(void *s) __attribute__((alias("cuStreamSynchronize")));
int cuLaunchKernel(void *f) { return 4; }
int cuLaunchKernel_ptsz(void *f) { return 5; }
"""


def row(*symbols: str, since: str = "2.0", set_: str = "cuda_sync", optional: bool = False) -> Uprobe:
    return Uprobe(set_, "libcuda.so", symbols, "entry", None, "int x(void)", since, optional)


ALLOC = row("cuMemAlloc_v2", since="3.2", set_="cuda_memory")
SYNC = row("cuCtxSynchronize")
STREAM = row("cuStreamSynchronize", "cuStreamSynchronize_ptsz")
LAUNCH = row("cuLaunchKernel", "cuLaunchKernel_ptsz", since="4.0", set_="cuda_launch")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    return shared_library(tmp_path / "libcuda.so.1", DRIVER)


def resolve(tgid: int, *rows: Uprobe) -> tuple[list[AttachPoint], list[Unseen]]:
    return attach_points(mapped_files(tgid), rows)


def offset(path: Path, name: str) -> int:
    with Elf.open(path) as elf:
        symbol = elf.exported(name)
    assert symbol is not None
    return symbol.offset


def test_every_row_at_its_function(tmp_path: Path, driver: Path) -> None:
    with loaded(tmp_path, driver) as tgid:
        points, unseen = resolve(tgid, ALLOC, SYNC, LAUNCH)
        assert not unseen
        assert [(point.row, point.symbol, point.offset) for point in points] == [
            (ALLOC, "cuMemAlloc_v2", offset(driver, "cuMemAlloc_v2")),
            (SYNC, "cuCtxSynchronize", offset(driver, "cuCtxSynchronize")),
            (LAUNCH, "cuLaunchKernel", offset(driver, "cuLaunchKernel")),
            (LAUNCH, "cuLaunchKernel_ptsz", offset(driver, "cuLaunchKernel_ptsz")),
        ]
        assert {point.path.read_bytes() for point in points} == {driver.read_bytes()}


def test_names_of_one_function_are_one_point_for_each_set(tmp_path: Path, driver: Path) -> None:
    with loaded(tmp_path, driver) as tgid:
        points, unseen = resolve(tgid, STREAM, row("cuStreamSynchronize", set_="cuda_launch"))
    assert not unseen
    assert [(point.row.set, point.symbol) for point in points] == [
        ("cuda_sync", "cuStreamSynchronize"),
        ("cuda_launch", "cuStreamSynchronize"),
    ]


def test_a_library_that_is_older_lacks_what_nobody_can_call(tmp_path: Path, driver: Path) -> None:
    newer = row("cuMemAllocAsync", since="11.2")
    optional = row("cuOld", since="1.0", optional=True)
    missing = row("cuCtxDestroy_v2", since="4.0")
    with loaded(tmp_path, driver) as tgid:
        points, unseen = resolve(tgid, SYNC, LAUNCH, newer, optional, missing)
    assert len(points) == 3
    assert unseen == [Unseen(missing, "libcuda.so.1 does not export cuCtxDestroy_v2")]


def test_versions_are_numbers_and_no_words(tmp_path: Path, driver: Path) -> None:
    tenth = row("cuLaunchKernel", since="11.10")
    with loaded(tmp_path, driver) as tgid:
        assert resolve(tgid, tenth, row("cuNew", since="11.9"))[1], "11.9 is before 11.10: it should be there"


def test_a_library_with_nothing_of_it_is_said(tmp_path: Path) -> None:
    shim = shared_library(tmp_path / "libcuda.so.1", "int cuCtxSynchronize(void); int user(void) { return cuCtxSynchronize(); }")
    other = shared_library(tmp_path / "libreal.so", "int cuCtxSynchronize(void) { return 0; }", "-Wl,-soname,libreal.so")
    subprocess.run([tool("gcc"), "-shared", "-fPIC", "-o", shim, f"{shim}.c", other, f"-Wl,-rpath,{tmp_path}"], check=True)
    with loaded(tmp_path, shim) as tgid:
        points, unseen = resolve(tgid, SYNC)
    assert points == [], "it only uses the function"
    assert unseen == [Unseen(SYNC, "libcuda.so.1 does not export cuCtxSynchronize")]


def test_a_stripped_library_is_probed_like_any_other(tmp_path: Path, driver: Path) -> None:
    subprocess.run([tool("strip"), "--strip-all", driver], check=True)
    with loaded(tmp_path, driver) as tgid:
        points, unseen = resolve(tgid, ALLOC, SYNC, STREAM)
    assert (len(points), unseen) == (3, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="map_files needs CAP_SYS_ADMIN")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_driver_that_was_upgraded_under_the_process(tmp_path: Path, driver: Path, replaced: bool) -> None:
    before = driver.read_bytes()
    expected = offset(driver, "cuLaunchKernel")
    with loaded(tmp_path, driver) as tgid:
        driver.unlink()
        if replaced:
            shared_library(driver, "int padding(int x) { return x * 3; }" + DRIVER.replace("return 0", "return 9"))
        points, unseen = resolve(tgid, row("cuLaunchKernel"))
        assert not unseen
        assert [point.offset for point in points] == [expected]
        assert points[0].path.read_bytes() == before


def test_a_driver_that_cannot_be_opened_is_said(tmp_path: Path, driver: Path) -> None:
    with loaded(tmp_path, driver) as tgid:
        files = mapped_files(tgid)
    _, unseen = attach_points(files, [SYNC])
    assert [each.reason for each in unseen] == [
        "libcuda.so.1 is mapped and cannot be opened: its path leads elsewhere, or we lack CAP_SYS_ADMIN"
    ]


def test_a_driver_that_is_linked_into_the_program(tmp_path: Path) -> None:
    path = program(tmp_path / "static", LOADER + DRIVER, "-ldl")
    with running([path]) as tgid:
        points, unseen = resolve(tgid, ALLOC, SYNC, STREAM)
    assert not unseen
    with Elf.open(path) as elf:
        wanted = elf.in_symbol_table(["cuMemAlloc_v2", "cuCtxSynchronize", "cuStreamSynchronize"])
    assert {point.symbol: point.offset for point in points} == {name: symbol.offset for name, symbol in wanted.items()}


def test_a_program_that_is_stripped_of_it_is_said(tmp_path: Path) -> None:
    path = program(tmp_path / "static", LOADER + DRIVER, "-ldl", "-s")
    with running([path]) as tgid:
        points, unseen = resolve(tgid, SYNC)
    assert (points, unseen) == ([], [Unseen(SYNC, "no file libcuda.so* is mapped, and the program does not hold it")])


def test_code_that_is_chosen_at_load_is_said_and_the_rest_attached(tmp_path: Path) -> None:
    source = """
    static int one(void) { return 1; }
    static int (*choose(void))(void) { return one; }
    int cuCtxSynchronize(void) __attribute__((ifunc("choose")));
    int cuInit(unsigned flags) { return 0; }
    """
    with loaded(tmp_path, shared_library(tmp_path / "libcuda.so.1", source)) as tgid:
        points, unseen = resolve(tgid, SYNC, row("cuInit"))
    assert [point.symbol for point in points] == ["cuInit"]
    assert unseen == [Unseen(SYNC, "libcuda.so.1: cuCtxSynchronize is chosen when it is loaded (IFUNC)")]


def test_two_copies_are_both_attached_to(tmp_path: Path, driver: Path) -> None:
    (tmp_path / "compat").mkdir()
    compat = shared_library(tmp_path / "compat" / "libcuda.so.560.35", "int before(void) { return 9; }" + DRIVER)
    with loaded(tmp_path, driver, compat) as tgid:
        points, _ = resolve(tgid, SYNC)
        assert {point.path.read_bytes() for point in points} == {driver.read_bytes(), compat.read_bytes()}


def test_a_second_look_finds_the_same_points(tmp_path: Path, driver: Path) -> None:
    """Points are compared to find what is new, so that they have to be the same."""
    cache = ElfCache()
    with loaded(tmp_path, driver) as tgid:
        first, second = (attach_points(mapped_files(tgid), [ALLOC, SYNC], cache=cache) for _ in range(2))
    assert first == second
    assert len({*first[0], *second[0]}) == 2
