"""Threads that wait at a futex now, as /proc has them. What probes do not see is a wait that began before they came.

The kernel tells where such a thread waits, its program counter and its stack pointer (/proc/PID/task/TID/syscall), and its stack
can be read (/proc/PID/mem): it stands still while it waits, and nothing is stopped for it. Its other registers are not told; the
tables of x86_64 code hardly need them. On aarch64 the innermost function's return address is in one: there only that is known.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.sources.procfs import read_file
from aie_agent.stacks.thread_states import futex_address
from aie_ebpf.messages import LockStack

MOST_THREADS: Final = 256
STACK_BYTES: Final = 4096


class Standing(NamedTuple):
    """The threads of a process that wait, and how many of its threads were not looked at, as enough were found before."""

    tgid: int
    stacks: tuple[LockStack, ...]
    left_out: int = 0

    @property
    def problem(self) -> str | None:
        """That some were left out."""
        if not self.left_out:
            return None
        return (
            f"{self.left_out} threads of process {self.tgid} were not looked at, as {len(self.stacks)} that wait were found before"
        )


def waiting_now(
    engine: str,
    tgid: int,
    addresses: Collection[int] | None = None,
    proc: Path = Path("/proc"),
    machine: str = os.uname().machine,
    most: int = MOST_THREADS,
) -> Standing:
    """The threads of a process that wait at a futex, or at one of these addresses, the first `most` of them. None where that may
    not be read (it takes what py-spy takes), and none of a process that has ended."""
    try:
        tids = sorted(int(name) for name in os.listdir(proc / str(tgid) / "task"))
        memory = os.open(proc / str(tgid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Standing(tgid, ())
    found: list[LockStack] = []
    try:
        for at, tid in enumerate(tids):
            if len(found) >= most:
                return Standing(tgid, tuple(found), len(tids) - at)
            stack = _thread(engine, tgid, tid, memory, proc, machine, addresses)
            found += () if stack is None else (stack,)
    finally:
        os.close(memory)
    return Standing(tgid, tuple(found))


def _thread(
    engine: str, tgid: int, tid: int, memory: int, proc: Path, machine: str, addresses: Collection[int] | None
) -> LockStack | None:
    path = str(proc / str(tgid) / "task" / str(tid) / "syscall")
    try:
        call = read_file(path)
        address = None if call is None else futex_address(call, machine)
        if call is None or address is None or (addresses is not None and address not in addresses):
            return None
        sp, pc = (int(word, 16) for word in call.split()[-2:])
        stack = os.pread(memory, STACK_BYTES, sp)
        # Only what stood still meanwhile is one moment's.
        if read_file(path) != call:
            return None
    except (OSError, OverflowError):  # it ended, or its stack is no memory
        return None
    return LockStack(engine=engine, tgid=tgid, tid=tid, address=address, pc=pc, sp=sp, registers={}, stack=stack)
