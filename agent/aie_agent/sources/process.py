"""The processes of each engine, summed: memory, CPU time, waiting, control group; and whether the engine lives at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.identity import Engines
from aie_agent.namesakes import ProcessId
from aie_agent.samples import Batch, Point, Tags
from aie_agent.sources.base import SourceError
from aie_agent.sources.cgroup import Cgroups
from aie_agent.sources.monotonic import MonotonicSum
from aie_agent.sources.process_reader import ProcessReader, ProcessReading
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.procfs_text import CgroupPaths
from aie_telemetry.catalogue import Kind

_Series = tuple[str, Tags]  # a metric and its labels besides the engine

# A counter of the engine <- the same counter of each of its processes; None where the process does not have it.
_COUNTERS: Final[tuple[tuple[_Series, Callable[[ProcessReading, int], float | None]], ...]] = (
    (("aie_process_cpu_seconds_total", (("mode", "user"),)), lambda reading, hertz: reading.stat.user_ticks / hertz),
    (("aie_process_cpu_seconds_total", (("mode", "system"),)), lambda reading, hertz: reading.stat.system_ticks / hertz),
    (("aie_process_major_faults_total", ()), lambda reading, _: reading.stat.major_faults),
    (("aie_process_run_queue_seconds_total", ()), lambda reading, _: reading.run_queue_s),
    (("aie_process_context_switches_total", (("kind", "voluntary"),)), lambda reading, _: reading.voluntary_switches),
    (("aie_process_context_switches_total", (("kind", "involuntary"),)), lambda reading, _: reading.involuntary_switches),
)
# A gauge of the engine <- that of each of its processes. Shared memory is mostly one segment that all of them map, as workers do
# that were forked: what one of them has of it is there once, and the largest share is what is there at least.
_GAUGES: Final[tuple[tuple[str, Callable[[ProcessReading], int | None], Callable[[list[int]], int]], ...]] = (
    ("aie_process_threads", lambda reading: reading.stat.threads, sum),
    ("aie_process_resident_anon_bytes", lambda reading: reading.memory.resident_anon, sum),
    ("aie_process_resident_file_bytes", lambda reading: reading.memory.resident_file, sum),
    ("aie_process_resident_shmem_bytes", lambda reading: reading.memory.resident_shmem, max),
    ("aie_process_swap_bytes", lambda reading: reading.memory.swap, sum),
)


class ProcessRow(NamedTuple):
    """One process, for people: the command is cut, CPU is of the last period (None in the first), `state` and `cpus_allowed`
    its main thread's."""

    tgid: int
    start_time_s: float
    command: str
    resident_anon_bytes: int | None
    cpu_cores: float | None
    threads: int
    state: str
    state_since_s: float
    cgroups: CgroupPaths | None = None
    cpus_allowed: frozenset[int] | None = None
    arguments: tuple[str, ...] = ()


class _Engine(NamedTuple):
    name: str
    state: str
    processes: list[ProcessId]


