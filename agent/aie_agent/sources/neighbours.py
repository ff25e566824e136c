"""Who else uses the host's CPUs: processes of no engine that take much of one.

One look at every process's /proc/PID/stat each `period_s`: some ten microseconds a process, so 0.1 % of a core with a thousand.
What is found is no metric, since it would have a series for each process that ever ran; it is told as a change with what it
preceded, and beside an engine that lacks CPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from aie_agent.neighbour import Neighbour, program_name
from aie_agent.samples import Batch
from aie_agent.sources.base import SourceError
from aie_agent.sources.procfs import Procfs

PERIOD_S: Final = 10.0
BUSY_CORES: Final = 0.5
MOST: Final = 20


class _Used(NamedTuple):
    """Ticks of CPU that a process, told by its start as well, has used."""

    start_ticks: int
    ticks: int


class NeighbourSource:
    """Finds processes that used `busy_cores` or more since the look before. `engines` are the processes that are none."""

    name = "neighbours"

    def __init__(
        self, procfs: Procfs, engines: Callable[[], Collection[int]], period_s: float = PERIOD_S, busy_cores: float = BUSY_CORES
    ) -> None:
        self.period_s = period_s
        self._procfs = procfs
        self._busy_cores = busy_cores
        self._engines = engines
        self._used: dict[int, _Used] = {}
        self._looked: tuple[float, float] | None = None
        self._busy: dict[int, Neighbour] = {}

    def busy(self) -> tuple[Neighbour, ...]:
        """Those that were busy at the last look, the busiest first."""
        return tuple(sorted(self._busy.values(), key=lambda each: -each.cpu_cores))

    async def collect(self, now_s: float) -> Batch:
        """Looks at all processes, in a thread. Raises SourceError where /proc cannot be read; a process that may not be is left
        out."""
        engines = frozenset(self._engines())
        try:
            await asyncio.to_thread(self._look, engines, now_s)
        except (OSError, ValueError) as error:
            raise SourceError(f"/proc cannot be read: {error}") from error
        return Batch(self.name, now_s)

    async def close(self) -> None:
        """Holds nothing."""

    def _look(self, engines: Collection[int], now_s: float) -> None:
        uptime_s = self._procfs.uptime_s()
        if uptime_s is None:
            raise ValueError("there is no /proc/uptime")
        used, busy = {}, {}
        for tgid in self._procfs.pids():
            try:
                stat = self._procfs.stat(tgid)
            except (OSError, ValueError):  # another user's, where /proc hides them
                continue
            if stat is None:
                continue
            used[tgid] = _Used(stat.start_ticks, stat.user_ticks + stat.system_ticks)
            if tgid not in engines and (found := self._found(tgid, used[tgid], uptime_s, now_s)) is not None:
                busy[tgid] = found
        self._used, self._looked = used, (uptime_s, now_s)
        self._busy = dict(sorted(busy.items(), key=lambda item: -item[1].cpu_cores)[:MOST])

    def _found(self, tgid: int, now: _Used, uptime_s: float, now_s: float) -> Neighbour | None:
        if self._looked is None:
            return None
        hertz = self._procfs.ticks_per_second
        before = self._used.get(tgid)
        is_same = before is not None and before.start_ticks == now.start_ticks
        begin_s = self._looked[0] if is_same else max(now.start_ticks / hertz, self._looked[0])
        ticks = now.ticks - (before.ticks if before is not None and is_same else 0)
        cores = ticks / hertz / max(uptime_s - begin_s, 1.0)
        if cores < self._busy_cores:
            return None
        known = self._busy.get(tgid) if is_same else None
        command = program_name(self._procfs.command(tgid)) if known is None else known.command
        return Neighbour(tgid, command, cores, now_s - (uptime_s - begin_s) if known is None else known.since_s)
