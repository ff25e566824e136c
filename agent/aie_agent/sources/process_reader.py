"""Reads single processes again and again: what they use now, and what they did since the last time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aie_agent.namesakes import ProcessId
from aie_agent.sources import procfs_text as text
from aie_agent.sources.kept_files import MOST_KEPT, KeptRecords
from aie_agent.sources.monotonic import MonotonicSum
from aie_agent.sources.procfs import Procfs, TaskTimes

TASKS_PER_CYCLE: Final = 128
"""Most threads whose own files are read in one cycle (about 12 us each). Beyond it processes take turns: their run-queue time and
context switches are then some seconds old, and never lost."""

_KEPT_S: Final = 10.0
_ENDED_KEPT: Final = 16


class ProcessReading(NamedTuple):
    """One process at one time. Sums over its threads are None until they have been read, and hold what ended threads counted.
    `state_since_s` is since when each reading found its main thread in the state of now."""

    process: ProcessId
    command: str
    start_time_s: float
    newborn: bool
    stat: text.ProcessStat
    memory: text.ProcessMemory
    cpu_cores: float | None
    state_since_s: float
    run_queue_s: float | None
    voluntary_switches: float | None
    involuntary_switches: float | None
    cgroups: text.CgroupPaths | None
    cpus_allowed: frozenset[int] | None = None
    arguments: tuple[str, ...] = ()


@dataclass(slots=True)
class _Known:
    """What is remembered of a process."""

    start_time_s: float
    newborn: bool
    stat_text: bytes = b""
    status: bytes = b""
    use: tuple[text.ProcessStat, text.ProcessMemory] | None = None
    is_described: bool = False
    command: str = ""
    arguments: tuple[str, ...] = ()
    state: str = ""
    state_since_s: float = 0.0
    cpu_ticks: int | None = None
    tasks_read_s: float = float("-inf")
    tasks: Mapping[int, TaskTimes] = field(default_factory=dict)
    run_queue: MonotonicSum[int] | None = None
    voluntary: MonotonicSum[int] = field(default_factory=MonotonicSum)
    involuntary: MonotonicSum[int] = field(default_factory=MonotonicSum)
    cgroups: text.CgroupPaths | None = None
    cpus_allowed: frozenset[int] | None = None
    seldom_read_s: float = float("-inf")


class ProcessReader:
    """Reads a set of processes once a cycle. Times are those of /proc/uptime, so that a clock that jumps disturbs nothing."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._kept = KeptRecords(MOST_KEPT if procfs.is_kernels else 0)
        self._reading_lock = threading.Lock()
        self._known: dict[ProcessId, _Known] = {}
        self._last_uptime_s: float | None = None

    def close(self) -> None:
        """Closes the files that it keeps open, once nothing is read any more."""
        with self._reading_lock:
            self._kept.only(())

    def read(self, processes: list[ProcessId], uptime_s: float, now_s: float) -> tuple[list[ProcessReading], dict[ProcessId, str]]:
        """All of `processes` that still live and can be read, and for each where something may not be read, what."""
        with self._reading_lock:
            return self._read(processes, uptime_s, now_s)

    def _read(self, processes: list[ProcessId], uptime_s: float, now_s: float) -> tuple[list[ProcessReading], dict[ProcessId, str]]:
        stats: dict[ProcessId, text.ProcessStat] = {}
        memories: dict[ProcessId, text.ProcessMemory] = {}
        refusals: dict[ProcessId, str] = {}
        for process in processes:
            try:
                found = self._look(process, uptime_s, now_s)
            except (OSError, ValueError) as error:
                refusals[process] = f"process {process.tgid} cannot be read: {error}"
                continue
            if found is None:
                continue
            stats[process], memories[process] = found
            try:
                self._describe(process, uptime_s)
            except (OSError, ValueError) as error:
                refusals[process] = f"what process {process.tgid} runs, and in which control group, cannot be read: {error}"
        self._known = {process: self._known[process] for process in stats}
        self._kept.only({process.tgid for process in stats})
        refusals |= self._read_tasks(stats, uptime_s)
        ahead_s = now_s - uptime_s
        readings = [self._reading(process, stats[process], memories[process], uptime_s, ahead_s) for process in stats]
        self._last_uptime_s = uptime_s
        return readings, refusals

    def _look(self, process: ProcessId, uptime_s: float, now_s: float) -> tuple[text.ProcessStat, text.ProcessMemory] | None:
        """What a process uses now; None when it is gone. Its status, the dear file, is read where its stat is another than at the
        last look (memory does not change without faults and sizes that stand there), and every 10 s."""
        content = self._procfs.stat_text(process.tgid, functools.partial(self._kept.read, process.tgid))
        if content is None:
            return None
        known = self._known.get(process)
        if known is not None and known.use is not None and content == known.stat_text and not _is_due(known, uptime_s):
            return known.use
        stat = text.process_stat(content)
        if stat.ended or stat.start_ticks != process.start_ticks:
            return None
        status = self._procfs.status_text(process.tgid)
        if status is None:
            return None
        if known is None:
            started_s = process.start_ticks / self._procfs.ticks_per_second
            newborn = self._last_uptime_s is not None and started_s >= self._last_uptime_s
            known = self._known[process] = _Known(now_s - uptime_s + started_s, newborn)
        known.stat_text, known.status = content, status
        known.use = stat, text.process_memory(status)
        return known.use

    def _describe(self, process: ProcessId, uptime_s: float) -> None:
        """Reads what seldom changes: the command and its arguments once, control groups and the CPUs that it may use every 10 s."""
        known = self._known[process]
        if not known.is_described:
            known.is_described = True
            known.command = self._procfs.command(process.tgid)
            known.arguments = self._procfs.arguments(process.tgid)
        if _is_due(known, uptime_s):
            known.seldom_read_s = uptime_s
            known.cgroups = self._procfs.cgroups(process.tgid)
            known.cpus_allowed = text.cpus_allowed(known.status)

    def _read_tasks(self, stats: dict[ProcessId, text.ProcessStat], uptime_s: float) -> dict[ProcessId, str]:
        """Reads the threads of those processes that have waited longest for it."""
        budget = TASKS_PER_CYCLE
        refusals = {}
        for process in sorted(stats, key=lambda process: self._known[process].tasks_read_s):
            if budget < min(stats[process].threads, TASKS_PER_CYCLE):
                break
            budget -= stats[process].threads
            known = self._known[process]
            known.tasks_read_s = uptime_s
            try:
                self._add_tasks(known, process.tgid)
            except (OSError, ValueError) as error:
                refusals[process] = f"threads of process {process.tgid} cannot be read: {error}"
        return refusals

    def _add_tasks(self, known: _Known, tgid: int) -> None:
        tasks = self._procfs.tasks(tgid, known.tasks, functools.partial(self._kept.read, tgid))
        if self._kept.count(tgid) > len(tasks) + _ENDED_KEPT:  # of threads that ended
            self._kept.give_up(tgid)
        if not tasks or tasks == known.tasks:
            return  # the process ended meanwhile, or none of its threads has run
        known.tasks = tasks
        known.voluntary.update({tid: task.switches.voluntary for tid, task in tasks.items()}, tasks)
        known.involuntary.update({tid: task.switches.involuntary for tid, task in tasks.items()}, tasks)
        waited_ns = {tid: float(task.run_queue_ns) for tid, task in tasks.items() if task.run_queue_ns is not None}
        if waited_ns:
            known.run_queue = known.run_queue or MonotonicSum[int]()
            known.run_queue.update(waited_ns, waited_ns)

    def _reading(
        self, process: ProcessId, stat: text.ProcessStat, memory: text.ProcessMemory, uptime_s: float, ahead_s: float
    ) -> ProcessReading:
        known = self._known[process]
        cpu_ticks = stat.user_ticks + stat.system_ticks
        cpu_cores = None
        if known.cpu_ticks is not None and self._last_uptime_s is not None and uptime_s > self._last_uptime_s:
            elapsed_ticks = (uptime_s - self._last_uptime_s) * self._procfs.ticks_per_second
            cpu_cores = max(cpu_ticks - known.cpu_ticks, 0) / elapsed_ticks
        known.cpu_ticks = cpu_ticks
        if stat.state != known.state:
            known.state, known.state_since_s = stat.state, uptime_s
        switches_known = known.voluntary.started
        return ProcessReading(
            process=process,
            command=known.command,
            start_time_s=known.start_time_s,
            newborn=known.newborn,
            stat=stat,
            memory=memory,
            cpu_cores=cpu_cores,
            state_since_s=known.state_since_s + ahead_s,
            run_queue_s=None if known.run_queue is None else known.run_queue.total / 1e9,
            voluntary_switches=known.voluntary.total if switches_known else None,
            involuntary_switches=known.involuntary.total if switches_known else None,
            cgroups=known.cgroups,
            cpus_allowed=known.cpus_allowed,
            arguments=known.arguments,
        )


def _is_due(known: _Known, uptime_s: float) -> bool:
    """Whether what seldom changes is to be read again."""
    return uptime_s - known.seldom_read_s >= _KEPT_S
