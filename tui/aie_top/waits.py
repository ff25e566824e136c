"""Where an engine's threads are, as one bar: which parts it has, how they are told apart, how long each is. Pure.

A bar counts threads, on average over the window: those on a CPU, and those that wait for something that somebody else has. Threads
that sleep or wait for work are not in it: they are where they should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from aie_telemetry.api import Waits
from aie_top.text import Span, Tone


class Part(NamedTuple):
    """`field` is of `api.Waits`. The title begins with the letter that marks the part in a bar, so the titles are its legend."""

    field: str
    title: str
    words: str
    tone: Tone
    about: str

    @property
    def letter(self) -> str:
        return self.title[0]


PARTS: Final = (
    Part("running", "RUN", "running", "run", "threads on a CPU, but for those that spin in a CUDA synchronisation (R in the bar)"),
    Part("run_queue", "QUEUE", "no CPU", "queue", "threads ready to run that wait for a CPU (Q)"),
    Part("lock", "LOCK", "lock", "lock", "threads that wait for a lock that another thread holds (L)"),
    Part("gil", "GIL", "GIL", "gil", "threads that wait for Python's interpreter lock (G)"),
    Part("disk", "DISK", "disk", "disk", "threads in uninterruptible sleep, mostly for a disk or a driver (D)"),
    Part("page_fault", "FAULT", "page fault", "fault", "threads that wait until the disk brought a page (F)"),
    Part("gpu_sync", "SYNC", "GPU sync", "sync", "threads inside a CUDA synchronisation, asleep or spinning (S)"),
)

# What /proc tells without any probe.
_WITHOUT_PROBES: Final = frozenset(("running", "run_queue"))
_OF_PROBES: Final = tuple(name for name in Waits.__struct_fields__ if name not in _WITHOUT_PROBES)
_BLOCK: Final = "█"


def level(waits: Waits, part: Part) -> float | None:
    """How many threads are there; None: not seen."""
    value: float | None = getattr(waits, part.field)
    return value


def are_probed(waits: Waits | None) -> bool:
    """Whether probes see any of it: what /proc alone tells stands in the table of engines."""
    return waits is not None and any(getattr(waits, name) is not None for name in _OF_PROBES)


def unknown_parts(waits: Waits) -> tuple[Part, ...]:
    return tuple(part for part in PARTS if level(waits, part) is None)


def total(waits: Waits) -> float:
    """Threads in the bar. What is not seen counts as nothing."""
    return sum(_levels(waits))


def top_of(totals: Iterable[float]) -> float:
    """How many threads a full bar is, for bars to be compared: the power of two that holds the largest, at least 1.

    Powers of two, so that bars are seldom drawn to a new scale, and the longest is never below half of the width.
    """
    most = max((each for each in totals if math.isfinite(each)), default=0.0)
    return 2.0 ** math.ceil(math.log2(most)) if most > 1.0 else 1.0


def bar(waits: Waits, top: float, width: int) -> tuple[Span, ...]:
    """The stacked bar, `width` columns: each part begins with its letter, so colour is not needed to read it.

    The whole is as long as the sum, within half a column, and each part within one: columns that are left when all are rounded
    down go to those of which most was cut off. What is below that is in the numbers.
    """
    exact = [each / top * width for each in _levels(waits)]
    lengths = [int(each) for each in exact]
    left = min(round(sum(exact)), width) - sum(lengths)
    for at in sorted(range(len(exact)), key=lambda at: lengths[at] - exact[at])[: max(left, 0)]:
        lengths[at] += 1
    spans = [
        Span(part.letter + _BLOCK * (length - 1), part.tone) for part, length in zip(PARTS, lengths, strict=True) if length > 0
    ]
    rest = width - sum(lengths)
    return (*spans, Span("░" * rest, "track")) if rest else tuple(spans)


def _levels(waits: Waits) -> list[float]:
    known = (level(waits, part) for part in PARTS)
    return [value if value is not None and 0.0 < value < 1e18 else 0.0 for value in known]
