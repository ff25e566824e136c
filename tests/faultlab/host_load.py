"""What others take of the host's CPUs, by the lab's own look: whether a finding about CPU is a false alarm depends on it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def busy_ticks() -> int:
    """Ticks that all CPUs spent on anything, since boot."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (int(each) for each in _first_line().split()[1:])
    return user + nice + system + irq + softirq


def _first_line() -> str:
    with open("/proc/stat", encoding="ascii") as file:
        return file.readline()


def ticks_of(pids: Iterable[int]) -> dict[int, int]:
    """Ticks that each of these processes used so far; 0 of one that is gone."""
    return {pid: _ticks(pid) for pid in pids}


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


class Others:
    """CPUs that everything but some processes took since this was made."""

    def __init__(self, own: Iterable[int]) -> None:
        self._began_s = time.monotonic()
        self._busy, self._used = busy_ticks(), ticks_of(own)

    def cpus(self) -> float:
        """So many, on average. What a process of ours used that ended meanwhile counts as the others'."""
        ours = sum(max(0, now - self._used[pid]) for pid, now in ticks_of(self._used).items())
        took = busy_ticks() - self._busy - ours
        return max(0.0, took / _TICKS / max(1e-3, time.monotonic() - self._began_s))
