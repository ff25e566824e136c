"""What one hit of a probe takes on this host, in nanoseconds by kind: measured when the child starts, on the child itself.

No constant would do. A trap costs 0.3 us on one machine and 20 us on another, and on one machine it depends on the function's
first instruction: the kernel emulates some, and lets the CPU take a single step over the others. Under a hypervisor that second
exception may cost 30 times as much as all the rest. So the two are measured apart, and `entry_kind` says which one a function is.

The programs here do what a typical one of ours does (find the process, count the hit, note the time by thread; at the return find,
observe, remove), so that a figure has trap and body in it. It is CPU time of the thread that is probed: what else the host does
meanwhile has little part in it.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Final

from aie_ebpf.door import Bcc, BpfError, Module, Probe
from aie_ebpf.own_functions import address_of, place_of
from aie_ebpf.uprobe_links import Spot, Way, attach

UPROBE: Final = "uprobe"
UPROBE_EMULATED: Final = "uprobe_emulated"
URETPROBE: Final = "uretprobe"
TRACEPOINT: Final = "tracepoint"
UNKNOWN: Final = ""
"""Of hits whose kind was not counted."""

KINDS: Final = (UPROBE, UPROBE_EMULATED, URETPROBE, TRACEPOINT)

_CANDIDATES: Final = ("labs", "abs", "ffs", "wctob", "btowc", "inet_ntoa")
"""Functions of libc that take one number and harm nobody."""

_BATCH: Final = 100
_LEAST_TAKEN: Final = 5
_STAGE_NS: Final = 30_000_000
_SHORT_STAGE_NS: Final = 10_000_000
_ROUNDS: Final = 3
_MOST_ROUNDS: Final = 12
_FUTEX_WAKE_PRIVATE: Final = 1 | 128
_ENDBR64: Final = bytes.fromhex("f30f1efa")
# Of the system call table of each architecture.
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}

_TEXT: Final = """
#include <uapi/linux/ptrace.h>
struct use { u64 hits; u64 slots[32]; };
BPF_HASH(used, u32, struct use, 16);
BPF_HASH(began, u32, u64, 1024);

static __always_inline int enter(void) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct use *use = used.lookup(&tgid);
    if (!use) return 0;
    __sync_fetch_and_add(&use->hits, 1);
    u64 now = bpf_ktime_get_ns();
    began.update(&tid, &now);
    return 0;
}

static __always_inline int leave(void) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    u64 *start = began.lookup(&tid);
    if (!start) return 0;
    struct use *use = used.lookup(&tgid);
    if (use) {
        __sync_fetch_and_add(&use->hits, 1);
        __sync_fetch_and_add(&use->slots[(bpf_ktime_get_ns() - *start) >> 10 & 31], 1);
    }
    began.delete(&tid);
    return 0;
}

