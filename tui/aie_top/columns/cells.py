"""What the cells of all tables share: when a share is worth a look, how a number and a meter are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from aie_top import charts
from aie_top import format as fmt
from aie_top.rows import DriftRow, EngineRow, GpuProcessRow, GpuRow, HostRow, LockRow, MemoryRow
from aie_top.table import Column
from aie_top.text import Span, Tone, fit

NAME_MOST: Final = 32
AnyRow = TypeVar("AnyRow", EngineRow, MemoryRow, HostRow, GpuRow, GpuProcessRow, LockRow, DriftRow)
OneRow = EngineRow | MemoryRow | HostRow | GpuRow | GpuProcessRow | LockRow | DriftRow

# From where a share of something finite is worth a look, and from where it is trouble. Nothing else is judged: findings do that.
Levels = tuple[float, float]
FULL: Final[Levels] = (0.85, 0.95)
STEAL: Final[Levels] = (0.02, 0.10)
STALLED: Final[Levels] = (0.10, 0.40)
# Engines fill a GPU on purpose, mostly to 90 or 95 %.
GPU_FULL: Final[Levels] = (0.97, 0.995)


def tone_for(ratio: float | None, levels: Levels) -> Tone:
    if ratio is None:
        return "dim"
    return "bad" if ratio >= levels[1] else "warn" if ratio >= levels[0] else "normal"


def number_spans(
    value: float | None,
    text: Callable[[float | None], str],
    row: OneRow,
    width: int,
    levels: Levels | None = None,
) -> tuple[Span, ...]:
    """A number at the right of its column. Old data and what is not known are dim, what is beyond a level stands out."""
    written = text(value)
    if row.stale_s is not None or written == fmt.UNKNOWN:
        tone: Tone = "dim"
    else:
        tone = tone_for(value, levels) if levels is not None else "normal"
    return (Span(fit(written, width, right=True), tone),)


def bar_column(
    key: str, priority: int, ratio: Callable[[AnyRow], float | None], levels: Levels | None, width: int = 6, most: int = 14
) -> Column[AnyRow]:
    """A bar to stand before the column with the percentage, where there is room for one. It has that column's title."""

    def spans(row: AnyRow, width: int) -> tuple[Span, ...]:
        value = ratio(row)
        filled, empty = charts.bar(value, width)
        tone: Tone = tone_for(value, levels) if levels is not None else "normal"
        dimmed: Tone = "dim" if row.stale_s is not None else "bar" if tone == "normal" else tone
        return tuple(span for span in (Span(filled, dimmed), Span(empty, "track")) if span.text)

    return Column(key=key, title="", width=width, most=most, priority=priority, grow="room", spans=spans)


def name_spans(name: str, row: OneRow, width: int) -> tuple[Span, ...]:
    return (Span(fit(name, width, middle=True), "dim" if row.stale_s is not None else "strong"),)


def history_spans(chart: str, row: OneRow) -> tuple[Span, ...]:
    return (Span(chart, "dim" if row.stale_s is not None else "bar"),)


def host_column(name: Callable[[AnyRow], str], priority: int) -> Column[AnyRow]:
    return Column(
        key="host",
        title="HOST",
        width=8,
        most=20,
        priority=priority,
        left=True,
        grow="content",
        spans=lambda row, width: (Span(fit(name(row), width, middle=True), "dim"),),
        sort_value=lambda row: name(row).casefold(),
        largest_first=False,
        about="host it runs on (with several agents)",
    )
