"""The host: CPU time, memory, swap, pressure, load. Everything from /proc, nothing of it per process."""

from __future__ import annotations

from aie_agent.samples import Batch, Point, Tags
from aie_agent.sources import procfs_text as text
from aie_agent.sources.base import SourceError
from aie_agent.sources.procfs import Procfs
from aie_telemetry.catalogue import Kind

_RESOURCES = ("cpu", "memory", "io")

# /proc/vmstat -> metric.
_VMSTAT = {
    "pswpin": "aie_host_swap_in_pages_total",
    "pswpout": "aie_host_swap_out_pages_total",
    "pgmajfault": "aie_host_major_faults_total",
    "oom_kill": "aie_host_oom_kills_total",
}

# proc(5): idle and iowait can fall by a few ticks. A counter that falls reads as a restart, and its whole value as a rise.
_JITTER_S = 5.0


class HostSource:
    """`aie_host_*`. A file that this kernel does not have makes its metrics absent; without /proc/stat there is no source."""

    name = "host"

    def __init__(self, procfs: Procfs, period_s: float = 1.0) -> None:
        self.period_s = period_s
        self._procfs = procfs
        self._cpu_seconds: dict[str, float] = {}

    async def collect(self, now_s: float) -> Batch:
        """Raises SourceError for what cannot be read, with everything else in its batch.

        Not in a thread: the kernel answers these files at once, and to wake a thread takes longer than to read them.
        """
        points, problems = self._points()
        batch = Batch(self.name, now_s, points)
        if problems:
            raise SourceError("; ".join(problems), batch)
        return batch

    async def close(self) -> None:
        """Holds nothing."""

    def _points(self) -> tuple[list[Point], list[str]]:
        points: list[Point] = []
        problems: list[str] = []
        for part in (self._cpu, self._memory, self._vmstat, self._pressure, self._info):
            try:
                points += part()
            except SourceError as error:
                problems.append(str(error))
            except (OSError, ValueError) as error:
                problems.append(f"/proc cannot be read: {error}")
        return points, problems

    def _cpu(self) -> list[Point]:
        times = self._procfs.cpu_times()
        if times is None:
            raise SourceError("there is no /proc/stat: is /proc mounted?")
        points = [_gauge("aie_host_cpus", times.online)] if times.online else []
        for mode, ticks in times.ticks.items():
            seconds = ticks / self._procfs.ticks_per_second
            last = self._cpu_seconds.get(mode, 0.0)
            if not last - _JITTER_S < seconds < last:
                self._cpu_seconds[mode] = seconds
            points.append(_counter("aie_host_cpu_seconds_total", self._cpu_seconds[mode], (("mode", mode),)))
        load = self._procfs.read("loadavg")
        return points if load is None else [*points, _gauge("aie_host_load1", text.load1(load))]

    def _memory(self) -> list[Point]:
        content = self._procfs.read("meminfo")
        found = {} if content is None else text.meminfo(content, ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree"))
        values = {
            "aie_host_memory_total_bytes": found.get("MemTotal"),
            "aie_host_memory_available_bytes": found.get("MemAvailable"),
            "aie_host_swap_total_bytes": found.get("SwapTotal"),
        }
        if "SwapTotal" in found and "SwapFree" in found:
            values["aie_host_swap_used_bytes"] = found["SwapTotal"] - found["SwapFree"]
        return [_gauge(name, value) for name, value in values.items() if value is not None]

    def _vmstat(self) -> list[Point]:
        content = self._procfs.read("vmstat")
        found = {} if content is None else text.vmstat(content, tuple(_VMSTAT))
        return [_counter(_VMSTAT[name], value) for name, value in found.items()]

    def _pressure(self) -> list[Point]:
        points = []
        for resource in _RESOURCES:
            content = self._procfs.read(f"pressure/{resource}")
            for kind, total_us in text.pressure(content or b"").items():
                tags = (("kind", kind), ("resource", resource))
                points.append(_counter("aie_host_pressure_seconds_total", total_us / 1e6, tags))
        return points

    def _info(self) -> list[Point]:
        hostname = self._procfs.read("sys/kernel/hostname")
        kernel = self._procfs.read("sys/kernel/osrelease")
        if hostname is None or kernel is None:
            return []
        tags = (("hostname", _line(hostname)), ("kernel", _line(kernel)))
        return [_gauge("aie_host_info", 1.0, tags)]


def _line(content: bytes) -> str:
    return content.decode("utf-8", "replace").strip()


def _gauge(name: str, value: float, tags: Tags = ()) -> Point:
    return Point(name, Kind.GAUGE, tags, float(value))


def _counter(name: str, value: float, tags: Tags = ()) -> Point:
    return Point(name, Kind.COUNTER, tags, float(value))