int call_enter(struct pt_regs *ctx) { return enter(); }
int call_leave(struct pt_regs *ctx) { return leave(); }
int futex_enter(void *ctx) { return enter(); }
int futex_leave(void *ctx) { return leave(); }
"""


def entry_kind(code: bytes) -> str:
    """Which of the two costs a probe has at the instruction that `code` begins with (two bytes are enough). On x86 UPROBE_EMULATED
    for a push of a register, a jump, a call and a one-byte nop, which kernels emulate (arch/x86/kernel/uprobes.c); UPROBE for all
    others. A kernel that emulates more costs less than we say, never more. On other architectures UPROBE.
    """
    if os.uname().machine != "x86_64":
        return UPROBE
    opcode = code[1:2] if code[:1] == b"\x41" else code[:1]  # a REX prefix: one of the upper eight registers
    if b"\x50" <= opcode <= b"\x57":
        return UPROBE_EMULATED
    return UPROBE_EMULATED if code[:1] in (b"\x90", b"\xe8", b"\xe9", b"\xeb") else UPROBE


def past_landing_pad(code: bytes) -> int:
    """How many bytes behind a function's start the cheaper place for a probe is, if there is one: behind an endbr64 with which it
    begins (where the CPU checks indirect jumps), when what follows is emulated. The endbr64 changes neither registers nor stack, so
    that arguments and the return address are the same there, and nobody enters a function behind it."""
    size = len(_ENDBR64)
    return size if code.startswith(_ENDBR64) and entry_kind(code[size:]) == UPROBE_EMULATED else 0


def measure(bcc: Bcc, way: Way) -> dict[str, float]:
    """Nanoseconds a hit, by kind. UPROBE and UPROBE_EMULATED: at a function's entry. URETPROBE: at its return, on top of the entry.
    TRACEPOINT: a run of a program on a system call's, above 0. Differences of lower quartiles, never negative. One of the two
    entries is absent where libc has no function that shows it. `way` is how uprobes are attached.

    About a second and a half, with detaching some ten probes. Uprobes are on this process alone; in each round for some hundredths
    of a second all system calls of the host find their tracing switched on. Raises BpfError.
    """
    module = bcc.compile_text(_TEXT)
    try:
        # struct use: 33 counters of 64 bits.
        module.table("used", "I", "33Q").put((os.getpid(),), (0,) * 33)
        return _functions(module, way) | {TRACEPOINT: _tracepoint(module)}
    finally:
        module.close()


def _functions(module: Module, way: Way) -> dict[str, float]:
    """One function of each kind that there is. The return costs the same for both, and shows better above the smaller entry."""
    libc = ctypes.CDLL(None)
    costs: dict[str, float] = {}
    for name in _CANDIDATES:
        function = getattr(libc, name, None)
        if function is None or (kind := entry_kind(_code_of(function))) in costs:
            continue
        costs[kind], return_ns = _entry_and_return(module, way, function)
        if kind == UPROBE_EMULATED or URETPROBE not in costs:
            costs[URETPROBE] = return_ns
    if URETPROBE not in costs:
        raise BpfError(f"libc has none of {', '.join(_CANDIDATES)}")
    return costs


def _entry_and_return(module: Module, way: Way, function: Any) -> tuple[float, float]:
    """What a probe at the entry adds to a call, and what one at the return adds to that. The function itself is no part of it."""
    path, offset = place_of(function)
    spots, tgid = [Spot(offset)], os.getpid()
    bare_ns = _a_call_ns(function, _SHORT_STAGE_NS)
    with _attached(module, attach(module, way, path, spots, "call_enter", tgid)):
        before_ns = _a_call_ns(function, _STAGE_NS)
        with _attached(module, attach(module, way, path, spots, "call_leave", tgid, on_return=True)):
            both_ns = _a_call_ns(function, _STAGE_NS)
        entry_ns = (before_ns + _a_call_ns(function, _STAGE_NS)) / 2  # a machine that grew faster meanwhile does not matter
    return max(0.0, entry_ns - bare_ns), max(0.0, both_ns - entry_ns)


def _tracepoint(module: Module) -> float:
    """A futex call that wakes nobody, with a program at its entry and one at its return, against without before and after: half.
    The median of some rounds: on a host whose CPUs others use, a round may say that a program gives time back. Raises BpfError
    where it never shows, since what is taken to be free would never be held back.
    """
    number = _SYS_FUTEX.get(os.uname().machine)
    if number is None:
        raise BpfError(f"the number of the futex call is not known for {os.uname().machine}")
    word = ctypes.c_uint32()
    syscall = ctypes.CDLL(None).syscall
    arguments = (ctypes.c_long(number), ctypes.byref(word), _FUTEX_WAKE_PRIVATE, 1)

    def wake(_: int) -> None:
        syscall(*arguments)

    return shown(lambda: _added_by_tracepoints(module, wake) / 2)


def _added_by_tracepoints(module: Module, wake: Callable[[int], object]) -> float:
    before_ns = _a_call_ns(wake, _SHORT_STAGE_NS)
    with (
        _attached(module, module.attach_tracepoint("syscalls:sys_enter_futex", "futex_enter")),
        _attached(module, module.attach_tracepoint("syscalls:sys_exit_futex", "futex_leave")),
    ):
        with_ns = _a_call_ns(wake, _STAGE_NS)
    return with_ns - (before_ns + _a_call_ns(wake, _SHORT_STAGE_NS)) / 2


def shown(measured_ns: Callable[[], float]) -> float:
    """The median of as many rounds as it takes until that is above 0. Where it is not after the most that there are, noise is more
    than the cost: the least that was above 0. Raises BpfError where nothing was.
    """
    found: list[float] = []
    for _ in range(_MOST_ROUNDS):
        found.append(measured_ns())
        if len(found) >= _ROUNDS and (median_ns := statistics.median(found)) > 0:
            return median_ns
    above = [each for each in found if each > 0]
    if not above:
        raise BpfError(f"what a tracepoint costs does not show in {_MOST_ROUNDS} rounds: this host is too busy")
    return min(above)


def _code_of(function: Any) -> bytes:
    return ctypes.string_at(address_of(function), 2)


@contextmanager
def _attached(module: Module, probe: Probe) -> Iterator[None]:
    try:
        yield
    finally:
        module.detach(probe)


def _a_call_ns(function: Callable[[int], object], budget_ns: int) -> float:
    """CPU time of a call, the lower quartile over batches: as many as fit into the time, and enough. What else the host does
    makes batches longer, never shorter."""
    end_ns = time.monotonic_ns() + budget_ns
    taken: list[float] = []
    while len(taken) < _LEAST_TAKEN or time.monotonic_ns() < end_ns:
        began_ns = time.thread_time_ns()
        for _ in repeat(None, _BATCH):
            function(7)
        taken.append((time.thread_time_ns() - began_ns) / _BATCH)
    return statistics.quantiles(taken, n=4)[0]
