"""The only widget: shows lines, and redraws of them only the cells that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import ClassVar, Final

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from aie_top.text import Line, cell_width
from aie_top.themes import Look

_EMPTY: Final = Line(())


class LinesView(Widget):
    """A DataTable would lay itself out anew with every change; here a change costs the cells it touches."""

    DEFAULT_CSS: ClassVar[str] = "LinesView { width: 1fr; height: 1; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._look = look
        self._styles = look.styles()
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        regions = list(changed_regions(self._lines, lines, max(self.size.width, 1)))
        self._lines = lines
        if regions:
            self.refresh(*regions)

    def wear(self, look: Look) -> None:
        self._look = look
        self._styles = look.styles()
        self.refresh()

    def give_height(self, height: int, gap: int) -> None:
        """Sets height and the blank lines above; costs a layout, so only when they differ."""
        if self.display != (height > 0):
            self.display = height > 0
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height
        if self.styles.margin.top != gap:
            self.styles.margin = (gap, 0, 0, 0)

    def render_line(self, y: int) -> Strip:
        spans, fill = self._lines[y] if y < len(self._lines) else _EMPTY
        styles = self._styles[fill]
        strip = Strip([Segment(text, styles[tone]) for text, tone in spans if text])
        return strip.adjust_cell_length(self.size.width, self._look.fills[fill])


def changed_regions(before: Sequence[Line], now: Sequence[Line], width: int) -> Iterator[Region]:
    for y, (old, new) in enumerate(zip_longest(before, now, fillvalue=_EMPTY)):
        if old != new:
            first, last = (0, width) if old.fill != new.fill else _changed_cells(old, new, width)
            yield Region(first, y, max(min(last, width) - first, 1), 1)


def _changed_cells(old: Line, new: Line, width: int) -> tuple[int, int]:
    """From the first changed span to the end of the last one; spans that differ in width end the comparison from the right."""
    first = last = -1
    at = 0
    for before, now in zip(old.spans, new.spans, strict=False):
        taken = cell_width(now.text)
        if before != now:
            first = at if first < 0 else first
            if cell_width(before.text) != taken:
                return first, width
            last = at + taken
        at += taken
    if len(old.spans) != len(new.spans):
        return (at if first < 0 else first), width
    return first, last
