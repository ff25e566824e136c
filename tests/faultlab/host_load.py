"""What others take of the host's CPUs, by the lab's own look: whether a finding about CPU is a false alarm depends on it.

Ours are the lab's process and all that descends from it: the engine, the agent and its child with the probes, whatever a fault
starts. Others are the rest of this host, and whoever the hypervisor gives its CPUs to.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

WINDOW_S: Final = 5.0
"""Shorter than the eight or ten seconds over which the agent looks at CPUs: most of these are enough for it."""
TELLS_ON_S: Final = 20.0
"""For so long after it the agent may tell of what was: it goes on until half as much is left, and lingers for ten seconds; and
either look may be a second old."""
EVERY_S: Final = 1.0

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """What others take: CPUs, on average, those included that the hypervisor gives away, and which share of the time of all CPUs
    it gives away."""

    others_cpus: float = 0.0
    stolen_share: float = 0.0


class Sample(NamedTuple):
    """Ticks since boot at a time of the monotonic clock: of all CPUs on anything, of that ours, those that the hypervisor gave to
    others, and all there were, idle ones too."""

    at_s: float
    busy: int
    ours: int
    stolen: int
    total: int


class Used(NamedTuple):
    """Ticks that a process used, with those of its children that ended and were waited for; and whose child it is."""

    parent: int
    ticks: int


def read(root: int) -> Sample:
    """What was used until now by all, and by this process and its descendants."""
    ours = family_ticks(root, dict(_processes()))
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, iowait, irq, softirq, stolen, *_ = (int(each) for each in file.readline().split()[1:])
    busy = user + nice + system + irq + softirq
    return Sample(time.monotonic(), busy, ours, stolen, busy + idle + iowait + stolen)


def family_ticks(root: int, processes: Mapping[int, Used]) -> int:
    """Ticks of a process and of all that descends from it; 0 where it is gone."""
    children: dict[int, list[int]] = {}
    for pid, used in processes.items():
        children.setdefault(used.parent, []).append(pid)
    ticks, left = 0, [root] if root in processes else []
    while left:
        pid = left.pop()
        ticks += processes[pid].ticks
        left += children.get(pid, ())
    return ticks


def _processes() -> Iterator[tuple[int, Used]]:
    for directory in Path("/proc").iterdir():
        if not directory.name.isdecimal():
            continue
        try:
            text = (directory / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        fields = text.rpartition(")")[2].split()
        yield int(directory.name), Used(int(fields[1]), sum(map(int, fields[11:15])))


def between(first: Sample, last: Sample) -> Load:
    """What others took from one to the other. What was ours and was not waited for when it ended counts as theirs."""
    stolen = max(last.stolen - first.stolen, 0)
    others = max(last.busy - first.busy - (last.ours - first.ours), 0)
    cpus = (others + stolen) / _TICKS / max(last.at_s - first.at_s, 1e-3)
    return Load(cpus, stolen / max(last.total - first.total, 1))


def lately(samples: Sequence[Sample]) -> Load:
    """The most that others took in a `WINDOW_S` that a finding of now may be about: one that ended no more than `TELLS_ON_S` before
    the last sample. Nothing while there are no samples for that long."""
    now_s = samples[-1].at_s
    loads = []
    for last in samples:
        first = next((each for each in reversed(samples) if each.at_s <= last.at_s - WINDOW_S), None)
        if first is not None and last.at_s >= now_s - TELLS_ON_S:
            loads.append(between(first, last))
    if not loads:
        return Load()
    return Load(max(each.others_cpus for each in loads), max(each.stolen_share for each in loads))


class HostLoad:
    """Looks once a second: by itself while it is a context, so that nothing is spread over a time in which nobody asks; else only
    when it is asked. `take` is for tests."""

    def __init__(self, take: Callable[[], Sample] = lambda: read(os.getpid())) -> None:
        self._take = take
        self._samples = deque([take()])
        self._lately = Load()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="host load", daemon=True)

    def __enter__(self) -> HostLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._is_over.wait(EVERY_S):
            self.lately()

    def lately(self) -> Load:
        """What others took lately."""
        with self._lock:
            if time.monotonic() - self._samples[-1].at_s >= EVERY_S:
                taken = self._take()
                if taken.ours < self._samples[-1].ours:  # a child was waited for while /proc was read: it is in nobody's time
                    taken = self._take()
                self._samples.append(taken)
                oldest_s = self._samples[-1].at_s - WINDOW_S - TELLS_ON_S
                while self._samples[1].at_s <= oldest_s:
                    self._samples.popleft()
                self._lately = lately(self._samples)
            return self._lately
