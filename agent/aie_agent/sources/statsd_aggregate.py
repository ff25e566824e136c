"""StatsD samples to one delta an interval. Pure: no sockets, no threads, time is an argument. Everything is capped, and what is
refused is counted by reason.

A sample costs one dictionary look-up and one addition: its series is worked out when it first appears in an interval, and what
that depends on alone (name, type, tags) is remembered across intervals.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any, Final, NamedTuple

from aie_agent.request_values import STATISTIC_OF
from aie_agent.samples import HistogramPoint, Point, Tags, Values
from aie_agent.sources.statsd_reasons import Reason
from aie_agent.sources.statsd_series import HELLO, Identity, Series, conflicts, hello_of, series_of, value_refusal
from aie_telemetry.catalogue import OUTCOMES, Kind
from aie_telemetry.statsd import Sample

SET_INTERVAL_S: Final = 10.0
"""Distinct members are counted over intervals of this length."""

SILENT_S: Final = 300.0
"""A series that had no sample for so long is forgotten, and makes room."""

MOST_KEPT: Final = 1000
"""Single observations of one series that are kept of one interval."""

_SWEEP_S: Final = 60.0
_ENDED: Final = "aie_engine_requests_total"

ANONYMOUS: Final = 0
"""The sender of all that comes without the kernel's word for its process: no process has this number."""

_Input = tuple[str, str, Tags]  # a sample's name, type and tags
_Key = tuple[str, Tags]  # a series' name and labels


class _Counter:
    """A sum of increments."""

    __slots__ = ("identity", "series", "total")

    def __init__(self, series: Series) -> None:
        self.series = series
        self.identity = series.identity
        self.total = 0.0

    def add(self, sample: Sample) -> Reason | None:
        value: Any = sample.value
        if value < 0:
            return value_refusal(sample)
        self.total += value if sample.rate == 1.0 else value / sample.rate
        return None


class _Gauge:
    """A level: the last one that was set, changed by what was added since."""

    __slots__ = ("identity", "is_delta", "series", "value")

    def __init__(self, series: Series) -> None:
        self.series = series
        self.identity = series.identity
        self.value = 0.0
        self.is_delta = True

    def add(self, sample: Sample) -> None:
        value: Any = sample.value
        if sample.delta:
            self.value += value
        else:
            self.value = value
            self.is_delta = False


class _Histogram:
    """Observations by bucket, each with the weight of those that its sender left out."""

    __slots__ = ("counts", "identity", "series", "total")

    def __init__(self, series: Series) -> None:
        self.series = series
        self.identity = series.identity
        self.counts = [0.0] * (len(series.bounds) + 1)
        self.total = 0.0

    def add(self, sample: Sample) -> None:
        value: Any = sample.value
        if sample.type == "timing":
            value /= 1000.0
        weight = 1.0 / sample.rate
        self.counts[bisect_left(self.series.bounds, value)] += weight
        self.total += value * weight


class _KeptHistogram(_Histogram):
    """One of which the analysis needs the single observations too: the first `MOST_KEPT` of an interval."""

    __slots__ = ("kept", "lost")

    def __init__(self, series: Series) -> None:
        super().__init__(series)
        self.kept: list[float] = []
        self.lost = 0

    def add(self, sample: Sample) -> None:
        super().add(sample)
        if len(self.kept) < MOST_KEPT:
            value: Any = sample.value
            self.kept.append(value)
        else:
            self.lost += 1


class _Set:
    """Distinct members of the present set interval, as hashes: a member may be 8 KiB long, and only their number is asked."""

    __slots__ = ("_room", "identity", "members", "series")

    def __init__(self, series: Series, room: _SetRoom) -> None:
        self.series = series
        self.identity = series.identity
        self.members: set[int] = set()
        self._room = room

    def add(self, sample: Sample) -> Reason | None:
        member = hash(sample.value)
        if member in self.members:
            return None
        if len(self.members) >= self._room.most_each or self._room.taken >= self._room.most:
            return Reason.SET_MEMBERS
        self._room.taken += 1
        self.members.add(member)
        return None


class _SetRoom:
    """How many members are held, of one set and of all together."""

    __slots__ = ("most", "most_each", "taken")

    def __init__(self, most_each: int, most: int) -> None:
        self.most_each = most_each
        self.most = most
        self.taken = 0


