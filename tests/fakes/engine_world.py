"""An engine whose page is read once a second, in a real store: what causes of engines look at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from fakes.cause_world import BEGIN_S, CauseWorld, Rate

from aie_agent.analysis.engine_causes.last_heard import LastHeard
from aie_agent.analysis.findings import Heard
from aie_agent.samples import Batch, HistogramPoint
from aie_telemetry.catalogue import CATALOGUE

Observations = Mapping[float, float]
"""How often each value is observed in a second."""
Observes = Observations | Callable[[int], Observations]
E = (("engine", "e"), ("model", "m"))


class EngineWorld(CauseWorld):
    """Metrics go by their names after `aie_engine_`."""

    def serve(
        self,
        seconds: int,
        *,
        observes: Mapping[str, Observes] | None = None,
        outcomes: Mapping[str, Rate] | None = None,
        more: Mapping[str, Rate] | None = None,
        **rows: Rate,
    ) -> None:
        """So many seconds pass. `rows` are counters by their rate and gauges by their level, `outcomes` requests that end so in a
        second, `more` other series as in `CauseWorld.live`. Functions are of the seconds since the world began."""
        levels: dict[str, Rate] = {f"aie_engine_{name} engine=e model=m": rate for name, rate in rows.items()}
        levels |= {f"aie_engine_requests_total engine=e model=m outcome={name}": rate for name, rate in (outcomes or {}).items()}
        levels |= more or {}
        for _ in range(seconds):
            second = int(self.now_s - BEGIN_S)
            self.live(1, {name: rate(second) if callable(rate) else rate for name, rate in levels.items()})
            now = {name: each(second) if callable(each) else each for name, each in (observes or {}).items()}
            points = [self._observed(name, each) for name, each in now.items()]
            self.store.apply(Batch("scrape:e", self.now_s, histograms=points))

    def _observed(self, name: str, now: Observations) -> HistogramPoint:
        metric = CATALOGUE[f"aie_engine_{name.split()[0]}"]
        tags = tuple(sorted((*E, *(tuple(label.split("=")) for label in name.split()[1:]))))
        known = next((s for s in self.store.histograms(metric.name) if s.tags == tags), None)
        counts = list(known.counts) if known is not None else [0.0] * (len(metric.buckets) + 1)
        for value, count in now.items():
            counts[bisect_left(metric.buckets, value)] += count
        total = sum(value * count for value, count in now.items()) + (known.total if known is not None else 0.0)
        return HistogramPoint(metric.name, tags, metric.buckets, tuple(counts), total)  # type: ignore[arg-type]

    def heard(self, engine: str) -> Heard | None:
        """What a diagnosis that looks for the first time has heard of an engine that is down."""
        looks = LastHeard()
        looks.observe(self.view, self.now_s)
        return looks.of(engine)


def down(world: EngineWorld, since_s: float, **more: Any) -> EngineWorld:
    """The same world, in which the engine went down."""
    after: EngineWorld = EngineWorld(
        state="down", down_since_s=lambda _: since_s, last_heard=lambda engine: after.heard(engine), **more
    )
    after.store, after.now_s = world.store, world.now_s
    return after
