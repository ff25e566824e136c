"""The host table: one row a host, each of an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aie_telemetry.api import Host, Pressure
from aie_top import charts
from aie_top import format as fmt
from aie_top.columns.cells import FULL, NAME_MOST, STALLED, STEAL, Levels, bar_column, history_spans, name_spans, number_spans
from aie_top.rows import HostRow
from aie_top.table import Column
from aie_top.text import Span

_NO_PRESSURE: Final = Pressure()


def _host(
    key: str,
    title: str,
    width: int,
    priority: int,
    value: Callable[[Host], float | None],
    text: Callable[[float | None], str],
    about: str,
    levels: Levels | None = None,
) -> Column[HostRow]:
    return Column(
        key=key,
        title=title,
        width=width,
        priority=priority,
        spans=lambda row, room: number_spans(value(row.host) if row.host is not None else None, text, row, room, levels),
        about=about,
    )


def _bar(key: str, priority: int, value: Callable[[Host], float | None]) -> Column[HostRow]:
    return bar_column(key, priority, lambda row: value(row.host) if row.host is not None else None, FULL)


def _memory_ratio(host: Host) -> float | None:
    used = memory_used(host)
    return used / host.memory_total_bytes if used is not None and host.memory_total_bytes else None


def memory_used(host: Host) -> float | None:
    if host.memory_total_bytes is None or host.memory_available_bytes is None:
        return None
    return host.memory_total_bytes - host.memory_available_bytes


def _stalled(resource: str) -> Callable[[Host], float | None]:
    return lambda host: host.pressure.get(resource, _NO_PRESSURE).some_ratio


def _host_history(row: HostRow, width: int) -> tuple[Span, ...]:
    points = row.host.cpu_busy_history if row.host is not None else ()
    return history_spans(charts.sparkline(points, width, charts.Scale(0.0, 1.0)), row)


HOST_COLUMNS: Final[tuple[Column[HostRow], ...]] = (
    Column(
        key="host",
        title="HOSTS",
        width=12,
        most=NAME_MOST,
        priority=1,
        left=True,
        grow="content",
        spans=lambda row, width: name_spans(row.name, row, width),
        about="host",
    ),
    _bar("cpu_bar", 9, lambda h: h.cpu_busy_ratio),
    _host("cpu", "CPU", fmt.PERCENT_WIDTH, 2, lambda h: h.cpu_busy_ratio, fmt.percent, "share of all CPUs that was busy", FULL),
    _host(
        "steal", "STEAL", 5, 4, lambda h: h.cpu_steal_ratio, fmt.percent, "share taken by other machines on the same metal", STEAL
    ),
    _host("iowait", "IOWAIT", 6, 11, lambda h: h.cpu_iowait_ratio, fmt.percent, "share that waited for disks"),
    _host("load", "LOAD", 5, 6, lambda h: h.load1, fmt.rate, "tasks that run or want to, over a minute"),
    _host("cpus", "CPUS", 4, 14, lambda h: h.cpus, fmt.count, "CPUs"),
    _bar("memory_bar", 9, _memory_ratio),
    _host("memory", "MEM", fmt.PERCENT_WIDTH, 3, _memory_ratio, fmt.percent, "share of main memory that cannot be had", FULL),
    _host("used", "MEM USED", fmt.SIZE_WIDTH, 9, memory_used, fmt.size, "main memory in use"),
    _host("total", "MEM TOTAL", fmt.SIZE_WIDTH, 10, lambda h: h.memory_total_bytes, fmt.size, "main memory"),
    _host("swap", "SWAP", fmt.SIZE_WIDTH, 5, lambda h: h.swap_used_bytes, fmt.size, "swap in use"),
    _host("psi_cpu", "PSI CPU", 7, 7, _stalled("cpu"), fmt.percent, "share of time that some task stalled for a CPU", STALLED),
    _host("psi_memory", "PSI MEM", 7, 8, _stalled("memory"), fmt.percent, "the same, for memory", STALLED),
    _host("psi_io", "PSI IO", 6, 8, _stalled("io"), fmt.percent, "the same, for disks", STALLED),
    _host("faults", "MAJFLT/S", 8, 13, lambda h: h.major_faults_per_second, fmt.rate, "page faults that needed a disk, per second"),
    Column(
        key="history",
        title="HISTORY",
        width=12,
        most=60,
        priority=12,
        grow="room",
        left=True,
        spans=_host_history,
        about="CPU busy, one column a second, 0 to 100 %",
    ),
)
