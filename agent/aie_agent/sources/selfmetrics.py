"""The agent about itself, as one more source: so that its numbers take the way of all others."""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence

from aie_agent.about import About
from aie_agent.samples import Batch, Count, Point, Tags, labelled, own_tags
from aie_agent.sources.base import Health
from aie_agent.sources.procfs import read_record
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE, Kind


class SelfSource:
    """Reads counters that other parts of the agent keep; `extra` gives those of parts that may be switched off."""

    name = "agent"
    period_s = 1.0

    def __init__(
        self, about: About, store: Store, health: Sequence[Health], extra: Sequence[Callable[[], Iterable[Count]]]
    ) -> None:
        self._about = about
        self._store = store
        self._health = health
        self._extra = extra
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._told: list[tuple[Count, Point]] = []

    async def collect(self, now_s: float) -> Batch:
        """Raises nothing: all of it is in this process."""
        counts = [*self._own(now_s), *self._of_sources(), *self._of_store()]
        for extra in self._extra:
            counts += extra()
        points = [_next(count, *told) for count, told in zip(counts, self._told, strict=False)]
        points += [_point(*count) for count in counts[len(points) :]]
        self._told = list(zip(counts, points, strict=True))
        return Batch(self.name, now_s, points)

    async def close(self) -> None:
        """Holds nothing."""

    def _own(self, now_s: float) -> Iterable[Count]:
        yield "aie_agent_clock_ahead_seconds", (), max(now_s - time.time(), 0.0)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        statm = read_record("/proc/self/statm")
        yield "aie_agent_info", (self._about.version,), 1.0
        yield "aie_agent_start_time_seconds", (), self._about.start_s
        yield "aie_agent_cpu_seconds_total", (), usage.ru_utime + usage.ru_stime
        if statm is not None:
            yield "aie_agent_resident_bytes", (), float(int(statm.split()[1]) * self._page_bytes)

    def _of_sources(self) -> Iterable[Count]:
        for health in self._health:
            label = (health.name,)
            yield "aie_agent_source_up", label, float(health.state == "up")
            yield "aie_agent_source_collections_total", label, float(health.collections)
            yield "aie_agent_source_failures_total", label, float(health.failures)
            yield "aie_agent_source_seconds_total", label, health.seconds
            if health.last_success_s is not None:
                yield "aie_agent_source_last_success_timestamp_seconds", label, health.last_success_s

    def _of_store(self) -> Iterable[Count]:
        store = self._store
        yield "aie_agent_series", (), float(store.size)
        yield "aie_agent_series_limit", (), float(store.limit)
        yield "aie_agent_samples_shadowed_total", (), float(store.shadowed)
        yield from labelled("aie_agent_samples_total", store.accepted)
        yield from labelled("aie_agent_samples_refused_total", store.refused)


def _next(count: Count, before: Count, point: Point) -> Point:
    """The point of a number, where another one stood in its place before: mostly that of the same series, and often the same."""
    if count[0] != before[0] or count[1] != before[1]:
        return _point(*count)
    return point if count[2] == before[2] else Point(point.name, point.kind, point.tags, count[2])


def _point(name: str, values: tuple[str, ...], value: float) -> Point:
    kind, tags = _series(name, values)
    return Point(name, kind, tags, value)


@functools.lru_cache(maxsize=4096)
def _series(name: str, values: tuple[str, ...]) -> tuple[Kind, Tags]:
    """The same at each collection."""
    return CATALOGUE[name].kind, own_tags(name, values)
