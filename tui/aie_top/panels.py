"""The panels of the main screen, top to bottom: one row a panel. What a panel says is in views/."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from aie_top.rows import EngineRow, Frame, HostRow, MemoryRow, ProblemRow, View
from aie_top.text import Line
from aie_top.views.pages import engine_page, host_page, problem_page
from aie_top.views.problems import problem_lines
from aie_top.views.tables import Place, engine_lines, host_lines, memory_lines

# A page is built anew from every frame: lines for a frame and a width.
Page = Callable[[Frame, int], list[Line]]


class Panel(NamedTuple):
    """`rows` are what the cursor moves over; `key` tells one from the others in the next frame; `page` is all about one."""

    name: str
    lines: Callable[[Frame, View, Place], list[Line]]
    rows: Callable[[Frame], Sequence[Any]]
    key: Callable[[Any], Hashable]
    page: Callable[[Any], Page]


def _problem_page(row: ProblemRow) -> Page:
    return lambda _frame, width: problem_page(row, width)


def _engine_page(row: EngineRow) -> Page:
    return lambda frame, width: engine_page(frame, row.key, width)


def _memory_page(row: MemoryRow) -> Page:
    return lambda frame, width: engine_page(frame, (row.agent, row.memory.engine), width)


def _host_page(row: HostRow) -> Page:
    return lambda frame, width: host_page(next((now for now in frame.hosts if now.agent == row.agent), row), width)


PANELS: Final[tuple[Panel, ...]] = (
    Panel("problems", problem_lines, lambda frame: frame.problems, lambda row: (row.host, row.subject, row.summary), _problem_page),
    Panel("engines", engine_lines, lambda frame: frame.engines, lambda row: row.key, _engine_page),
    Panel(
        "memory",
        memory_lines,
        lambda frame: frame.memory,
        lambda row: (row.agent, row.memory.engine, row.memory.device),
        _memory_page,
    ),
    Panel("hosts", host_lines, lambda frame: frame.hosts, lambda row: row.agent, _host_page),
)
