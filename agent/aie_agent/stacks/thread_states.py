"""Where the kernel has the threads of a process: running, waiting, on which futex. Read from /proc, which stops nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.sources.procfs import read_file
from aie_agent.sources.procfs_text import namespace_pids, process_stat

_NEAR_BYTES: Final = 1 << 20

_FUTEX: Final = {"x86_64": 202, "aarch64": 98}
"""Number of the system call, by machine."""


class KernelThread(NamedTuple):
    """One thread: its tid in the reader's pid namespace, the letter of its state ("" where it may not be read), the futex that it
    waits on, and the address to which its stack reaches now (None while it runs)."""

    tid: int
    state: str = ""
    futex: int | None = None
    stack: int | None = None


def thread_states(tgid: int, proc: Path = Path("/proc")) -> dict[int, KernelThread]:
    """The threads of a process, by the tid that the process knows them by itself (in a container, its own namespace's). What is
    gone or may not be read is absent."""
    directory = proc / str(tgid) / "task"
    try:
        tids = [int(name) for name in os.listdir(directory)]
        status = read_file(str(proc / str(tgid) / "status"))
    except OSError:
        return {}
    is_nested = status is not None and len(namespace_pids(status)) > 1
    found = {}
    for tid in tids:
        own_tid = _own_tid(directory / str(tid)) if is_nested else tid
        if own_tid is not None:
            found[own_tid] = _thread(tid, directory / str(tid))
    return found


def _own_tid(directory: Path) -> int | None:
    status = _read(directory / "status")
    return None if status is None else (namespace_pids(status) or (None,))[-1]


def _thread(tid: int, directory: Path) -> KernelThread:
    stat = _read(directory / "stat")
    call = _read(directory / "syscall")  # needs the privilege that a dump needs too
    state = "" if stat is None else process_stat(stat).state
    if call is None:
        return KernelThread(tid, state)
    return KernelThread(tid, state, futex_address(call, os.uname().machine), stack_address(call))


def _read(path: Path) -> bytes | None:
    try:
        return read_file(str(path))
    except OSError:
        return None


def futex_address(syscall: bytes, machine: str) -> int | None:
    """/proc/PID/task/TID/syscall: the address that a thread inside futex(2) waits on; None when it is in another call, or runs."""
    words = syscall.split()
    if len(words) < 2 or words[0] != str(_FUTEX.get(machine)).encode():
        return None
    return int(words[1], 16)


def stack_address(syscall: bytes) -> int | None:
    """/proc/PID/task/TID/syscall: the stack pointer of a thread that waits, the last word but one; None while it runs."""
    words = syscall.split()
    return int(words[-2], 16) if len(words) >= 3 else None


def owner_of(descriptor: int, threads: Iterable[KernelThread]) -> KernelThread | None:
    """The thread whose `pthread_t` is this address; None where that is not clear. Before CPython 3.11 a thread's state has no tid.

    The C library puts the descriptor of a thread it starts at the top of its stack: the stack pointer lies a little below. Stacks
    are 8 MiB apart, so within 1 MiB there is no other's. It is not so for the main thread.
    """
    near = [each for each in threads if each.stack is not None and 0 < descriptor - each.stack <= _NEAR_BYTES]
    return near[0] if len(near) == 1 else None
