"""The last minutes of every series, bounded in number and size. Written from the event-loop thread only.

Two rules live here. *One source wins*: for each engine and metric its own page goes before StatsD, and StatsD before eBPF; what
comes from a worse source while the better one is fresh is passed over. *Everything is capped*: what is refused is counted.

One page has a share of the store, so that it cannot push out the others: a quarter, or, where nobody configured it, a twentieth.
And what nobody configured (such pages, and all of StatsD) leaves the last quarter to the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from aie_agent.currency import patience_s, valid_s, was_silent
from aie_agent.places import Places
from aie_agent.samples import Batch, HistogramPoint, Point, Tags
from aie_agent.series import AnySeries, HistogramSeries, Series
from aie_telemetry.catalogue import CATALOGUE, RESERVED_PREFIX, Kind

__all__ = ["REFUSALS", "SUPERSEDED", "AnySeries", "Refusal", "Store"]

Key = tuple[str, Tags]

SUPERSEDED = "superseded"
"""The one refusal by which nothing is lost: a newer value is there, as after a page that was late."""

REFUSALS = (
    "series_limit",
    "page_share",
    "foreign_limit",
    "kind_conflict",
    "reserved_name",
    "bad_labels",
    "out_of_order",
    SUPERSEDED,
    "too_large",
    "engine_limit",
)

# One engine with one model has some 350 series at most, as Prometheus counts them.
_ENOUGH_SERIES = 500
_MAX_REFUSALS_KNOWN = 256

# No quantity is larger. Below it, no sum of a full store and no rate overflows, so that nothing non-finite leaves the agent.
_LARGEST = 1e100

# Which source wins an engine's metric; sources that are not here report what no other does, and never compete.
_RANKS = {"scrape": 3, "statsd": 2, "bpf": 1}


def _kind_of(source: str) -> str:
    return source.partition(":")[0]


def _too_late(point: Point | HistogramPoint) -> str:
    """Why a point is refused that is older than its series' last: what it adds is lost, what it is at has been told since."""
    return "out_of_order" if point.delta else SUPERSEDED


def _weight(series: AnySeries) -> int:
    """How many series Prometheus counts for it."""
    return len(series.counts) + 2 if isinstance(series, HistogramSeries) else 1


def _engine_of(tags: Tags) -> str | None:
    for label, value in tags:
        if label == "engine":
            return value
    return None


class Refusal(NamedTuple):
    """Series of one engine for which there was no room: since when, until when that is news, why, who brought them."""

    since_s: float
    until_s: float
    reason: str
    source: str


