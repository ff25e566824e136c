"""`--once`: the screen as plain text, for a terminal, a pipe or a ticket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aie_top.model import arrange, concerning
from aie_top.rows import Frame, View
from aie_top.text import Line, Span, Tone, crop, line, lines_to_ascii
from aie_top.views.chrome import header_line
from aie_top.views.drift import drift_lines
from aie_top.views.gpus import gpu_heights, gpu_lines, process_lines
from aie_top.views.problems import heights, problem_lines
from aie_top.views.tables import Place, engine_lines, host_lines, memory_lines
from aie_top.views.waits import report_waits

WIDTH: Final = 80
_MOST_PROCESSES: Final = 24
_MOST_LOCKS: Final = 10

# Bold, dim and the colours that every terminal has; the words and marks say the same without.
_CODES: Final[dict[Tone, str]] = {
    "strong": "1",
    "dim": "2",
    "good": "32",
    "info": "36",
    "warn": "33",
    "bad": "1;31",
    "accent": "36",
    "key": "1",
    "run": "34",
    "queue": "33",
    "lock": "31",
    "gil": "35",
    "disk": "2",
    "fault": "32",
    "sync": "36",
}


def report_lines(frame: Frame, view: View, width: int = WIDTH, *, ascii_only: bool = False) -> list[Line]:
    """The same panels as on the screen, each as long as it needs to be."""
    arranged = arrange(frame, view)
    blank = Line(())
    tables = [
        lines
        for lines, rows in (
            (gpu_lines(arranged, view, Place(width, gpu_heights(arranged)[1])), arranged.gpus),
            (engine_lines(arranged, view, Place(width, len(arranged.engines) + 2)), True),
            *((lines, True) for lines in report_waits(arranged, view, width, _MOST_LOCKS)),
            (
                process_lines(arranged, view, Place(width, min(len(arranged.gpu_processes), _MOST_PROCESSES) + 1)),
                arranged.gpu_processes,
            ),
            (memory_lines(arranged, view, Place(width, len(arranged.memory) + 2)), arranged.memory),
            (drift_lines(arranged, view, Place(width, len(arranged.compared) + 1)), arranged.compared),
            (host_lines(arranged, view, Place(width, len(arranged.hosts) + 2)), any(row.host for row in arranged.hosts)),
        )
        if rows
    ]
    told = concerning(arranged, frame, view.filter)
    lines = [header_line(told, view, width), *_wrong(told, view, width, hidden=len(frame.problems) - len(told.problems))]
    for table in tables:
        lines += [blank, *table]
    return lines_to_ascii(lines) if ascii_only else lines


def _wrong(told: Frame, view: View, width: int, *, hidden: int) -> list[Line]:
    """What is wrong with what the report shows, and how much the filter leaves out: never "nothing" where there is something."""
    lines = problem_lines(told, view, Place(width, heights(told, width).full)) if told.problems or not hidden else []
    rest = "1 problem" if hidden == 1 else f"{hidden} problems"
    return [*lines, crop(line(Span(f" {rest} of what the filter leaves out", "dim")), width)] if hidden else lines


def render(lines: Sequence[Line], *, colour: bool) -> str:
    rows = (_coloured(one) if colour else one.plain().rstrip() for one in lines)
    return "\n".join(rows) + "\n"


def _coloured(one: Line) -> str:
    """Titles are bold throughout, so that they stand out without a background."""
    pieces: list[str] = []
    for text, tone in one.spans:
        code = _CODES.get(tone, "")
        pieces.append(f"\x1b[{code}m{text}\x1b[0m" if code and text.strip() else text)
    return "".join(pieces).rstrip()
