"""Tables out of rows and columns: which columns fit a width, how wide each is, and the lines. Pure; columns.py has the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from aie_top.text import Line, Span, Tone, cell_width, fit

Row = TypeVar("Row")
SortValue = float | str | None


@dataclass(frozen=True, kw_only=True)
class Column(Generic[Row]):
    """One column. `spans` formats a row into any width between `width` and `most`.

    `width` is what its widest value takes, so that nothing moves when values change. `grow` says what it does with room to
    spare: "content" up to its longest value (and down to it), "room" up to `most`. The lower `priority`, the narrower the
    window in which it is still shown.
    """

    key: str
    title: str
    width: int
    priority: int
    spans: Callable[[Row, int], tuple[Span, ...]]
    sort_value: Callable[[Row], SortValue] | None = None
    largest_first: bool = True
    left: bool = False
    grow: Literal["", "content", "room"] = ""
    most: int = 0
    about: str = ""


class Placed(NamedTuple, Generic[Row]):
    column: Column[Row]
    width: int


class Layout(NamedTuple, Generic[Row]):
    placed: tuple[Placed[Row], ...]
    gap: int


MARGIN = 1  # for the cursor's mark


def choose(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Layout[Row]:
    """The columns that fit, most important first, in the table's order. What is left goes to those that grow, and to the gaps."""
    longest = {column.key: _longest(column, rows) for column in columns if column.grow == "content"}
    least = {column.key: min(column.width, longest.get(column.key, column.width)) for column in columns}
    room = width - MARGIN
    kept: set[str] = set()
    for column in sorted(columns, key=lambda column: column.priority):
        needed = least[column.key] + (1 if kept else 0)
        if needed > room:
            break  # a narrower but less important one in its place would only puzzle
        kept.add(column.key)
        room -= needed
    shown = [column for column in columns if column.key in kept]
    widths = {column.key: least[column.key] for column in shown}
    room = _grow_content(shown, widths, longest, room)
    gap = 2 if shown and room >= len(shown) - 1 + 8 else 1
    room -= (gap - 1) * (len(shown) - 1)
    _grow_room(shown, widths, room)
    return Layout(tuple(Placed(column, widths[column.key]) for column in shown), gap)


def header(layout: Layout[Row], *, focused: bool, marked: str = "", descending: bool = True, prefix: str = "") -> Line:
    """The titles, which also head the panel. `marked` is the column that rows are sorted by; its arrow stands in the gap beside it.

    `prefix` goes before the first title.
    """
    spans: list[Span] = [Span("▸" if focused else " ", "accent")]
    arrow = "▾" if descending else "▴"
    owed = ""
    for position, (column, width) in enumerate(layout.placed):
        is_marked = column.key == marked
        gap = owed.ljust(layout.gap) if position else ""
        if is_marked and not column.left:
            gap = gap[:-1] + arrow if gap else ""
        owed = arrow if is_marked and column.left else ""
        is_name = position == 0
        tone: Tone = "accent" if is_marked or (focused and is_name) else "strong" if is_name else "dim"
        spans.append(Span(gap, "accent"))
        spans.append(Span(fit((prefix if is_name else "") + column.title, width, right=not column.left), tone))
    spans.append(Span(owed, "accent"))
    return Line(tuple(span for span in spans if span.text), "title")


def body(layout: Layout[Row], row: Row, *, selected: bool = False) -> Line:
    spans: list[Span] = [Span("▸" if selected else " ", "accent")]
    for position, (column, width) in enumerate(layout.placed):
        if position:
            spans.append(Span(" " * layout.gap))
        spans.extend(column.spans(row, width))
    return Line(tuple(spans), "cursor" if selected else "")


def _longest(column: Column[Row], rows: Sequence[Row]) -> int:
    texts = ["".join(span.text for span in column.spans(row, column.most)).rstrip() for row in rows]
    return max([cell_width(column.title), *map(cell_width, texts)])


def _grow_content(shown: Sequence[Column[Row]], widths: dict[str, int], longest: dict[str, int], room: int) -> int:
    for column in shown:
        if column.grow == "content":
            extra = min(room, min(longest[column.key], column.most) - widths[column.key])
            widths[column.key] += max(extra, 0)
            room -= max(extra, 0)
    return room


def _grow_room(shown: Sequence[Column[Row]], widths: dict[str, int], room: int) -> None:
    growing = [column for column in shown if column.grow == "room"]
    for left, column in zip(range(len(growing), 0, -1), growing, strict=True):
        extra = max(min(room // left, column.most - widths[column.key]), 0)
        widths[column.key] += extra
        room -= extra
