"""Stacks of threads that begin to wait at a futex: the tracepoint of `lock_stacks`, the processes that it looks at, its records.

The tracepoint is the whole host's, and the kernel takes a program on it once: so it is attached while any process is looked at,
and each process is an entry of a map.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf import tracepoints
from aie_ebpf.door import BpfError, Module, Probe
from aie_ebpf.messages import LockStack, Target
from aie_ebpf.probes import TRACEPOINTS

_ROW: Final = next(row for row in TRACEPOINTS if row.set == "lock_stacks")
_HEAD: Final = struct.Struct("QIIQ")  # address, tgid, tid, bytes of stack
_BTF: Final = Path("sys/kernel/btf/vmlinux")


class Layout(NamedTuple):
    """The kernel's struct of user registers: how many words, which is the program counter and which the stack pointer, and the
    DWARF number of each other one (None: it has none, or is of no use to an unwinder)."""

    pc: int
    sp: int
    dwarf: tuple[int | None, ...]


LAYOUTS: Final = {
    # r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss
    "x86_64": Layout(16, 19, (15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, None, None, None, None, 7, None)),
    # x0 to x30, sp, pc, pstate
    "aarch64": Layout(32, 31, (*range(31), 31, None, None)),
}
"""By machine: struct pt_regs of x86_64, struct user_pt_regs of aarch64."""


class LockStacks:
    """Looks at processes, one at a time or several, and reads what was found."""

    def __init__(self, module: Module) -> None:
        """`module` holds lock_stacks. Raises BpfError."""
        self._module = module
        self._sampled = module.table("sampled", "I", "3Q")
        self._locks = module.table("sampled_locks", "QQ", "Q")
        self._ring = module.ring("lock_stacks")
        self._engines: dict[int, str] = {}
        self._wanted: dict[int, list[tuple[int, int]]] = {}
        self._probe: Probe | None = None

    def begin(self, target: Target, locks: Collection[tuple[int, int]]) -> Callable[[], None]:
        """Looks at a process from now on: at these futexes (tgid, address) of it, or at all where there are none of anybody.
        Returns what ends it. Raises BpfError."""
        tgid = target.tgid
        self._engines[tgid] = target.engine
        self._wanted[tgid] = [(address, owner) for owner, address in locks if owner == tgid]
        try:
            if self._probe is None:
                self._probe = self._module.attach_tracepoint(_ROW.tracepoint, _ROW.handler)
            for each in self._wanted[tgid]:
                self._locks.put(each, (1,))
            self._sampled.put((tgid,), (time.clock_gettime_ns(time.CLOCK_MONOTONIC), 0, int(bool(locks))))
        except BpfError:
            self._end(tgid)
            raise
        return lambda: self._end(tgid)

    def read(self) -> tuple[LockStack, ...]:
        """What was found since the reading before."""
        records = [decode(record, os.uname().machine) for record in self._ring.records()]
        return tuple(LockStack(engine=self._engines[each.tgid], **each._asdict()) for each in records if each.tgid in self._engines)

    def forget(self, tgid: int) -> None:
        """A process ended or is released."""
        self._engines.pop(tgid, None)

    def _end(self, tgid: int) -> None:
        """The process's engine is still known until its last records are read."""
        self._sampled.delete(tgid)
        for each in self._wanted.pop(tgid, ()):
            self._locks.delete(*each)
        if not self._wanted and self._probe is not None:
            self._module.detach(self._probe)
            self._probe = None


class Record(NamedTuple):
    """A record of programs/lock_stacks.bpf.c."""

    tgid: int
    tid: int
    address: int
    pc: int
    sp: int
    registers: dict[int, int]
    stack: bytes


def decode(record: bytes, machine: str) -> Record:
    """The fields of a record that was made on such a machine. Raises KeyError for one that no program knows."""
    layout = LAYOUTS[machine]
    address, tgid, tid, size = _HEAD.unpack_from(record)
    words = struct.unpack_from(f"{len(layout.dwarf)}Q", record, _HEAD.size)
    stack_at = _HEAD.size + 8 * len(layout.dwarf)
    registers = {number: words[at] for at, number in enumerate(layout.dwarf) if number is not None}
    return Record(tgid, tid, address, words[layout.pc], words[layout.sp], registers, record[stack_at : stack_at + size])


def refusal(root: Path = Path("/")) -> str:
    """Why this kernel cannot do it, as far as that is to be seen without a trial; "" where it may."""
    if not (root / _BTF).exists():
        return "this kernel has no BTF (/sys/kernel/btf/vmlinux), without which no program gets a thread's registers"
    if tracepoints.format_of(_ROW.tracepoint, root) is None:
        return f"this kernel has no tracepoint {_ROW.tracepoint}"
    return ""


def explained(error: BpfError) -> str:
    """What it means that the program was refused."""
    return f"{error} (bpf_task_pt_regs needs Linux 5.15)"
