"""The table of processes that hold a GPU: one row a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aie_top import format as fmt
from aie_top.columns.cells import host_column, number_spans
from aie_top.rows import GpuProcessRow
from aie_top.table import Column
from aie_top.text import Span, fit

_BRANCH: Final = "└ "


def _engine(row: GpuProcessRow, width: int) -> tuple[Span, ...]:
    one = row.process
    if one.orphan:
        return (Span(fit("▲ orphan", width), "warn"),)
    return (Span(fit(one.engine, width, middle=True), "normal"),) if one.engine else (Span(fit("no engine", width), "dim"),)


def _command(row: GpuProcessRow, width: int) -> tuple[Span, ...]:
    lead = "  " * (row.depth - 1) + _BRANCH if row.depth else ""
    return (Span(fit(f"{lead}{row.process.command or fmt.UNKNOWN}", width), "dim" if row.stale_s is not None else "normal"),)


def _gpus(row: GpuProcessRow, width: int) -> tuple[Span, ...]:
    text = fmt.numbers(row.gpus).replace(" ", "") + (" sim" if row.simulated else "")
    return (Span(fit(text, width), "normal"),)


def process_columns(rows: Sequence[GpuProcessRow], *, several_hosts: bool) -> list[Column[GpuProcessRow]]:
    """Those that say something here: no host where there is one, no pod outside of Kubernetes."""
    has = {"host": several_hosts, "pod": any(row.process.pod for row in rows)}
    return [column for column in GPU_PROCESS_COLUMNS if has.get(column.key, True)]


GPU_PROCESS_COLUMNS: Final[tuple[Column[GpuProcessRow], ...]] = (
    Column(
        key="pid",
        title="GPU PROC.",
        width=9,
        priority=1,
        spans=lambda row, width: (Span(fit(str(row.process.tgid), width, right=True), "strong"),),
        about="process id, as the host sees it",
    ),
    host_column(lambda row: row.host, 6),
    Column(
        key="gpus",
        title="GPU",
        width=7,
        most=16,
        priority=3,
        left=True,
        grow="content",
        spans=_gpus,
        about="all GPUs on which it holds a context; “sim” are simulated ones",
    ),
    Column(
        key="engine",
        title="ENGINE",
        width=12,
        most=28,
        priority=2,
        left=True,
        grow="content",
        spans=_engine,
        about="the engine it belongs to, or none; ▲ orphan: it is all that is left of one that is gone",
    ),
    Column(
        key="memory",
        title="MEMORY",
        width=fmt.SIZE_WIDTH,
        priority=4,
        spans=lambda row, width: number_spans(row.memory_bytes, fmt.size, row, width),
        about="GPU memory, of all its GPUs together",
    ),
    Column(
        key="sm",
        title="UTIL",
        width=fmt.PERCENT_WIDTH,
        priority=6,
        spans=lambda row, width: number_spans(row.sm_ratio, fmt.percent, row, width),
        about="share of time in which a kernel of it ran, mean over its GPUs",
    ),
    Column(
        key="kind",
        title="KIND",
        width=8,
        priority=9,
        left=True,
        spans=lambda row, width: (Span(fit(row.process.kind, width), "dim"),),
        about="compute, graphics, mps",
    ),
    Column(
        key="container",
        title="CONTAINER",
        width=12,
        priority=7,
        left=True,
        spans=lambda row, width: (Span(fit(row.process.container or fmt.UNKNOWN, width), "dim"),),
        about="beginning of its container's id",
    ),
    Column(
        key="pod",
        title="POD",
        width=13,
        most=36,
        priority=8,
        left=True,
        grow="room",
        spans=lambda row, width: (Span(fit(row.process.pod or fmt.UNKNOWN, width, middle=True), "dim"),),
        about="uid of its Kubernetes pod; shown where any process has one",
    ),
    Column(
        key="command",
        title="COMMAND",
        width=16,
        most=120,
        priority=5,
        left=True,
        grow="content",
        spans=_command,
        about="its command; children stand below their parents",
    ),
)
