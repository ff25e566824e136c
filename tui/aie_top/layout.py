"""How many lines each panel gets. Pure. First everything gets its least, in order of importance; then more, round by round."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_top.rows import Frame
from aie_top.views import problems
from aie_top.views.gpus import gpu_heights
from aie_top.views.history import LEAST_HEIGHT

PANELS: Final = ("problems", "gpus", "engines", "waits", "gpu_processes", "memory", "drift", "hosts")
_AIRY_FROM: Final = 32
_PROCESSES_FROM: Final = 50
_FOOTER_FROM: Final = 8


class Plan(NamedTuple):
    """Lines by panel, 0 for one that is not there; `gap` blank lines stand above each table and the histories."""

    panels: dict[str, int]
    history: int
    footer: int
    gap: int

    @property
    def gaps(self) -> int:
        """All blank lines together."""
        return self.gap * _parts(self.panels)


def plan(frame: Frame, width: int, height: int) -> Plan:
    footer = 1 if height >= _FOOTER_FROM else 0
    left = max(height - 1 - footer, 0)
    given = dict.fromkeys(PANELS, 0)
    for panel, lines in _rounds(frame, width, height):
        more = min(max(lines - given[panel], 0), left)
        given[panel] += more
        left -= more
    gap = 1 if height >= _AIRY_FROM and left >= _parts(given) else 0
    left -= gap * _parts(given)
    return Plan(given, left if left >= LEAST_HEIGHT else 0, footer, gap)


def _parts(given: dict[str, int]) -> int:
    """Tables that are shown, and the histories."""
    return sum(lines > 0 for panel, lines in given.items() if panel != "problems") + 1


def _rounds(frame: Frame, width: int, height: int) -> list[tuple[str, int]]:
    """(panel, lines up to which it is raised), most urgent first."""
    wrong = problems.heights(frame, width)
    engines, memory, hosts = (1 + max(len(rows), 1) for rows in (frame.engines, frame.memory, frame.hosts))
    gpus_least, gpus = gpu_heights(frame)
    waits = 1 + len(frame.waiting) if frame.waiting else 0
    drift = 1 + len(frame.compared) if frame.compared else 0
    processes = 1 + len(frame.gpu_processes) if frame.gpu_processes else 0
    return [
        ("problems", 1),
        ("engines", 2),
        ("gpus", gpus_least),
        ("memory", 2),
        ("hosts", 2),
        ("problems", min(wrong.short, 2)),
        ("waits", min(waits, 2)),
        ("drift", min(drift, 2)),
        ("engines", min(engines, 3)),
        ("gpus", min(gpus, 4)),
        ("problems", min(wrong.short, 4)),
        ("engines", min(engines, 5)),
        ("waits", min(waits, 5)),
        ("gpus", min(gpus, 9)),
        ("memory", min(memory, 4)),
        ("problems", min(wrong.text, max(height // 3, 4))),
        ("drift", min(drift, 4)),
        ("hosts", min(hosts, 4)),
        ("engines", engines),
        ("gpus", gpus),
        ("waits", waits),
        ("memory", memory),
        ("drift", drift),
        ("hosts", hosts),
        # Only in the room of a large window: nearly all of it is on the pages of engines and GPUs, too.
        ("gpu_processes", min(processes, 20) if height >= _PROCESSES_FROM else 0),
        ("problems", min(wrong.full, max(height // 2, 4))),
    ]
