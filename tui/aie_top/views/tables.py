"""The tables, cut to the height they have, with the cursor always in sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aie_top.columns.engines import ENGINE_COLUMNS, by_key
from aie_top.columns.hosts import HOST_COLUMNS
from aie_top.columns.memory import MEMORY_COLUMNS
from aie_top.rows import Frame, View
from aie_top.table import Column, Row, body, choose, header
from aie_top.text import Line, Span, crop, line


class Place(NamedTuple):
    """Where a panel stands: its size, and which row the cursor is on (None: the panel has not the focus)."""

    width: int
    height: int
    cursor: int | None = None


def engine_lines(frame: Frame, view: View, place: Place) -> list[Line]:
    empty = f"no engine matches “{view.filter}” (esc clears)" if view.filter else _no_engine(frame)
    column = by_key(view.sort)
    shown = _with_host(ENGINE_COLUMNS, frame)
    return table_lines(shown, frame.engines, place, empty, marked=column.key, descending=column.largest_first != view.reverse)


def memory_lines(frame: Frame, _view: View, place: Place) -> list[Line]:
    return table_lines(_with_host(MEMORY_COLUMNS, frame), frame.memory, place, "no memory of an engine seen")


def host_lines(frame: Frame, _view: View, place: Place) -> list[Line]:
    return table_lines(HOST_COLUMNS, frame.hosts, place, "no host")


def _no_engine(frame: Frame) -> str:
    if not any(row.host is not None for row in frame.hosts):
        return "nothing heard from an agent yet"
    return "no engine seen yet: hooks announce theirs; others: aie-agent run --engine NAME=URL"


def _with_host(columns: Sequence[Column[Row]], frame: Frame) -> list[Column[Row]]:
    return [column for column in columns if column.key != "host" or frame.several_hosts]


def table_lines(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    place: Place,
    empty: str,
    *,
    marked: str = "",
    descending: bool = True,
) -> list[Line]:
    layout = choose(columns, rows, place.width)
    first, last = window(len(rows), place.height - 1, place.cursor or 0)
    hidden = f"{last - first}/{len(rows)} " if last - first < len(rows) else ""
    lines = [header(layout, focused=place.cursor is not None, marked=marked, descending=descending, prefix=hidden)]
    if not rows:
        lines.append(line("  ", Span(empty, "dim")))
    lines.extend(body(layout, rows[index], selected=index == place.cursor) for index in range(first, last))
    return [crop(one, place.width) for one in lines[: place.height]]


def rows_by_line(count: int, place: Place) -> list[int | None]:
    """Which row stands on which line of such a table; None: the title."""
    return [None, *range(*window(count, place.height - 1, place.cursor or 0))]


def window(count: int, height: int, cursor: int) -> tuple[int, int]:
    """Which rows [first, last) to show of `count` in `height` lines, so that the cursor is among them."""
    visible = max(min(count, height), 0)
    first = min(max(cursor - visible // 2, 0), count - visible)
    return first, first + visible