class Store:
    """Series by name and labels. `canonical` maps an engine's name to the one it is known by; `configured` are the engines whose
    pages the configuration names, None for all of them."""

    def __init__(
        self,
        *,
        max_series: int,
        retention_s: float,
        canonical: Callable[[str], str] = str,
        configured: Collection[str] | None = None,
    ) -> None:
        self._max_series = max_series
        self._configured = None if configured is None else {f"scrape:{engine}" for engine in configured}
        self._held: Counter[str] = Counter()  # series by source
        self._no_room: dict[str, Refusal] = {}
        self._retention_s = retention_s
        self._canonical = canonical
        self._series: dict[Key, AnySeries] = {}
        self._places: defaultdict[str, Places] = defaultdict(Places)
        self._by_name: dict[str, dict[Tags, AnySeries]] = {}
        self._owners: dict[tuple[str, str], tuple[int, float]] = {}
        self._size = 0
        self._foreign_size = 0
        self.refused: Counter[str] = Counter(dict.fromkeys(REFUSALS, 0))
        self.accepted: Counter[str] = Counter()
        self.shadowed = 0
        self.layout = 0
        """Another number whenever a series came, went, or got another name: until then there are the same."""

    @property
    def size(self) -> int:
        """Series held, as Prometheus counts them: a histogram is one per bucket and two more."""
        return self._size

    @property
    def limit(self) -> int:
        """Most series held."""
        return self._max_series

    def everything(self) -> Iterable[AnySeries]:
        """All series, current or not."""
        return self._series.values()

    def share(self, source: str) -> int:
        """Most series that one source may hold."""
        if _kind_of(source) != "scrape":
            return self._max_series
        if not self._is_open(source):
            return self._max_series // 4
        return max(self._max_series // 20, min(_ENOUGH_SERIES, self._max_series // 4))

    def held(self, source: str) -> int:
        """Series that one source holds."""
        return self._held[source]

    def no_room_for(self, engine: str, now_s: float) -> Refusal | None:
        """That series of an engine are refused at present; None while all are taken."""
        refusal = self._no_room.get(engine)
        return refusal if refusal is not None and refusal.until_s >= now_s else None

    def _is_open(self, source: str) -> bool:
        """Whether anybody on the host can bring series this way."""
        if source == "statsd":
            return True
        return _kind_of(source) == "scrape" and self._configured is not None and source not in self._configured

    def apply(self, batch: Batch) -> None:
        """Takes a batch in."""
        rank = _RANKS.get(_kind_of(batch.source))
        taken = self._take_points(batch, rank)
        for histogram in batch.histograms:
            tags = self._admit(histogram.name, histogram.tags, batch, rank)
            taken += tags is not None and self._take_histogram(histogram, tags, batch)
        if taken:
            self.accepted[batch.source] += taken
        for name in batch.whole:
            self.retire(name, batch.time_s)

    def _take_points(self, batch: Batch, rank: int | None) -> int:
        """How many were taken. Nearly all are the next value of a series that is there: there are a thousand of these a second."""
        source, time_s = batch.source, batch.time_s
        if rank is not None:
            return sum(self._take_ranked(point, batch, rank) for point in batch.points)
        until_s = time_s + patience_s(batch)
        taken = 0
        places = self._places[source]
        beats = places.beat(time_s)
        beat = len(beats.times)
        for point, series in zip(batch.points, places.find(batch.points, self._series, self.layout), strict=True):
            value = point.value
            if series is not None and series.source == source and series.last_time_s <= time_s and -_LARGEST <= value <= _LARGEST:
                if value == series.value:
                    series.stay(beats, beat, time_s, until_s)
                else:
                    series.append(time_s, value)
                    series.valid_until_s = until_s
                taken += 1
            elif self._admit(point.name, point.tags, batch, rank) is not None:
                taken += self._take_point(point, point.tags, batch)
        return taken

    def _take_ranked(self, point: Point, batch: Batch, rank: int) -> bool:
        """Whether a point was taken of a source beside which there may be a better one."""
        tags = self._admit(point.name, point.tags, batch, rank)
        return tags is not None and self._take_point(point, tags, batch)

    def _admit(self, name: str, tags: Tags, batch: Batch, rank: int | None) -> Tags | None:
        """The labels under which a sample is kept, or None when a better source reports the metric of this engine. `rank` is the
        source's, None where it reports what no other does."""
        if not name.startswith(RESERVED_PREFIX):
            return tags
        if name not in CATALOGUE:
            self.refused["reserved_name"] += 1
            return None
        if rank is None or (engine := _engine_of(tags)) is None:
            return tags
        canonical = self._canonical(engine)
        if canonical != engine:
            tags = tuple((label, canonical if label == "engine" else value) for label, value in tags)
        owner_rank, fresh_until_s = self._owners.get((canonical, name), (0, 0.0))
        if rank < owner_rank and batch.time_s <= fresh_until_s:
            self.shadowed += 1
            return None
        if owner_rank not in (0, rank):
            self._hand_over(canonical, name)
        self._owners[canonical, name] = (rank, batch.time_s + patience_s(batch))
        return tags

    def _hand_over(self, engine: str, name: str) -> None:
        """Another source reports this metric of the engine from now on. It may use other labels, and counts from another start."""
        for series in self.all(name):
            if ("engine", engine) in series.tags:
                series.interrupt()

    def _take_point(self, point: Point, tags: Tags, batch: Batch) -> bool:
        """Whether it was taken."""
        series = self._series.get((point.name, tags))
        is_new = series is None
        if series is None:
            series = Series(point.name, point.kind, tags, batch.source, self._capacity(batch))
            if not self._insert(series, 1, batch):
                return False
        if not isinstance(series, Series) or series.kind is not point.kind:
            self.refused["kind_conflict"] += 1
            return False
        if batch.time_s < series.last_time_s:
            self.refused[_too_late(point)] += 1
            return False
        # Hooks keep their counts while no agent listens: the first one is where the counter stands, not a rise just now.
        is_base = is_new and point.name.startswith("aie_engine_")
        value = series.value + point.value if point.delta else point.value
        if not abs(value) <= _LARGEST:
            self.refused["too_large"] += 1
            return False
        if point.delta and series.kind is Kind.COUNTER and not is_base and was_silent(series, batch):
            # Deltas come only when something happened: until a period ago the counter stood where it was, at first at 0.
            series.append(batch.time_s - batch.period_s, series.value)
        series.append(batch.time_s, value)
        self._note(series, batch)
        return True

    def _take_histogram(self, point: HistogramPoint, tags: Tags, batch: Batch) -> bool:
        """Whether it was taken."""
        series = self._series.get((point.name, tags))
        if isinstance(series, HistogramSeries) and series.bounds != point.bounds:
            # Another source with other buckets took over, or the engine was upgraded: counts cannot be carried across.
            self._remove(series)
            series = None
        if series is None:
            series = HistogramSeries(point.name, tags, batch.source, point.bounds, self._capacity(batch))
            if not self._insert(series, len(point.counts) + 2, batch):
                return False
        if not isinstance(series, HistogramSeries):
            self.refused["kind_conflict"] += 1
            return False
        if batch.time_s < series.last_time_s:
            self.refused[_too_late(point)] += 1
            return False
        counts: Sequence[float] = point.counts
        total = point.total
        if point.delta:
            counts = [old + new for old, new in zip(series.counts, point.counts, strict=True)]
            total += series.total
        if not (abs(total) <= _LARGEST and max(counts) <= _LARGEST):
            self.refused["too_large"] += 1
            return False
        if point.delta and was_silent(series, batch):
            series.append(batch.time_s - batch.period_s, series.counts, series.total)
        series.append(batch.time_s, counts, total)
        if not point.delta:
            series.exemplars = dict(point.exemplars)
        self._note(series, batch)
        return True

    def _note(self, series: AnySeries, batch: Batch) -> None:
        if series.source != batch.source:
            weight = _weight(series)
            self._count(series, -weight)
            series.source = batch.source
            self._count(series, weight)
        series.valid_until_s = batch.time_s + valid_s(series, batch)

    def _capacity(self, batch: Batch) -> int:
        """Points that a series of this source needs to remember for as long as the store does."""
        return int(self._retention_s / batch.period_s) + 1

    def _insert(self, series: AnySeries, weight: int, batch: Batch) -> bool:
        reason = self._no_room_because(series, weight)
        if reason is not None:
            self.refused[reason] += 1
            self._remember(reason, series, batch)
            return False
        self._keep(series)
        return True

    def _keep(self, series: AnySeries) -> None:
        self.layout += 1
        self._count(series, _weight(series))
        self._series[series.name, series.tags] = series
        self._by_name.setdefault(series.name, {})[series.tags] = series

    def _no_room_because(self, series: AnySeries, weight: int) -> str | None:
        """Why there is no room for a new series, or None where there is."""
        is_foreign = not series.name.startswith(RESERVED_PREFIX)
        if is_foreign and self._foreign_size + weight > self._max_series // 2:
            return "foreign_limit"
        # What the agent says of itself is bounded by its code, and must not be missing just when something is refused.
        if series.name.startswith("aie_agent_"):
            return None
        open_size = sum(held for source, held in self._held.items() if self._is_open(source))
        is_reserved = self._is_open(series.source) and open_size + weight > self._max_series - self._max_series // 4
        if is_reserved or self._size + weight > self._max_series:
            return "series_limit"
        return "page_share" if self._held[series.source] + weight > self.share(series.source) else None

    def _remember(self, reason: str, series: AnySeries, batch: Batch) -> None:
        engine = next((value for label, value in series.tags if label == "engine"), None)
        if engine is None:
            return
        if engine not in self._no_room and len(self._no_room) >= _MAX_REFUSALS_KNOWN:
            self._no_room = {name: known for name, known in self._no_room.items() if known.until_s >= batch.time_s}
            if len(self._no_room) >= _MAX_REFUSALS_KNOWN:
                return
        before = self.no_room_for(engine, batch.time_s)
        since_s = batch.time_s if before is None else before.since_s
        self._no_room[engine] = Refusal(since_s, batch.time_s + patience_s(batch), reason, batch.source)

    def _count(self, series: AnySeries, weight: int) -> None:
        """Counts a series in, or, with a negative weight, out."""
        self._size += weight
        self._foreign_size += 0 if series.name.startswith(RESERVED_PREFIX) else weight
        self._held[series.source] += weight
        if not self._held[series.source]:
            del self._held[series.source]

    def _remove(self, series: AnySeries) -> None:
        self.layout += 1
        self._count(series, -_weight(series))
        del self._series[series.name, series.tags]
        named = self._by_name[series.name]
        del named[series.tags]
        if not named:
            del self._by_name[series.name]

    def evict(self, now_s: float) -> None:
        """Forgets series that had no new value for as long as the store remembers anything."""
        horizon_s = now_s - self._retention_s
        for series in [series for series in self._series.values() if series.last_time_s < horizon_s]:
            self._remove(series)
        self._owners = {key: owner for key, owner in self._owners.items() if owner[1] >= horizon_s}

    def expire_engine(self, engine: str) -> None:
        """What an engine that is gone said of itself is not current any more. Its history stays."""
        for series in self._series.values():
            if series.name.startswith("aie_engine_") and ("engine", engine) in series.tags and series.name != "aie_engine_up":
                series.valid_until_s = 0.0

    def rename_engine(self, before: str, after: str) -> None:
        """An engine is known by another name from now on: what was kept of it is kept under that, where nothing is yet."""
        for series in [series for series in self._series.values() if ("engine", before) in series.tags]:
            self._remove(series)
            tags = tuple((label, after if label == "engine" else value) for label, value in series.tags)
            if (series.name, tags) not in self._series:
                series.tags = tags
                self._keep(series)

    def interrupt_engine(self, engine: str, source: str) -> None:
        """What a source said of an engine was of another one: nothing of it is current, and what comes does not continue it."""
        for series in self._series.values():
            if series.source == source and ("engine", engine) in series.tags:
                series.interrupt()

    def retire(self, name: str, now_s: float) -> None:
        """Series of a metric that have no value of `now_s` are not current any more."""
        for series in self._by_name.get(name, {}).values():
            if series.last_time_s < now_s:
                series.valid_until_s = 0.0

    def names(self) -> list[str]:
        """Names of all metrics that are held."""
        return list(self._by_name)

    def all(self, name: str) -> Iterable[AnySeries]:
        """Every series of a metric."""
        return list(self._by_name.get(name, {}).values())

    def scalars(self, name: str, **labels: str) -> list[Series]:
        """The counter or gauge series of a metric that have these labels."""
        wanted = set(labels.items())
        named = self._by_name.get(name, {}).values()
        return [s for s in named if isinstance(s, Series) and (not wanted or wanted.issubset(s.tags))]

    def histograms(self, name: str, **labels: str) -> list[HistogramSeries]:
        """The histogram series of a metric that have these labels."""
        wanted = set(labels.items())
        return [s for s in self._by_name.get(name, {}).values() if isinstance(s, HistogramSeries) and wanted.issubset(s.tags)]

    def current(self, name: str, now_s: float, **labels: str) -> float | None:
        """The current value of a metric, summed over the series with these labels; None when there is none."""
        values = [series.value for series in self.scalars(name, **labels) if series.valid_until_s >= now_s]
        return sum(values) if values else None
