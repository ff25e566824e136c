"""One series of the store: a ring of its last points. Fixed size, so that a thousand of them have a known price."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.samples import Tags
from aie_telemetry.catalogue import Kind
from aie_telemetry.exemplars import Exemplar

MAX_EXEMPLAR_AGE_S: Final = 300.0
_AHEAD_S: Final = 60.0


class Span(NamedTuple):
    """What was known at the start of a time and at its end. `rises`: no value in between is below the one before it, or is none."""

    first_s: float
    first: float
    last: float
    rises: bool


class Ring:
    """The last `capacity` (time, value) pairs, times ascending. 16 bytes a point, taken as points come."""

    __slots__ = ("_capacity", "_newest", "_rising", "_start", "_times", "_values")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = array("d")
        self._values = array("d")
        self._start = 0
        self._rising = 0
        self._newest = 0.0

    def __len__(self) -> int:
        return len(self._times)

    def append(self, time_s: float, value: float) -> None:
        """Adds the newest point, over the oldest one when full. Times must not go back, which the store sees to."""
        if self._rising and value >= self._newest:
            self._rising += 1
        else:
            self._rising = int(value == value)
        self._newest = value
        times = self._times
        if len(times) < self._capacity:
            times.append(time_s)
            self._values.append(value)
        else:
            start = self._start
            times[start] = time_s
            self._values[start] = value
            self._start = start + 1 if start + 1 < self._capacity else 0

    def extend(self, times_s: array[float], value: float) -> None:
        """As `append` for each of these times, with a value that is a number."""
        self.append(times_s[0], value)
        self._rising += len(times_s) - 1
        rest = times_s[1:]
        room = self._capacity - len(self._times)
        self._times.extend(rest[:room])
        self._values.extend(array("d", [value]) * len(rest[:room]))
        rest = rest[room:]
        while rest:
            begin, count = self._start, min(len(rest), self._capacity - self._start)
            self._times[begin : begin + count] = rest[:count]
            self._values[begin : begin + count] = array("d", [value]) * count
            self._start = (begin + count) % self._capacity
            rest = rest[count:]

    def span(self, time_s: float) -> Span | None:
        """The first and the last of the points that `since` gives; None without any."""
        count = len(self._times)
        if not count:
            return None
        first = max(self._rank(time_s) - 1, 0)
        index = (self._start + first) % count
        return Span(self._times[index], self._values[index], self._values[self._start - 1], self._rising >= count - first)

    def since(self, time_s: float) -> Iterator[tuple[float, float]]:
        """The points from the last one at or before `time_s` (what was known then) to the newest."""
        first = max(self._rank(time_s) - 1, 0)
        count = len(self._times)
        for offset in range(first, count):
            index = (self._start + offset) % count
            yield self._times[index], self._values[index]

    def _rank(self, time_s: float) -> int:
        """How many points lie at or before `time_s`. The ring is two ascending runs, split at its start."""
        old = bisect_right(self._times, time_s, self._start, len(self._times)) - self._start
        if old < len(self._times) - self._start or self._start == 0:
            return old
        return old + bisect_right(self._times, time_s, 0, self._start)


class Beats:
    """When a source told, for its series to share: a series that stays as it is needs to note no more than that it was told.

    Holds the times of `ROOM` tellings; for more there is another one. What is owed to a ring can so never be lost.
    """

    ROOM = 32

    __slots__ = ("times",)

    def __init__(self) -> None:
        self.times = array("d")


BREAK = float("nan")
"""A value in a ring that is none: what stands behind it does not continue what stands before it."""


class Series:
    """A counter or gauge. `valid_until_s` is when its last value stops counting as current."""

    __slots__ = (
        *("__weakref__", "kind", "last_time_s", "name", "source", "tags", "valid_until_s", "value"),
        *("_beats", "_owed_from", "_owed_to", "_ring"),
    )

    def __init__(self, name: str, kind: Kind, tags: Tags, source: str, capacity: int) -> None:
        self.name = name
        self.kind = kind
        self.tags = tags
        self.source = source
        self.value = 0.0
        self.last_time_s = 0.0
        self.valid_until_s = 0.0
        self._ring = Ring(capacity)
        self._beats: Beats | None = None
        self._owed_from = self._owed_to = 0

    @property
    def ring(self) -> Ring:
        """Its last points, up to the newest."""
        if self._owed_to > self._owed_from:
            assert self._beats is not None, "who owes has been told"
            self._ring.extend(self._beats.times[self._owed_from : self._owed_to], self.value)
            self._owed_from = self._owed_to
        return self._ring

    def stay(self, beats: Beats, beat: int, time_s: float, until_s: float) -> None:
        """Its value was told once more, at the newest of these times, of which there are `beat`: the ring gets that when somebody
        looks at it, or when the value is another. There are a thousand of these a second, and hardly any is looked at."""
        if self._owed_to != beat - 1 or beats is not self._beats:
            _ = self.ring
            self._beats, self._owed_from = beats, beat - 1
        self._owed_to = beat
        self.last_time_s = time_s
        self.valid_until_s = until_s

    def append(self, time_s: float, value: float) -> None:
        """Notes the newest value."""
        self.ring.append(time_s, value)  # first: what is owed to it is of the value before
        self.value = value
        self.last_time_s = time_s

    def interrupt(self) -> None:
        """What comes next is another's count: it is not current until then, and the step to it is no rise."""
        self.valid_until_s = 0.0
        if self.kind is Kind.COUNTER:
            self.ring.append(self.last_time_s, BREAK)
            self.value = 0.0


