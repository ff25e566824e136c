"""An engine with a canary as the agent sees it, for the tests of what is learnt and said of one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.findings import Limits, ProcessState, View
from aie_agent.request_values import STATISTICS, RequestValues
from aie_agent.samples import Batch, Point, Values
from aie_agent.store import Store
from aie_telemetry.api import DriftCanary, Finding
from aie_telemetry.catalogue import Kind

LEVEL = -4.875
EVERY_S = 60.0


class CanaryWorld:
    """An engine `e` that serves `m` and runs a canary once a minute, in a step of its own where nothing else is said."""

    def __init__(self, *references: Assigned, since_s: float = 0.0) -> None:
        self.store = Store(max_series=1000, retention_s=300.0)
        self.values = RequestValues()
        self.analyser = DriftAnalyser(references, since_s)
        self.now_s = 1000.0
        self.ran = {"ok": 0, "nonfinite": 0}
        self.revision = "r1"
        self.dtype = "float32"
        self.tgids = (7,)
        self._points(math.nan, None)

    def _points(self, logprob: float, noise: float | None = 0.02) -> None:
        own = (("canary", "default"), ("engine", "e"), ("model", "m"))
        info = {"engine": "e", "model": "m", "kind": "aie", "version": "1", "device": "cpu", "dtype": self.dtype}
        points = [
            Point("aie_engine_canary_runs_total", Kind.COUNTER, (*own, ("outcome", outcome)), float(count))
            for outcome, count in self.ran.items()
        ]
        points.append(Point("aie_engine_info", Kind.GAUGE, tuple(sorted({**info, "revision": self.revision}.items())), 1.0))
        if noise is not None:
            points.append(Point("aie_engine_canary_noise_nats", Kind.GAUGE, own, noise))
        if math.isfinite(logprob):
            points.append(Point("aie_engine_canary_logprob_nats", Kind.GAUGE, own, logprob))
        self.store.apply(Batch("scrape:e", self.now_s, points))
        self.observe()

    def observe(self) -> None:
        view = View(
            store=self.store,
            engines=["e"],
            state=lambda _: "up",
            processes=lambda _: [ProcessState(tgid, "S", 0.0, 0.1) for tgid in self.tgids],
            unanswered_since_s=lambda _: None,
            limits=Limits(),
            values=self.values.since,
        )
        self.analyser.observe(view, self.now_s)

    def runs(self, *logprobs: float, noise: float | None = 0.02) -> Sequence[Finding]:
        """One a minute; what is found after the last. Between two runs the page says the same again."""
        for logprob in logprobs:
            self.now_s += EVERY_S
            self.ran["ok" if math.isfinite(logprob) else "nonfinite"] += 1
            for _ in range(3):
                self._points(logprob, noise)
        return self.analyser.findings(self.now_s)

    def answers(self, count: int, **shifts: float) -> Sequence[Finding]:
        tags = (("engine", "e"), ("model", "m"))
        for name, column in answers(random.Random(count), count, **shifts).items():
            metric = next(each.metric for each in STATISTICS if each.name == name)
            self.values.take(Batch("statsd", self.now_s, [], values=[Values(metric, tags, tuple(column))]))
        self.observe()
        return self.analyser.findings(self.now_s)

    def canary(self) -> DriftCanary:
        (drift,) = self.analyser.shown(["e"], self.now_s)
        (canary,) = drift.canaries
        return canary


def answers(rng: random.Random, count: int, **shifts: float) -> dict[str, list[float]]:
    names = ("entropy", "first_token_logsumexp")
    return {name: [rng.gauss(5.0 + shifts.get(name, 0.0), 1.0) for _ in range(count)] for name in names}
