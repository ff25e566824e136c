"""Who of the processes that are watched has ended: a descriptor of each (pidfd), and one system call that asks them all.

A descriptor is of one process for ever: whoever has its number later is another. It tells when all threads are gone, reaped or not.
"""

from __future__ import annotations

import os
import select
from collections.abc import Set
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


class Lives:
    """Processes by tgid, each from `begin` until `end`. Where no descriptor can be had, the start time is read."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._poll = select.poll()
        self._descriptors: dict[int, int] = {}
        self._tgids: dict[int, int] = {}
        self._without: dict[int, int] = {}
        self._ended: set[int] = set()

    def begin(self, tgid: int, began_ticks: int) -> None:
        """From now on this process is asked for: the one that started at `began_ticks`. It may be gone already."""
        try:
            descriptor = os.pidfd_open(tgid)
        except OSError:  # it is gone, or too many files are open: its start time tells which
            self._without[tgid] = began_ticks
            return
        self._descriptors[tgid], self._tgids[descriptor] = descriptor, tgid
        if start_ticks(tgid, self._proc) == began_ticks:
            self._poll.register(descriptor, select.POLLIN)
        else:
            self._ended.add(tgid)

    def ended(self) -> Set[int]:
        """Those of which no thread lives any more."""
        for descriptor, _ in self._poll.poll(0):
            self._poll.unregister(descriptor)
            self._ended.add(self._tgids[descriptor])
        self._ended |= {tgid for tgid, ticks in self._without.items() if start_ticks(tgid, self._proc) != ticks}
        return self._ended

    def end(self, tgid: int) -> None:
        """It is asked for no more."""
        self._without.pop(tgid, None)
        descriptor = self._descriptors.pop(tgid, None)
        if descriptor is not None:
            del self._tgids[descriptor]
            if tgid not in self._ended:
                self._poll.unregister(descriptor)
            os.close(descriptor)
        self._ended.discard(tgid)


def start_ticks(tgid: int, proc: Path = _PROC) -> int | None:
    """When a process started (field 22 of its stat), or None: it is gone."""
    try:
        after_name = read_small(f"{proc}/{tgid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return int(after_name[19])


def read_small(path: str) -> bytes:
    """A file of /proc that fits into a page. Raises OSError. Not `open()`, which costs a buffer and several system calls more."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
