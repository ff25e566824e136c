"""How many lines each panel gets. Pure. First everything gets its least, in order of importance; then more, round by round."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_top.rows import Frame
from aie_top.views import problems
from aie_top.views.history import LEAST_HEIGHT

PANELS: Final = ("problems", "engines", "memory", "hosts")
_AIRY_FROM: Final = 32
_FOOTER_FROM: Final = 8


class Plan(NamedTuple):
    """Lines by panel; `gap` blank lines stand above each of engines, memory, hosts and history."""

    panels: dict[str, int]
    history: int
    footer: int
    gap: int


def plan(frame: Frame, width: int, height: int) -> Plan:
    footer = 1 if height >= _FOOTER_FROM else 0
    left = max(height - 1 - footer, 0)
    given = dict.fromkeys(PANELS, 0)
    for panel, lines in _rounds(frame, width, height):
        more = min(max(lines - given[panel], 0), left)
        given[panel] += more
        left -= more
    gap = 1 if height >= _AIRY_FROM and left >= len(PANELS) else 0
    left -= gap * len(PANELS)
    return Plan(given, left if left >= LEAST_HEIGHT else 0, footer, gap)


def _rounds(frame: Frame, width: int, height: int) -> list[tuple[str, int]]:
    """(panel, lines up to which it is raised), most urgent first."""
    wrong = problems.heights(frame, width)
    engines, memory, hosts = (1 + max(len(rows), 1) for rows in (frame.engines, frame.memory, frame.hosts))
    return [
        ("problems", 1),
        ("engines", 2),
        ("memory", 2),
        ("hosts", 2),
        ("problems", min(wrong.short, 2)),
        ("engines", min(engines, 3)),
        ("problems", min(wrong.short, 4)),
        ("engines", min(engines, 5)),
        ("memory", min(memory, 4)),
        ("problems", min(wrong.text, max(height // 3, 4))),
        ("hosts", min(hosts, 4)),
        ("engines", engines),
        ("memory", memory),
        ("hosts", hosts),
        ("problems", min(wrong.full, max(height // 2, 4))),
    ]