class ProcessSource:
    """`aie_process_*`, `aie_engine_up` and, for a CPU, `aie_engine_memory_physical_bytes`.

    A process that ends while it is read is left out. One that may not be read is named in `note()` and left out too.
    """

    name = "process"

    def __init__(self, engines: Engines, procfs: Procfs, cgroup_root: Path = Path("/sys/fs/cgroup"), period_s: float = 1.0) -> None:
        self.period_s = period_s
        self._engines = engines
        self._procfs = procfs
        self._cgroups = Cgroups(cgroup_root)
        self._reader = ProcessReader(procfs)
        self._processes: dict[tuple[str, _Series], MonotonicSum[ProcessId]] = {}
        self._groups: dict[tuple[str, _Series], MonotonicSum[str]] = {}
        self._rows: dict[str, list[ProcessRow]] = {}
        self._notes: dict[str, str] = {}
        self._just_read: Set[ProcessId] = frozenset()

    def rows(self, engine: str) -> list[ProcessRow]:
        """The live processes of an engine as of the last collection, by tgid."""
        return self._rows.get(engine, [])

    def note(self, engine: str) -> str | None:
        """What could not be seen of an engine at the last collection, in one line."""
        return self._notes.get(engine)

    def just_read(self) -> Set[ProcessId]:
        """The processes that lived at the collection that ended since the last call, empty where none did."""
        read, self._just_read = self._just_read, frozenset()
        return read

    async def collect(self, now_s: float) -> Batch:
        """Reads the processes in a thread. Raises SourceError where there is no /proc."""
        engines = [_Engine(name, self._engines.state(name), self._engines.processes(name)) for name in self._engines.names()]
        return Batch(self.name, now_s, await asyncio.to_thread(self._read, engines, now_s))

    async def close(self) -> None:
        """Closes the files of /proc that are kept open."""
        await asyncio.to_thread(self._reader.close)

    def _read(self, engines: list[_Engine], now_s: float) -> list[Point]:
        uptime_s = self._procfs.uptime_s()
        if uptime_s is None:
            raise SourceError("there is no /proc/uptime: is /proc mounted?")
        everything = [process for engine in engines for process in engine.processes]
        readings, refusals = self._reader.read(everything, uptime_s, now_s)
        by_process = {reading.process: reading for reading in readings}
        points: list[Point] = []
        rows: dict[str, list[ProcessRow]] = {}
        notes: dict[str, str] = {}
        hidden = self._procfs.hides_processes()
        for engine in engines:
            live = [by_process[process] for process in engine.processes if process in by_process]
            unread = [refusals[process] for process in engine.processes if process in refusals]
            alive = sum(process in by_process or process in refusals for process in engine.processes)
            engine_points, problems = self._engine(engine, live, alive, now_s)
            points += engine_points
            rows[engine.name] = [_row(reading) for reading in live]
            problems += unread
            if hidden and not live:
                problems.append("processes of other users are hidden from the agent (/proc is mounted with hidepid)")
            if problems:
                notes[engine.name] = "; ".join(problems)
        self._rows, self._notes, self._just_read = rows, notes, frozenset(by_process)
        self._forget({engine.name for engine in engines})
        return points

    def _forget(self, engines: Set[str]) -> None:
        """Drops the totals of engines that nobody knows any more."""
        self._processes = {key: total for key, total in self._processes.items() if key[0] in engines}
        self._groups = {key: total for key, total in self._groups.items() if key[0] in engines}

    def _engine(self, engine: _Engine, live: list[ProcessReading], alive: int, now_s: float) -> tuple[list[Point], list[str]]:
        if engine.state == "unknown":
            return [], []
        tags = (("engine", engine.name),)
        points = [
            Point("aie_engine_up", Kind.GAUGE, tags, float(alive > 0)),
            Point("aie_process_instances", Kind.GAUGE, tags, float(alive)),
        ]
        for name, read, of_all in _GAUGES:
            values = [value for value in map(read, live) if value is not None]
            if values:
                points.append(Point(name, Kind.GAUGE, tags, float(of_all(values))))
                if name == "aie_process_resident_anon_bytes":
                    device = (("device", "cpu"), *tags)
                    points.append(Point("aie_engine_memory_physical_bytes", Kind.GAUGE, device, float(sum(values))))
        if live:  # to the second: what is computed anew from ticks since boot differs by less, and must not look like a start
            points.append(Point("aie_process_start_time_seconds", Kind.GAUGE, tags, _began_s(live)))
        points += self._counters(engine.name, live)
        cgroup_points, problems = self._cgroup(engine.name, live, now_s)
        return points + cgroup_points, problems

    def _counters(self, engine: str, live: list[ProcessReading]) -> list[Point]:
        hertz = self._procfs.ticks_per_second
        newborn = {reading.process for reading in live if reading.newborn}
        points = []
        for series, read in _COUNTERS:
            values = {reading.process: value for reading in live if (value := read(reading, hertz)) is not None}
            if values:
                total = self._processes.setdefault((engine, series), MonotonicSum()).update(values, newborn)
                points.append(_counter(engine, series, total))
        return points

    def _cgroup(self, engine: str, live: list[ProcessReading], now_s: float) -> tuple[list[Point], list[str]]:
        """Each control group once, however many of the engine's processes are in it."""
        throttling = {}
        memory = {}
        problems = []
        for paths in dict.fromkeys(reading.cgroups for reading in live if reading.cgroups is not None):
            try:
                if (throttled := self._cgroups.throttling(paths, now_s)) is not None:
                    throttling[throttled.group] = throttled
                if (use := self._cgroups.memory(paths, now_s)) is not None:
                    memory[use.group] = use
            except (OSError, ValueError) as error:
                problems.append(f"its control group cannot be read: {error}")
        points = []
        if throttling:
            for name, field in (
                ("aie_process_cgroup_throttled_seconds_total", "throttled_s"),
                ("aie_process_cgroup_throttled_periods_total", "throttled_periods"),
                ("aie_process_cgroup_periods_total", "periods"),
            ):
                values = {group: float(getattr(item, field)) for group, item in throttling.items()}
                total = self._groups.setdefault((engine, (name, ())), MonotonicSum()).update(values, ())
                points.append(_counter(engine, (name, ()), total))
        if memory:
            tags = (("engine", engine),)
            limits = [use.limit for use in memory.values() if use.limit is not None]
            used = float(sum(use.used for use in memory.values()))
            points.append(Point("aie_process_cgroup_memory_bytes", Kind.GAUGE, tags, used))
            if len(limits) == len(memory):  # one group without a limit, and together they have none
                points.append(Point("aie_process_cgroup_memory_limit_bytes", Kind.GAUGE, tags, float(sum(limits))))
            held = [use.held_ratio for use in memory.values() if use.held_ratio is not None]
            if held:  # the kernel kills in the group that is first at its limit
                points.append(Point("aie_process_cgroup_memory_held_ratio", Kind.GAUGE, tags, max(held)))
        return points, problems


def _began_s(live: list[ProcessReading]) -> float:
    return float(round(min(reading.start_time_s for reading in live)))


def _counter(engine: str, series: _Series, total: float) -> Point:
    name, labels = series
    return Point(name, Kind.COUNTER, (("engine", engine), *labels), total)


def _row(reading: ProcessReading) -> ProcessRow:
    return ProcessRow(
        tgid=reading.process.tgid,
        start_time_s=reading.start_time_s,
        command=reading.command,
        resident_anon_bytes=reading.memory.resident_anon,
        cpu_cores=reading.cpu_cores,
        threads=reading.stat.threads,
        state=reading.stat.state,
        state_since_s=reading.state_since_s,
        cgroups=reading.cgroups,
        cpus_allowed=reading.cpus_allowed,
        arguments=reading.arguments,
    )
