"""Lines of text with a tone for each piece: what the pure views produce, and what both the widgets and the plain report print.

A tone says what a piece means (bad, dim, a bar), never a colour: themes.py has the colours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

Tone = Literal[
    "normal", "strong", "dim", "good", "info", "warn", "bad", "accent", "bar", "chart", "track", "key",
    # The parts of a bar of waits: none is good or bad, they are only told apart.
    "run", "queue", "lock", "gil", "disk", "fault", "sync",
]  # fmt: skip
Fill = Literal["", "title", "cursor"]

ELLIPSIS: Final = "…"

# What --ascii prints instead: one column for one column, so that nothing moves.
_ASCII: Final = str.maketrans(
    {
        "…": "~",
        "µ": "u",
        "·": ".",
        "×": "x",
        "−": "-",
        "─": "-",
        "│": "|",
        "└": "`",
        "°": "'",
        "“": '"',
        "”": '"',
        "‖": "=",
        "●": "o",
        "○": ".",
        "✓": "+",
        "✖": "X",
        "▲": "!",
        "▸": ">",
        "▴": "^",
        "▾": "v",
        **dict.fromkeys("█▉▊▋▌▍▎", "#"),
        "▏": ":",
        "░": ".",
        "▁": "_",
        "▂": "_",
        "▃": "-",
        "▄": "-",
        "▅": "=",
        "▆": "=",
        "▇": "#",
    }
)


# Whatever is not surely one column wide: one search is much cheaper than asking for each character of a chart.
_MAYBE_ODD: Final = re.compile("[^ -~\u00a0-\u02ff\u2010-\u2027\u2190-\u2195\u2200-\u22ff\u2500-\u25fc\u2713\u2716]")


class Span(NamedTuple):
    text: str
    tone: Tone = "normal"


class Line(NamedTuple):
    """One row of the screen. `fill` colours it to the right edge: a panel's title, or the row under the cursor."""

    spans: tuple[Span, ...]
    fill: Fill = ""

    def plain(self) -> str:
        return "".join(span.text for span in self.spans)


def line(*parts: Span | str, fill: Fill = "") -> Line:
    return Line(tuple(part if isinstance(part, Span) else Span(part) for part in parts), fill)


def cell_width(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones none."""
    if text.isascii() or _MAYBE_ODD.search(text) is None:
        return len(text)
    return sum(map(_character_width, text))


def fit(text: str, width: int, *, right: bool = False, middle: bool = False) -> str:
    """The text in exactly `width` columns: padded, or cut with an ellipsis.

    It is cut at the end, or with `middle` inside, since names often differ in their ends.
    """
    if width <= 0:
        return ""
    taken = cell_width(text)
    if taken > width:
        text = _cut_middle(text, width) if middle else _cut(text, width - 1) + ELLIPSIS
        taken = cell_width(text)
    if taken == width:
        return text
    padding = " " * (width - taken)
    return padding + text if right else text + padding


def wrap(text: str, width: int) -> list[str]:
    """Words in lines of at most `width` columns. A word longer than that is broken."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        while cell_width(word) > width:
            head = _cut(word, width) or word[0]
            lines.extend([current] if current else [])
            lines.append(head)
            current, word = "", word[len(head) :]
        candidate = f"{current} {word}" if current and word else current or word
        if cell_width(candidate) <= width:
            current = candidate
        else:
            lines.append(current)
            current = word
    return [*lines, current] if current else lines


def crop(whole: Line, width: int) -> Line:
    """The line in at most `width` columns; what does not fit ends in an ellipsis."""
    room = width
    kept: list[Span] = []
    for span in whole.spans:
        taken = cell_width(span.text)
        if taken > room:
            kept.append(Span(fit(span.text, room), span.tone))
            break
        kept.append(span)
        room -= taken
    return Line(tuple(kept), whole.fill)


def to_ascii(text: str) -> str:
    """The same columns without a character above 126, for terminals and fonts that lack them."""
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * _character_width(c) for c in text.translate(_ASCII))


def lines_to_ascii(lines: Iterable[Line]) -> list[Line]:
    return [Line(tuple(Span(to_ascii(s.text), s.tone) for s in one.spans), one.fill) for one in lines]


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _cut(text: str, width: int) -> str:
    taken = 0
    for position, character in enumerate(text):
        taken += _character_width(character)
        if taken > width:
            return text[:position]
    return text


def _cut_middle(text: str, width: int) -> str:
    head = _cut(text, (width - 1) // 2)
    tail = _cut(text[::-1], width - 1 - cell_width(head))[::-1]
    return head + ELLIPSIS + tail
