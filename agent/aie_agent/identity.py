"""What an engine is: a name and a set of processes, each a tgid with its start time (a tgid alone is reused).

Three things name engines: the configuration, the StatsD `engine` tag with the sender's credentials, and the scan for known
engine processes. They are merged by tgid, and the configuration wins the name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum


class Origin(IntEnum):
    """Who named an engine; the highest one wins the name."""

    SCAN = 0
    STATSD = 1
    CONFIG = 2


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for as long as it lives: `start_ticks` is field 22 of /proc/TGID/stat, clock ticks after boot."""

    tgid: int
    start_ticks: int


@dataclass(slots=True)
class _Entry:
    origin: Origin
    processes: set[ProcessId] = field(default_factory=set)
    ever_alive: bool = False


class Engines:
    """The engines that the agent knows of. `start_ticks(tgid)` says when a live process started, or None."""

    MAX_ENGINES = 64
    MAX_PROCESSES = 256

    def __init__(self, start_ticks: Callable[[int], int | None]) -> None:
        self._start_ticks = start_ticks
        self._entries: dict[str, _Entry] = {}

    def declare(self, name: str, origin: Origin, tgid: int | None = None) -> str | None:
        """Notes that engine `name` exists, and, with a tgid, that this process is one of its.

        Returns the name under which the process is known, which differs where a better origin named it; None when the
        caps are reached or the process is gone.
        """
        process = None
        if tgid is not None:
            ticks = self._start_ticks(tgid)
            if ticks is None:
                return None
            process = ProcessId(tgid, ticks)
            owner = self._owner(process)
            if owner is not None and owner != name:
                if self._entries[owner].origin >= origin:
                    return owner
                self._entries[owner].processes.discard(process)
        entry = self._entries.get(name)
        if entry is None:
            if len(self._entries) >= self.MAX_ENGINES:
                return None
            entry = self._entries[name] = _Entry(origin)
        entry.origin = max(entry.origin, origin)
        if process is not None:
            if len(entry.processes) >= self.MAX_PROCESSES:
                return None
            entry.processes.add(process)
            entry.ever_alive = True
        return name

    def prune(self) -> None:
        """Forgets processes that ended. Engines stay: that one is down is what people want to see."""
        for entry in self._entries.values():
            entry.processes = {p for p in entry.processes if self._start_ticks(p.tgid) == p.start_ticks}

    def names(self) -> list[str]:
        """All engines, in the order in which they became known."""
        return list(self._entries)

    def processes(self, name: str) -> list[ProcessId]:
        """The processes of an engine, by tgid."""
        entry = self._entries.get(name)
        return sorted(entry.processes, key=lambda process: process.tgid) if entry else []

    def state(self, name: str) -> str:
        """ "up" with a live process, "down" after the last one ended, "unknown" while none was ever seen."""
        entry = self._entries.get(name)
        if entry is None or not (entry.processes or entry.ever_alive):
            return "unknown"
        return "up" if entry.processes else "down"

    def _owner(self, process: ProcessId) -> str | None:
        return next((name for name, entry in self._entries.items() if process in entry.processes), None)
