"""The memory table: what is physically held, against what the allocator knows of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aie_telemetry.api import Memory
from aie_top import charts
from aie_top import format as fmt
from aie_top.columns.cells import FULL, NAME_MOST, Levels, bar_column, history_spans, host_column, name_spans, number_spans
from aie_top.rows import MemoryRow
from aie_top.table import Column
from aie_top.text import Span, fit


def _memory(
    key: str,
    title: str,
    width: int,
    priority: int,
    value: Callable[[Memory], float | None],
    text: Callable[[float | None], str],
    about: str,
    levels: Levels | None = None,
) -> Column[MemoryRow]:
    return Column(
        key=key,
        title=title,
        width=width,
        priority=priority,
        spans=lambda row, room: number_spans(value(row.memory), text, row, room, levels),
        about=about,
    )


def _limit_ratio(memory: Memory) -> float | None:
    if memory.physical_bytes is None or not memory.limit_bytes:
        return None
    return memory.physical_bytes / memory.limit_bytes


def _memory_history(row: MemoryRow, width: int) -> tuple[Span, ...]:
    points = row.memory.physical_history
    return history_spans(charts.sparkline(points, width, charts.around(points[-width:])), row)


MEMORY_COLUMNS: Final[tuple[Column[MemoryRow], ...]] = (
    Column(
        key="engine",
        title="MEMORY",
        width=12,
        most=NAME_MOST,
        priority=1,
        left=True,
        grow="content",
        spans=lambda row, width: name_spans(row.memory.engine, row, width),
        about="engine",
    ),
    host_column(lambda row: row.host, 7),
    Column(
        key="device",
        title="DEVICE",
        width=6,
        most=12,
        priority=4,
        left=True,
        grow="content",
        spans=lambda row, width: (Span(fit(row.memory.device, width, middle=True), "dim"),),
        about="device; cpu is main memory",
    ),
    _memory(
        "physical",
        "PHYSICAL",
        fmt.SIZE_WIDTH,
        2,
        lambda m: m.physical_bytes,
        fmt.size,
        "what the device or the kernel says it holds",
    ),
    _memory(
        "reserved", "RESERVED", fmt.SIZE_WIDTH, 5, lambda m: m.allocator_reserved_bytes, fmt.size, "what its allocator has taken"
    ),
    _memory(
        "allocated",
        "ALLOCATED",
        fmt.SIZE_WIDTH,
        6,
        lambda m: m.allocator_allocated_bytes,
        fmt.size,
        "what its allocator has given out",
    ),
    _memory(
        "gap", "GAP", fmt.SIZE_WIDTH, 3, lambda m: m.unaccounted_bytes, fmt.size, "physical that the allocator does not know of"
    ),
    _memory("swap", "SWAP", fmt.SIZE_WIDTH, 10, lambda m: m.swap_bytes, fmt.size, "swapped out"),
    _memory("limit", "LIMIT", fmt.SIZE_WIDTH, 9, lambda m: m.limit_bytes, fmt.size, "what it may hold at most"),
    bar_column("used_bar", 11, lambda row: _limit_ratio(row.memory), FULL),
    _memory("used", "USED", fmt.PERCENT_WIDTH, 8, _limit_ratio, fmt.percent, "physical as a share of the limit", FULL),
    Column(
        key="history",
        title="HISTORY",
        width=12,
        most=60,
        priority=8,
        grow="room",
        left=True,
        spans=_memory_history,
        about="physical, one column a second, between its lowest and highest",
    ),
)