class HistogramSeries:
    """A histogram: cumulative-over-time counts per bucket. A state equal to the one before is not stored again."""

    __slots__ = (
        "__weakref__",
        "_capacity",
        "_observations",
        "_rising",
        "_states",
        "_times",
        "_totals",
        "bounds",
        "counts",
        "exemplars",
        "last_time_s",
        "name",
        "source",
        "tags",
        "total",
        "valid_until_s",
    )

    kind = Kind.HISTOGRAM

    def __init__(self, name: str, tags: Tags, source: str, bounds: tuple[float, ...], capacity: int) -> None:
        self.name = name
        self.tags = tags
        self.source = source
        self.bounds = bounds
        self.counts: Sequence[float] = array("d", bytes(8 * (len(bounds) + 1)))
        self.total = 0.0
        self.exemplars: Mapping[int, Exemplar] = {}
        """Observations with their traces, by the bucket's index, as they were told of last."""
        self.last_time_s = 0.0
        self.valid_until_s = 0.0
        self._capacity = capacity
        self._times: list[float] = []
        self._states: list[Sequence[float] | None] = []
        self._totals = array("d")
        self._observations = 0.0
        self._rising = 0

    def append(self, time_s: float, counts: Sequence[float], total: float) -> None:
        """Notes the newest state: `counts` per bucket, one more than the bounds, and the sum of all values."""
        self.last_time_s = time_s
        self.total = total
        state = array("d", counts)
        if self._states and state == self._states[-1]:
            return
        self.counts = state
        observations = sum(state)
        goes_on = self._rising and not observations < self._observations
        self._rising, self._observations = self._rising + 1 if goes_on else 1, observations
        self._push(time_s, state, total)

    def _push(self, time_s: float, state: Sequence[float] | None, total: float) -> None:
        self._times.append(time_s)
        self._states.append(state)
        self._totals.append(total)
        if len(self._times) > self._capacity:
            del self._times[0], self._states[0], self._totals[0]

    def interrupt(self) -> None:
        """As `Series.interrupt`: a state of None stands for the break."""
        self.valid_until_s = 0.0
        self.exemplars = {}
        self._push(self.last_time_s, None, 0.0)
        self._rising = 0
        self.counts = array("d", bytes(8 * (len(self.bounds) + 1)))
        self.total = 0.0

    def fresh_exemplars(self, now_s: float) -> dict[int, Exemplar]:
        """Those of the last five minutes: a trace of yesterday explains nothing of now, and may be gone where traces are kept. The
        clock of who told may be a minute ahead."""
        return {bucket: each for bucket, each in self.exemplars.items() if -_AHEAD_S <= now_s - each.time_s <= MAX_EXEMPLAR_AGE_S}

    def rise(self, time_s: float) -> tuple[Sequence[float], Sequence[float]] | None:
        """The first and the last of the states that `since` gives, if among them is no break and none with fewer observations than
        the one before it; else None."""
        first = max(bisect_right(self._times, time_s) - 1, 0)
        if not self._states or self._rising < len(self._states) - first:
            return None
        before, now = self._states[first], self._states[-1]
        return None if before is None or now is None else (before, now)

    def total_rise(self, time_s: float) -> float | None:
        """How much the sum of all values grew over these states, where `rise` gives any; else None."""
        first = max(bisect_right(self._times, time_s) - 1, 0)
        if not self._states or self._rising < len(self._states) - first:
            return None
        return self._totals[-1] - self._totals[first]

    def since(self, time_s: float) -> Iterator[tuple[float, Sequence[float] | None]]:
        """The states from the last one at or before `time_s` to the newest, as `(time_s, counts)`; counts None is a break."""
        first = max(bisect_right(self._times, time_s) - 1, 0)
        yield from zip(self._times[first:], self._states[first:], strict=True)

    def totals_since(self, time_s: float) -> Iterator[tuple[float, float] | None]:
        """Of the same states, how many observations each counts and the sum of all their values; None is a break."""
        first = max(bisect_right(self._times, time_s) - 1, 0)
        for counts, total in zip(self._states[first:], self._totals[first:], strict=True):
            yield None if counts is None else (sum(counts), total)


AnySeries = Series | HistogramSeries
