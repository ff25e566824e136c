"""An engine whose hooks tell of its answers, as the agent sees it, for the tests of the analyser of drift."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About, Reference
from aie_agent.analysis.findings import Limits, View
from aie_agent.request_values import STATISTICS, RequestValues
from aie_agent.samples import Batch, Point, Tags, Values
from aie_agent.store import Store
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import Kind

START_S = 1000.0
MEANS = {"entropy": 2.0, "surprisal": 1.8, "first_token_logsumexp": 20.0, "log_length": 4.0}
METRIC = {each.name: each.metric for each in STATISTICS}


def answers_of(rng: random.Random, count: int, shifts: dict[str, float]) -> dict[str, list[float]]:
    """So many of each statistic, shifted from its mean."""
    return {name: [rng.gauss(mean + shifts.get(name, 0.0), 1.0) for _ in range(count)] for name, mean in MEANS.items()}


@cache
def usual_reference() -> Reference:
    """Of a thousand requests to the model `m`."""
    return reference_of()


def reference_of(**about: str) -> Reference:
    """The same, of another model or revision."""
    return build(answers_of(random.Random(1), 1000, {}), About(**({"model": "m"} | about)))


class DriftWorld:
    """An engine `e` that serves the model `m` and is asked ten times a second."""

    def __init__(self, *references: Assigned, seed: int = 2) -> None:
        self.rng = random.Random(seed)
        self.store = Store(max_series=1000, retention_s=300.0)
        self.values = RequestValues()
        self.analyser = DriftAnalyser(references)
        self.now_s = START_S
        self.engines = ["e"]

    def view(self) -> View:
        return View(
            store=self.store,
            engines=self.engines,
            state=lambda _: "up",
            processes=lambda _: [],
            unanswered_since_s=lambda _: None,
            limits=Limits(),
            values=self.values.since,
        )

    def second(self, answers: dict[str, Sequence[float]], points: Sequence[Point] = (), model: str = "m") -> Sequence[Finding]:
        self.now_s += 1.0
        tags: Tags = (("engine", "e"), ("model", model))
        values = [Values(METRIC[name], tags, tuple(column)) for name, column in answers.items() if column]
        batch = Batch("statsd", self.now_s, list(points), values=values)
        self.store.apply(batch)
        self.values.take(batch)
        self.analyser.observe(self.view(), self.now_s)
        return self.analyser.findings(self.now_s)

    def requests(self, count: int, model: str = "m", **shifts: float) -> list[Sequence[Finding]]:
        """So many, ten a second; what was found after each second."""
        return [self.second(answers_of(self.rng, 10, shifts), model=model) for _ in range(count // 10)]

    def info(self, revision: str) -> None:
        """The engine's page says which revision it serves."""
        labels = {"engine": "e", "model": "m", "kind": "aie", "version": "1", "revision": revision, "device": "cpu", "dtype": "f32"}
        point = Point("aie_engine_info", Kind.GAUGE, tuple(sorted(labels.items())), 1.0)
        self.store.apply(Batch("scrape:e", self.now_s, [point]))

    def metrics(self) -> dict[tuple[str, str], float]:
        """By name and statistic."""
        return {(point.name, dict(point.tags).get("statistic", "")): point.value for point in self.analyser.points(self.now_s)}


def causes_of(found: Sequence[Finding]) -> list[str]:
    """Of findings, in order."""
    return [each.cause for each in found]
