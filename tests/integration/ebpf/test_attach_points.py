"""Points that are resolved are where the kernel's probes fire: exactly as often as a real program calls the function."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from aie_ebpf.cuda_probes import Uprobe
from aie_ebpf.door import Bcc, Module
from aie_ebpf.mappings import mapped_files
from aie_ebpf.targets import attach_points
from aie_ebpf.uprobe_links import Spot, Way, attach
from tests.fakes.compiled import program, shared_library
from tests.integration.ebpf.uprobe_ways import both_ways

# Calls a function as often as each line of its input says: of a library, or its own.
CALLER = """
#include <dlfcn.h>
#include <stdio.h>
extern int cuWork(int) __attribute__((weak));
int main(int count, char **argument) {
    int (*work)(int) = cuWork, times;
    if (count > 1) {
        void *library = dlopen(argument[1], RTLD_NOW);
        work = library ? dlsym(library, "cuWork") : 0;
    }
    if (!work) { fprintf(stderr, "%s\\n", dlerror()); return 1; }
    puts("ready");
    fflush(stdout);
    while (scanf("%d", &times) == 1) {
        for (int i = 0; i < times; i++) work(i);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
"""
WORK = "int cuWork(int x) { return x + 1; } int cuOther(int x) { return x + 2; }"
VERSIONED = """
int old(int x) { return x + 1; }
int new(int x) { return x + 2; }
__asm__(".symver old,cuWork@V1");
__asm__(".symver new,cuWork@@V2");
"""
COUNT = """
#include <uapi/linux/ptrace.h>
BPF_ARRAY(calls, u64, 1);
int entry(struct pt_regs *ctx) {
    u32 zero = 0;
    u64 *count = calls.lookup(&zero);
    if (count) __sync_fetch_and_add(count, 1);
    return 0;
}
"""
ROW = Uprobe("test", "libcuda.so", ("cuWork",), "entry", None, "int cuWork(int)", "1.0")
CALLS = 5000


class Caller(NamedTuple):
    """A program that calls when it is told to."""

    process: subprocess.Popen[str]

    def call(self, times: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{times}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def calling(*command: Path) -> Iterator[Caller]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Caller(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def counter(bcc: Bcc) -> Module:
    return bcc.compile_text(COUNT)


@pytest.fixture
def caller(tmp_path: Path, bpf: None) -> Path:
    return program(tmp_path / "caller", CALLER, "-ldl")


def counted(counter: Module, target: Caller, way: Way) -> int:
    """How many calls the kernel sees of CALLS at the points that are found."""
    points, unseen = attach_points(mapped_files(target.process.pid), [ROW])
    assert not unseen
    assert len(points) == 1
    table = counter.table("calls", "I", "Q")
    table.put((0,), (0,))
    point = points[0]
    probe = attach(counter, way, str(point.path), [Spot(point.offset)], point.row.entry, target.process.pid)
    try:
        target.call(CALLS)
    finally:
        counter.detach(probe)
    found = table.get(0)
    assert found is not None
    target.call(10)
    assert table.get(0) == found, "detached"
    return int(found[0])


@pytest.mark.parametrize("flags", [(), ("-fuse-ld=gold",), ("-Wl,-Ttext-segment=0x7000000",), ("-Wl,-z,noseparate-code", "-s")])
def test_a_library_of_any_layout(tmp_path: Path, caller: Path, counter: Module, way: Way, flags: tuple[str, ...]) -> None:
    with calling(caller, shared_library(tmp_path / "libcuda.so.1", WORK, *flags)) as target:
        assert counted(counter, target, way) == CALLS


def test_the_version_that_is_called(tmp_path: Path, caller: Path, counter: Module, way: Way) -> None:
    script = tmp_path / "versions"
    script.write_text("V1 { global: cuWork; local: *; }; V2 { global: cuWork; } V1;\n")
    library = shared_library(tmp_path / "libcuda.so.1", VERSIONED, f"-Wl,--version-script={script}")
    with calling(caller, library) as target:
        assert counted(counter, target, way) == CALLS


@both_ways
@pytest.mark.parametrize("replaced", [False, True])
def test_a_library_that_was_upgraded_under_the_process(
    tmp_path: Path, caller: Path, counter: Module, way: Way, replaced: bool
) -> None:
    library = shared_library(tmp_path / "libcuda.so.1", WORK)
    with calling(caller, library) as target:
        library.unlink()
        if replaced:
            shared_library(library, "int first(int x) { return x * 3; }" + WORK)
        assert counted(counter, target, way) == CALLS


@pytest.mark.parametrize("flags", [("-no-pie",), ("-pie",), ("-static",), ("-fuse-ld=gold",)])
def test_a_driver_that_is_part_of_the_program(tmp_path: Path, bpf: None, counter: Module, way: Way, flags: tuple[str, ...]) -> None:
    path = program(
        tmp_path / "whole",
        CALLER + WORK.replace("int cuWork(int x)", "__attribute__((noinline)) int cuWork(int x)"),
        "-ldl",
        *flags,
    )
    with calling(path) as target:
        assert counted(counter, target, way) == CALLS