class _Shares:
    """How much of the room the known series take, and which sender brought which: one that makes up ever new names may leave no
    room for the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_each = max(1, most // 2)
        self._taken = 0
        self._brought: dict[_Key, tuple[int, int]] = {}  # by whom, and what it weighs
        self._held: Counter[int] = Counter()

    def take(self, series: Series, sender: int) -> Reason | None:
        """Notes that `sender` brought a new series, or says why there is no room for it."""
        weight = _weight(series)
        if self._taken + weight > self._most:
            return Reason.SERIES_LIMIT
        if self._held[sender] + weight > self._most_each:
            return Reason.SERIES_SHARE
        self._taken += weight
        self._held[sender] += weight
        self._brought[series.name, series.tags] = (sender, weight)
        return None

    def keep(self, known: Container[_Key]) -> None:
        """Forgets all other series."""
        self._brought = {key: brought for key, brought in self._brought.items() if key in known}
        self._held = Counter()
        for sender, weight in self._brought.values():
            self._held[sender] += weight
        self._taken = self._held.total()


def _weight(series: Series) -> int:
    """As the store weighs it: by the lines that it has on a Prometheus page. A set is a gauge there."""
    return len(series.bounds) + 3 if series.kind is Kind.HISTOGRAM else 1


class _Hello:
    """A line that is no series, and only says who sends."""

    __slots__ = ("identity",)

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def add(self, sample: Sample) -> None:
        """Nothing to add up."""


_State = _Counter | _Gauge | _Histogram | _Set
_NEW_STATES: Final[dict[Kind, type[_Counter | _Gauge | _Histogram]]] = {
    Kind.COUNTER: _Counter,
    Kind.GAUGE: _Gauge,
    Kind.HISTOGRAM: _Histogram,
}


class Interval(NamedTuple):
    """What one interval brought. Belongs to whoever got it: nothing is added to it any more."""

    states: list[_State]
    set_sizes: list[Point]

    def points(self) -> tuple[list[Point], list[HistogramPoint], int]:
        """As deltas for the store, and how many sums were left out because they overflowed."""
        points = list(self.set_sizes)
        histograms: list[HistogramPoint] = []
        overflows = 0
        for state in self.states:
            if isinstance(state, _Set):
                continue
            series = state.series
            if isinstance(state, _Histogram):
                if math.isfinite(state.total):
                    counts = tuple(state.counts)
                    histograms.append(HistogramPoint(series.name, series.tags, series.bounds, counts, state.total, True))
                else:
                    overflows += 1
                continue
            value, delta = (state.total, True) if isinstance(state, _Counter) else (state.value, state.is_delta)
            if math.isfinite(value):
                points.append(Point(series.name, series.kind, series.tags, value, delta))
            else:
                overflows += 1
        points += _beside(points)
        return points, histograms, overflows

    def values(self) -> list[Values]:
        """The single observations of those histograms of which they are kept."""
        return [
            Values(state.series.name, state.series.tags, tuple(state.kept), state.lost)
            for state in self.states
            if isinstance(state, _KeptHistogram) and state.kept
        ]


def _beside(points: Iterable[Point]) -> list[Point]:
    """The other outcomes of requests that ended: nothing more ended so. They begin at 0, before a first error, which would be lost
    to whoever asks how fast they rise; senders that are not our hooks send an outcome when it comes first."""
    there = {point.tags for point in points if point.name == _ENDED}
    known = [dict(tags) for tags in there if dict(tags).get("outcome") in OUTCOMES]
    siblings = (labels | {"outcome": outcome} for labels in known for outcome in OUTCOMES)
    begun = dict.fromkeys(tuple(sorted(labels.items())) for labels in siblings)
    return [Point(_ENDED, Kind.COUNTER, tags, 0.0, True) for tags in begun if tags not in there]


class Aggregator:
    """Adds samples up until `swap`. Not thread-safe."""

    def __init__(self, *, max_series: int = 5000, max_set_members: int = 5000, max_members_of_all_sets: int = 20_000) -> None:
        """`max_series` counts a histogram as the store does: by its buckets."""
        self.refused: Counter[str] = Counter()
        self._room = _SetRoom(max_set_members, max_members_of_all_sets)
        # By input, since different inputs (`a-b` and `a+b`, ms and h) can mean one series. Hostile ones could mean it in ever
        # new ways, so this is capped apart: beyond the cap they are worked out again each time.
        self._live: dict[_Input, _State | _Hello] = {}
        self._meanings: dict[_Input, Series] = {}
        self._max_inputs = 2 * max_series
        self._states: dict[_Key, _State] = {}
        self._sets: dict[_Key, _Set] = {}
        self._last_seen_s: dict[_Key, float] = {}
        self._shares = _Shares(max_series)
        self._kinds: dict[str, Kind] = {}
        self._set_interval: int | None = None
        self._swept_s: float | None = None

    @property
    def size(self) -> int:
        """Series known, also those that were silent in this interval."""
        return len(self._last_seen_s)

    def add(self, sample: Sample, sender: int = ANONYMOUS) -> Identity | None:
        """Takes a sample in, or counts why not. Returns who says that they sent it, where a tag says so.

        `sender` is the process that the kernel vouches for; all that it does not vouch for count as one.
        """
        key = (sample.name, sample.type, sample.tags)
        state = self._live.get(key)
        if state is None:
            opened = self._open(key, sender)
            if isinstance(opened, Reason):
                self.refused[opened] += 1
                return None
            state = opened
        reason = state.add(sample)
        if reason is not None:
            self.refused[reason] += 1
        return state.identity

    def swap(self, now_s: float) -> Interval:
        """Ends the interval and returns what it brought. Quick: turning that into points is left to `Interval.points`."""
        states = list(self._states.values())
        self._last_seen_s.update(dict.fromkeys(self._states, now_s))
        self._live, self._states = {}, {}
        interval = Interval(states, self._set_sizes(now_s))
        self._sweep(now_s)
        return interval

    def _open(self, key: _Input, sender: int) -> _State | _Hello | Reason:
        """The state to which samples of this name, type and tags belong in this interval, or why there is none."""
        name, type_, tags = key
        if name == HELLO:
            identity = hello_of(type_, tags)
            return Reason.BAD_HELLO if identity is None else self._keep(key, _Hello(identity))
        is_set = type_ == "set"
        series = self._meanings.get(key)
        if series is None:
            meaning = series_of(name, type_, tags)
            if isinstance(meaning, Reason):
                return meaning
            reason = self._admit(meaning, sender, is_set=is_set)
            if reason is not None:
                return reason
            series = meaning
            if len(self._meanings) < self._max_inputs:
                self._meanings[key] = series
        return self._keep(key, self._state_of(series, is_set=is_set))

    def _admit(self, series: Series, sender: int, *, is_set: bool) -> Reason | None:
        """Makes the series known, or says why it cannot be."""
        key = (series.name, series.tags)
        known = key in self._last_seen_s
        if conflicts(series.name, series.kind, self._kinds) or (known and is_set != (key in self._sets)):
            return Reason.KIND_CONFLICT
        if not known:
            reason = self._shares.take(series, sender)
            if reason is not None:
                return reason
            self._last_seen_s[key] = math.inf  # until the end of the interval, whose time is not known yet
            self._kinds[series.name] = series.kind
        return None

    def _state_of(self, series: Series, *, is_set: bool) -> _State:
        key = (series.name, series.tags)
        state = self._states.get(key)
        if state is None:
            new = _KeptHistogram if series.name in STATISTIC_OF else _NEW_STATES[series.kind]
            state = self._sets.setdefault(key, _Set(series, self._room)) if is_set else new(series)
            self._states[key] = state
        return state

    def _keep(self, key: _Input, state: _State | _Hello) -> _State | _Hello:
        if len(self._live) < self._max_inputs:
            self._live[key] = state
        return state

    def _set_sizes(self, now_s: float) -> list[Point]:
        """The sizes of all sets when a set interval has ended; a set that nobody added to has 0 members."""
        interval = math.floor(now_s / SET_INTERVAL_S)
        last, self._set_interval = self._set_interval, interval
        if last is None or last == interval:
            return []
        self._room.taken = 0
        points = []
        for state in self._sets.values():
            points.append(Point(state.series.name, Kind.GAUGE, state.series.tags, float(len(state.members))))
            state.members = set()
        return points

    def _sweep(self, now_s: float) -> None:
        """Forgets what has been silent for long."""
        if self._swept_s is not None and 0 <= now_s - self._swept_s < _SWEEP_S:
            return
        self._swept_s = now_s
        self._last_seen_s = {key: seen_s for key, seen_s in self._last_seen_s.items() if now_s - seen_s < SILENT_S}
        known = self._last_seen_s
        self._shares.keep(known)
        self._meanings = {key: series for key, series in self._meanings.items() if (series.name, series.tags) in known}
        self._sets = {key: state for key, state in self._sets.items() if key in known}
        names = {name for name, _ in known}
        self._kinds = {name: kind for name, kind in self._kinds.items() if name in names}
