"""The table of waits: an engine's threads as one bar, and the number of each part. The titles are the legend of the bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aie_top import format as fmt
from aie_top.columns.cells import NAME_MOST, host_column, name_spans
from aie_top.coverage import not_seen
from aie_top.rows import EngineRow
from aie_top.table import Column
from aie_top.text import Span, Tone, fit
from aie_top.waits import PARTS, Part, are_probed, bar, level, top_of, total

_NAME: Final[Column[EngineRow]] = Column(
    key="name",
    title="WAITS",
    width=12,
    most=NAME_MOST,
    priority=1,
    left=True,
    grow="content",
    spans=lambda row, width: name_spans(row.engine.name, row, width),
    about="engine; numbers are threads, on average over the window",
)
_HOST: Final[Column[EngineRow]] = host_column(lambda row: row.host, 10)
# Most telling first: a lock, the GIL and a missing CPU are what slows an engine down and is not seen elsewhere.
_PRIORITIES: Final = {"lock": 3, "gil": 4, "run_queue": 5, "gpu_sync": 6, "page_fault": 7, "disk": 8, "running": 9}
_BAR_WIDTH: Final = 15
_BAR_MOST: Final = 80


def wait_columns(rows: Sequence[EngineRow], *, several_hosts: bool) -> list[Column[EngineRow]]:
    """All bars are drawn to one scale, so that they compare; it is the title of theirs."""
    top = top_of(total(row.engine.waits) for row in rows if row.engine.waits is not None)
    bars: Column[EngineRow] = Column(
        key="bar",
        title=f"0 TO {fmt.count(top)} THREADS",
        width=_BAR_WIDTH,
        most=_BAR_MOST,
        priority=2,
        left=True,
        grow="room",
        spans=lambda row, width: _bar(row, top, width),
    )
    return [_NAME, *((_HOST,) if several_hosts else ()), *PART_COLUMNS, bars]


def _bar(row: EngineRow, top: float, width: int) -> tuple[Span, ...]:
    waits = row.engine.waits
    if waits is None or not are_probed(waits):
        return (Span(fit(": ".join(filter(None, ("not seen", not_seen(row.engine)))), width), "dim"),)
    spans = bar(waits, top, width)
    return spans if row.stale_s is None else tuple(Span(text, "dim") for text, _ in spans)


def _part(part: Part) -> Column[EngineRow]:
    def spans(row: EngineRow, width: int) -> tuple[Span, ...]:
        value = level(row.engine.waits, part) if row.engine.waits is not None else None
        shown = value is not None and value >= 0.005 and row.stale_s is None
        tone: Tone = part.tone if shown else "dim"
        return (Span(fit(fmt.rate(value), width, right=True), tone),)

    return Column(
        key=part.field, title=part.title, width=fmt.RATE_WIDTH, priority=_PRIORITIES[part.field], spans=spans, about=part.about
    )


PART_COLUMNS: Final[tuple[Column[EngineRow], ...]] = tuple(map(_part, PARTS))
WAIT_COLUMNS: Final[tuple[Column[EngineRow], ...]] = (_NAME, *PART_COLUMNS)
"""For the help: those that are the same in every frame."""
