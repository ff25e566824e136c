"""What a hit costs, measured by the child's own way on this host, against what a C program loses to the same kind of probe."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from aie_ebpf import calibrate
from aie_ebpf.calibrate import KINDS, TRACEPOINT, UPROBE, UPROBE_EMULATED, URETPROBE
from aie_ebpf.door import Bcc
from aie_ebpf.own_functions import place_of
from aie_ebpf.uprobe_links import Spot, Way, attach
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = pytest.mark.usefixtures("bpf")

_CALLS: Final = 20_000
_NOTHING: Final = "int nothing(struct pt_regs *ctx) { return 0; }"
# Two functions that differ in their first instruction, and a loop: its CPU time in ns.
_LOOP: Final = r"""
#include <time.h>
__attribute__((noinline, naked)) void pushes(void) { __asm__("push %rbp; pop %rbp; ret"); }
__attribute__((noinline, naked)) void moves(void) { __asm__("mov %rdi, %rax; ret"); }
long loop_ns(void (*function)(void), long calls) {
    struct timespec began, ended;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    for (long i = 0; i < calls; i++) function();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    return (ended.tv_sec - began.tv_sec) * 1000000000L + ended.tv_nsec - began.tv_nsec;
}
"""


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("loop")
    (folder / "loop.c").write_text(_LOOP)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", folder / "loop.so", folder / "loop.c"], check=True)
    library = ctypes.CDLL(str(folder / "loop.so"))
    library.loop_ns.restype = ctypes.c_long
    library.loop_ns.argtypes = [ctypes.c_void_p, ctypes.c_long]
    return library


@both_ways
def test_every_kind_has_a_cost(bcc: Bcc, way: Way) -> None:
    costs = calibrate.measure(bcc, way)
    assert set(costs) <= set(KINDS)
    assert {URETPROBE, TRACEPOINT} <= set(costs)
    assert {UPROBE, UPROBE_EMULATED} & set(costs)
    assert all(cost_ns > 0 for cost_ns in costs.values()), costs
    # A uprobe is a trap, a tracepoint a call.
    assert min(costs[kind] for kind in (UPROBE, UPROBE_EMULATED) if kind in costs) > costs[TRACEPOINT]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the functions are in x86's assembler")
@both_ways
@pytest.mark.parametrize(("name", "kind"), [("pushes", UPROBE_EMULATED), ("moves", UPROBE)])
def test_a_loop_in_c_loses_what_was_calibrated(bcc: Bcc, way: Way, loop: ctypes.CDLL, name: str, kind: str) -> None:
    """The loop's program does nothing: what it loses is the trap, which is most of the calibrated cost, and no more than it."""
    function = getattr(loop, name)
    place = place_of(function)
    with Path(place.path).open("rb") as file:
        file.seek(place.offset)
        assert calibrate.entry_kind(file.read(2)) == kind
    calibrated_ns = calibrate.measure(bcc, way)[kind]
    bare_ns = min(loop.loop_ns(function, _CALLS) for _ in range(3)) / _CALLS
    module = bcc.compile_text(f"#include <uapi/linux/ptrace.h>\n{_NOTHING}")
    probe = attach(module, way, place.path, [Spot(place.offset)], "nothing", os.getpid())
    try:
        trapped_ns = min(loop.loop_ns(function, _CALLS) for _ in range(3)) / _CALLS
    finally:
        module.detach(probe)
        module.close()
    assert 0.4 < (trapped_ns - bare_ns) / calibrated_ns < 1.5


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the bytes are x86's")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("55", UPROBE_EMULATED),  # push %rbp
        ("4157", UPROBE_EMULATED),  # push %r15
        ("90", UPROBE_EMULATED),  # nop
        ("e900000000", UPROBE_EMULATED),  # jmp: a thunk
        ("f30f1efa", UPROBE),  # endbr64
        ("4883ec08", UPROBE),  # sub $8, %rsp
        ("4889f8", UPROBE),  # mov %rdi, %rax
        ("", UPROBE),
    ],
)
def test_the_first_instruction_decides(code: str, kind: str) -> None:
    assert calibrate.entry_kind(bytes.fromhex(code)) == kind


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the bytes are x86's")
@pytest.mark.parametrize(
    ("code", "past"),
    [
        ("f30f1efa55", 4),  # endbr64; push %rbp
        ("f30f1efa4883ec08", 0),  # endbr64; sub $8, %rsp: dear, too
        ("55f30f1efa", 0),
        ("f30f1e", 0),
    ],
)
def test_a_landing_pad_is_passed_by_where_that_is_cheaper(code: str, past: int) -> None:
    assert calibrate.past_landing_pad(bytes.fromhex(code)) == past
