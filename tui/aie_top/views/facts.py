"""What the pages are made of: titles, and names with their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aie_top import format as fmt
from aie_top.text import Line, Span, Tone, cell_width, fit, line, wrap

LABEL_WIDTH: Final = 16
_TWO_FROM: Final = 76


def facts(pairs: Iterable[tuple[str, str | None]], width: int) -> list[Line]:
    """Name and value; what is not there at all is left out. Two on a line where both are short enough."""
    half = width // 2 if width >= _TWO_FROM else 0
    lines: list[Line] = []
    waiting: Line | None = None
    for name, value in pairs:
        if not value:
            continue
        short = cell_width(value) <= half - LABEL_WIDTH - 4
        label = Span(fit(name, LABEL_WIDTH), "dim")
        if short and waiting is not None:
            lines.append(Line((*waiting.spans, label, Span(value))))
            waiting = None
            continue
        lines += [waiting] if waiting is not None else []
        waiting = line("  ", label, Span(fit(value, half - LABEL_WIDTH - 2))) if short else None
        if not short:
            parts = wrap(value, max(width - LABEL_WIDTH - 3, 8))
            lines += [line("  ", label if at == 0 else " " * LABEL_WIDTH, Span(part)) for at, part in enumerate(parts)]
    return [*lines, waiting] if waiting is not None else lines


def title(text: str) -> Line:
    return line(" ", Span(text, "strong"), fill="title")


def pair(name: str, text: str, label_width: int, tone: Tone, width: int) -> list[Line]:
    """A name and what is said of it, on as many lines as that needs."""
    parts = wrap(text, max(width - label_width - 3, 8)) or [""]
    return [line("  ", Span(fit(name if at == 0 else "", label_width), tone), Span(part, "dim")) for at, part in enumerate(parts)]


def sentences(texts: Iterable[str], width: int, tone: Tone = "normal", indent: int = 2) -> list[Line]:
    """Each wrapped to the width."""
    return [line(" " * indent, Span(part, tone)) for text in texts for part in wrap(text, max(width - indent - 1, 8))]


def with_unit(number: str, unit: str) -> str:
    return number if number == fmt.UNKNOWN else f"{number} {unit}"
