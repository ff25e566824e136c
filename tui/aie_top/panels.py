"""The panels of the main screen, top to bottom: one row a panel. What a panel says is in views/."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from aie_top.rows import DriftRow, EngineRow, Frame, GpuProcessRow, GpuRow, HostRow, MemoryRow, ProblemRow, View
from aie_top.text import Line
from aie_top.views.drift import drift_lines
from aie_top.views.gpu_page import GpuPage, gpu_page
from aie_top.views.gpus import gpu_lines, gpu_rows_by_line, process_lines, process_rows_by_line
from aie_top.views.pages import engine_page, host_page, problem_page
from aie_top.views.problems import problem_lines
from aie_top.views.tables import Place, engine_lines, host_lines, memory_lines, rows_by_line
from aie_top.views.waits import wait_lines

# A page is built anew from every frame: lines for a frame and a width.
Page = Callable[[Frame, int], list[Line]]


class Panel(NamedTuple):
    """`rows` are what the cursor moves over; `key` tells one from the others in the next frame; `page` is all about one.

    `on_line` says which row stands on which line (None: no row), for the mouse.
    """

    name: str
    lines: Callable[[Frame, View, Place], list[Line]]
    rows: Callable[[Frame], Sequence[Any]]
    key: Callable[[Any], Hashable]
    page: Callable[[Any], Page]
    on_line: Callable[[Frame, Place], Sequence[int | None]] = lambda _frame, _place: ()


def _problem_page(row: ProblemRow) -> Page:
    return lambda _frame, width: problem_page(row, width)


def _engine_page(row: EngineRow) -> Page:
    return lambda frame, width: engine_page(frame, row.key, width)


def _memory_page(row: MemoryRow) -> Page:
    return lambda frame, width: engine_page(frame, (row.agent, row.memory.engine), width)


def _drift_page(row: DriftRow) -> Page:
    return lambda frame, width: engine_page(frame, (row.agent, row.drift.engine), width)


def _host_page(row: HostRow) -> Page:
    return lambda frame, width: host_page(next((now for now in frame.hosts if now.agent == row.agent), row), width)


def _gpu_page(row: GpuRow) -> Page:
    return GpuPage(row.key)


def _process_page(row: GpuProcessRow) -> Page:
    """Of its engine; where it has none, of the first GPU that it holds."""
    engine, index = row.process.engine, row.gpus[0]
    if engine is not None:
        return lambda frame, width: engine_page(frame, (row.agent, engine), width)

    def page(frame: Frame, width: int) -> list[Line]:
        key = next((one.key for one in frame.gpus if (one.agent, one.gpu.index) == (row.agent, index)), (row.agent, str(index)))
        return gpu_page(frame, key, width)

    return page


PANELS: Final[tuple[Panel, ...]] = (
    Panel("problems", problem_lines, lambda frame: frame.problems, lambda row: (row.host, row.subject, row.summary), _problem_page),
    Panel("gpus", gpu_lines, lambda frame: frame.gpus, lambda row: row.key, _gpu_page, gpu_rows_by_line),
    Panel(
        "engines",
        engine_lines,
        lambda frame: frame.engines,
        lambda row: row.key,
        _engine_page,
        lambda frame, place: rows_by_line(len(frame.engines), place),
    ),
    Panel(
        "waits",
        wait_lines,
        lambda frame: frame.waiting,
        lambda row: row.key,
        _engine_page,
        lambda frame, place: rows_by_line(len(frame.waiting), place) if frame.waiting else (),
    ),
    Panel(
        "gpu_processes",
        process_lines,
        lambda frame: frame.gpu_processes,
        lambda row: row.key,
        _process_page,
        process_rows_by_line,
    ),
    Panel(
        "memory",
        memory_lines,
        lambda frame: frame.memory,
        lambda row: (row.agent, row.memory.engine, row.memory.device),
        _memory_page,
        lambda frame, place: rows_by_line(len(frame.memory), place),
    ),
    Panel(
        "drift",
        drift_lines,
        lambda frame: frame.compared,
        lambda row: row.key,
        _drift_page,
        lambda frame, place: rows_by_line(len(frame.compared), place) if frame.compared else (),
    ),
    Panel(
        "hosts",
        host_lines,
        lambda frame: frame.hosts,
        lambda row: row.agent,
        _host_page,
        lambda frame, place: rows_by_line(len(frame.hosts), place),
    ),
)
