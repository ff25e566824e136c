"""One series of one GPU: makes points of NVML's answers, and remembers what it needs of the one before. No clock, no NVML."""

from __future__ import annotations

from typing import Any, Final

from aie_agent.samples import Point, Tags
from aie_agent.sources.nvml.counters import Guard
from aie_agent.sources.nvml.door import IMPLAUSIBLE, Absent
from aie_agent.sources.nvml.rows import Row
from aie_agent.sources.nvml.units import convert
from aie_telemetry.catalogue import CATALOGUE, Kind

FIRST: Final = Absent("first")
"""A rate needs two answers."""

# Two answers that are nearer than this make no rate.
_MIN_INTERVAL_S: Final = 0.1


class Meter:
    """The series that a row of the table feeds. `take` is called by one thread at a time."""

    __slots__ = ("_before", "_guard", "_point", "answer", "kind", "level", "row", "tags")

    def __init__(self, row: Row, gpu: str) -> None:
        metric = CATALOGUE[row.metric]
        self.row = row
        self.kind = metric.kind
        self.tags: Tags = tuple(sorted(zip(metric.labels, (gpu, *row.labels), strict=True)))
        self._guard = Guard() if metric.kind is Kind.COUNTER else None
        self._before: tuple[float, float] | None = None
        self._point: Point | None = None
        self.answer: Any = None
        """The number, or the numbers, of which the last point was made."""
        self.level: Point | None = None
        """That point, if `take` would do no more with the same answer than to give it again: not of a counter."""

    def take(self, answer: Any, now_s: float) -> Point | Absent:
        """The point of an answer at a (monotonic) time, or why there is none: `IMPLAUSIBLE` where it cannot be true."""
        if self._point is not None and answer == self.answer:
            # Most answers are those of the second before.
            if self._guard is not None:
                self._guard.seen(now_s)
            return self._point
        if isinstance(answer, Absent):
            return answer
        row = self.row
        value = convert(row.pick(answer), row.unit)
        if isinstance(value, Absent):
            return value
        if value is not None and self._guard is not None:
            value = self._guard.take(value, now_s, row.unit.per_second)
        if value is None:
            return IMPLAUSIBLE
        if row.per_second:
            return self._rate(value, now_s)
        point = Point(row.metric, self.kind, self.tags, value)
        # A mutable answer may be another the next time and still be the same object.
        if isinstance(answer, (int, float, tuple)):
            self.answer, self._point = answer, point
            self.level = point if self._guard is None else None
        return point

    def _rate(self, value: float, now_s: float) -> Point | Absent:
        before = self._before
        if before is not None and value >= before[1] and now_s - before[0] < _MIN_INTERVAL_S:
            return FIRST
        self._before = (now_s, value)
        if before is None or value < before[1]:
            return FIRST
        rate = (value - before[1]) / (now_s - before[0])
        # The next answer is compared with this one all the same: where the counter stays up there, it goes on from there.
        return Point(self.row.metric, self.kind, self.tags, rate) if rate <= self.row.unit.per_second else IMPLAUSIBLE
