"""What is wrong: every problem gets a line; with room to spare its whole text, then why and what to do."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_telemetry.api import Severity
from aie_top import format as fmt
from aie_top.problems import count_by_severity
from aie_top.rows import Frame, ProblemRow, View
from aie_top.text import Line, Span, Tone, cell_width, crop, fit, line, wrap
from aie_top.views.tables import Place, window

MARKS: Final[dict[Severity, tuple[str, Tone]]] = {"critical": ("✖", "bad"), "warning": ("▲", "warn"), "info": ("·", "info")}
_PLURALS: Final[dict[Severity, str]] = {"critical": "critical", "warning": "warnings", "info": "notes"}
_SINGULARS: Final[dict[Severity, str]] = {"critical": "critical", "warning": "warning", "info": "note"}
_WIDE_FROM: Final = 60
_DETAIL_LABEL: Final = 5
_MOST_WHY: Final = 8
_MOST_ADVICE: Final = 6
_AGE: Final = fmt.AGE_WIDTH + 1


class Heights(NamedTuple):
    """Lines that the panel could use: one a problem, all of each problem's text, all with why and advice."""

    short: int
    text: int
    full: int


class _Block(NamedTuple):
    """`short` is all that is said when there is one line for it; else `head`, then as much of `details` as there is room for."""

    short: Line
    head: list[Line]
    details: list[Line]


def heights(frame: Frame, width: int) -> Heights:
    blocks = [_block(row, frame, width) for row in frame.problems]
    title = 1 if blocks else 0
    text = sum(len(block.head) for block in blocks)
    details = sum(len(block.details) for block in blocks)
    return Heights(max(len(blocks) + title, 1), max(text + title, 1), max(text + details + title, 1))


def problem_lines(frame: Frame, _view: View, place: Place) -> list[Line]:
    """With one line to spare: the worst. With more: a title that counts them all, so that none is hidden without a trace."""
    focused = place.cursor is not None
    if not frame.problems:
        return [crop(_nothing(frame, focused), place.width)][: place.height]
    blocks = [_block(row, frame, place.width) for row in frame.problems]
    lines = [_title(frame, place.width, focused)] if place.height > 1 else []
    room = place.height - len(lines)
    first, last = window(len(blocks), room, place.cursor or 0)
    extras = _spread(blocks[first:last], room - (last - first))
    for index, (block, extra) in enumerate(zip(blocks[first:last], extras, strict=True), start=first):
        picked = [*block.head, *block.details][: 1 + extra] if extra else [block.short]
        if index == place.cursor:
            picked[0] = _under_cursor(picked[0])
        lines.extend(picked)
    return [crop(one, place.width) for one in lines[: place.height]]


def _under_cursor(one: Line) -> Line:
    lead = one.spans[0]
    return Line((Span("▸", "accent"), Span(lead.text[1:], lead.tone), *one.spans[1:]), "cursor")


def label_of(row: ProblemRow, *, several_hosts: bool) -> str:
    where = f"{row.subject}@{row.host}" if several_hosts and row.host and row.subject else row.subject
    return f"{where}: " if where and row.subject not in row.summary else f"{row.host}: " if several_hosts and row.host else ""


def _spread(blocks: list[_Block], spare: int) -> list[int]:
    """How many lines beyond its first each block gets: first the rest of what it says, then why and advice, from the top."""
    extra = [0] * len(blocks)
    for part in ("head", "details"):
        for index, block in enumerate(blocks):
            wanted = len(block.head) - 1 if part == "head" else len(block.details)
            granted = min(wanted, spare) if part == "head" or extra[index] == len(block.head) - 1 else 0
            extra[index] += granted
            spare -= granted
    return extra


def _block(row: ProblemRow, frame: Frame, width: int) -> _Block:
    mark, tone = MARKS[row.severity]
    word = f"{_SINGULARS[row.severity]:<8}  " if width >= _WIDE_FROM else ""
    lead = f" {mark} {word}"
    indent = " " * cell_width(lead)
    # In a narrow window what is wrong matters more than since when.
    age = fit(fmt.age(row.age_s) if row.age_s is not None else "", _AGE, right=True) if word else ""
    room = max(width - len(indent) - len(age), 8)
    text = label_of(row, several_hosts=frame.several_hosts) + row.summary
    parts = wrap(text, room) or [""]
    short, first = (line(Span(lead, tone), Span(fit(part, room), "strong"), Span(age, "dim")) for part in (text, parts[0]))
    head = [first, *(line(indent, Span(part, "strong")) for part in parts[1:])]
    return _Block(short, head, _details(row, indent, width))


def _details(row: ProblemRow, indent: str, width: int) -> list[Line]:
    """Whoever sent an event may have told a thousand things of it: the first lines, and how many more its page has."""
    room = max(width - len(indent) - _DETAIL_LABEL, 8)
    why = [(("why" if at == 0 else ""), part) for text in row.why for at, part in enumerate(wrap(text, room))]
    also = [
        (("also" if at == 0 else ""), part) for at, part in enumerate(part for text in row.explains for part in wrap(text, room))
    ]
    do = [(("do" if at == 0 else ""), part) for at, part in enumerate(wrap(row.advice, room))]
    pairs = [*_first(why, _MOST_WHY), *_first(also, _MOST_WHY), *_first(do, _MOST_ADVICE)]
    return [line(indent, Span(f"{name:<{_DETAIL_LABEL}}", "key"), Span(part, "dim")) for name, part in pairs]


def _first(pairs: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """At most so many lines; the last says how many it stands for."""
    return pairs if len(pairs) <= most else [*pairs[: most - 1], ("", f"… {len(pairs) - most + 1} lines more (enter; --json)")]


def _title(frame: Frame, width: int, focused: bool) -> Line:
    wide = width >= _WIDE_FROM
    spans = [Span("▸" if focused else " ", "accent"), Span("WHAT IS WRONG", "accent" if focused else "strong")]
    for severity, number in count_by_severity(frame.problems).items():
        if number:
            mark, tone = MARKS[severity]
            word = (_SINGULARS if number == 1 else _PLURALS)[severity]
            spans.append(Span(f"  {number} {word}" if wide else f"  {mark} {number}", tone))
    return Line(tuple(spans), "title")


def _nothing(frame: Frame, focused: bool) -> Line:
    mark = Span("▸" if focused else " ", "accent")
    if any(row.host is not None for row in frame.hosts):
        return line(mark, Span("✓ ", "good"), Span("nothing wrong that the agent can see", "strong"), fill="title")
    where = ", ".join(row.agent for row in frame.hosts)
    return line(mark, Span(f"connecting to {where} …", "strong"), fill="title")
