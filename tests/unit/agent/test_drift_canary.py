"""Canaries: what is learnt of one, when it says that the model is another, and that nothing else makes it say so."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.drift.canaries import SILENT_S
from aie_agent.analysis.drift.canary import CONSECUTIVE_RUNS, FLOOR_NATS, LEARNT, OF_RUNS, CanaryWatch, floor_of
from aie_agent.analysis.drift.reference import About, build
from aie_agent.analysis.findings import Limits, View
from aie_agent.request_values import STATISTICS, RequestValues
from aie_agent.samples import Batch, Point, Values
from aie_agent.store import Store
from aie_telemetry.api import DriftCanary, Finding
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.drift_words import of_canary

LEVEL = -4.875
EVERY_S = 60.0


class World:
    """An engine `e` that serves `m` and runs a canary once a minute, in a step of its own where nothing else is said."""

    def __init__(self, *references: Assigned, since_s: float = 0.0) -> None:
        self.store = Store(max_series=1000, retention_s=300.0)
        self.values = RequestValues()
        self.analyser = DriftAnalyser(references, since_s)
        self.now_s = 1000.0
        self.ran = {"ok": 0, "nonfinite": 0}
        self.revision = "r1"
        self._points(math.nan, None)

    def _points(self, logprob: float, noise: float | None = 0.02) -> None:
        own = (("canary", "default"), ("engine", "e"), ("model", "m"))
        info = {"engine": "e", "model": "m", "kind": "aie", "version": "1", "device": "cpu", "dtype": "float32"}
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
            processes=lambda _: [],
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


def test_a_model_that_computes_alike_is_silent_and_a_step_is_found() -> None:
    world = World()
    assert world.runs(*[LEVEL] * 200) == []
    assert world.canary().level_nats == LEVEL
    assert world.runs(LEVEL - 0.15, LEVEL - 0.15) == []
    (finding,) = world.runs(LEVEL - 0.15)
    assert (finding.cause, finding.subject, finding.severity) == ("output_drift", "e", "warning")
    assert finding.since_s == world.now_s - 2 * EVERY_S
    assert "-5.025" in finding.evidence[0].text
    assert "-4.875" in finding.evidence[0].text
    assert world.runs(LEVEL, LEVEL) != []
    assert world.runs(LEVEL) == []


def test_its_metrics_are_those_of_the_catalogue() -> None:
    world = World()
    world.runs(*[LEVEL] * LEARNT)
    points = {point.name: (tuple(sorted(dict(point.tags))), point.value) for point in world.analyser.points(world.now_s)}
    assert points.keys() == {name for name in CATALOGUE if name.startswith("aie_drift_canary_")}
    assert {labels for labels, _ in points.values()} == {("canary", "engine", "model")}
    assert [points[f"aie_drift_canary_{what}"][1] for what in ("level_nats", "limit_nats", "alarm")] == [LEVEL, 0.02, 0.0]


def test_what_is_less_than_its_noise_is_the_same() -> None:
    rng = random.Random(1)
    world = World()
    for _ in range(2000):
        assert world.runs(rng.gauss(LEVEL, 0.02)) == []
    (canary,) = [world.canary()]
    assert canary.limit_nats is not None
    assert 0.06 < canary.limit_nats < 0.3


@pytest.mark.parametrize(
    ("noise", "step", "found"), [(0.02, 0.03, True), (0.25, 0.2, False), (None, 0.2, False), (None, 0.3, True)]
)
def test_what_its_batch_may_do_is_the_same(noise: float | None, step: float, found: bool) -> None:
    world = World()
    world.runs(*[LEVEL] * LEARNT, noise=noise)
    assert bool(world.runs(*[LEVEL + step] * CONSECUTIVE_RUNS, noise=noise)) is found


def test_single_outliers_are_none() -> None:
    rng = random.Random(3)
    world = World()
    world.runs(*[LEVEL] * LEARNT)
    for _ in range(100):
        assert world.runs(*[LEVEL + rng.uniform(-2, 2)] * (CONSECUTIVE_RUNS - 1), LEVEL, LEVEL) == []


def test_a_gpu_that_computes_wrong_two_times_of_three_is_found_and_ends_with_three_that_are_right() -> None:
    watch = CanaryWatch(0.0, 0.02)
    for _ in range(LEARNT):
        watch.take(LEVEL, 0.0)
    began = [watch.take(LEVEL - 5.0 * bool(run % 3), float(run)) for run in range(1, 30)]
    assert began.index(True) + 1 <= OF_RUNS
    assert sum(began) == 1
    assert watch.since_s == 1.0
    restored = CanaryWatch.restored(json.loads(json.dumps(watch.dump())))
    for each in (watch, restored):
        assert [each.take(LEVEL, 40.0 + run) or each.is_new for run in range(CONSECUTIVE_RUNS)] == [True, True, False]
        assert not each.take(LEVEL - 5.0, 50.0), "what ended is not raised anew by the same runs"


def test_what_is_often_wrong_is_remembered_over_a_restart() -> None:
    watch = CanaryWatch(0.0, 0.02)
    for _ in range(LEARNT):
        watch.take(LEVEL, 0.0)
    for run in range(10):
        assert not watch.take(LEVEL - 5.0 * bool(run % 3), float(run))
    restored = CanaryWatch.restored(json.loads(json.dumps(watch.dump())))
    assert [restored.take(LEVEL - 5.0, 10.0), restored.take(LEVEL - 5.0, 11.0)] == [False, True]


def test_no_number_from_the_start_needs_no_level() -> None:
    world = World()
    assert world.runs(math.nan, math.nan) == []
    (finding,) = world.runs(math.nan)
    assert "is no number; it has not given" in finding.evidence[0].text
    assert "the model is broken" in of_canary(world.canary())
    assert world.runs(*[LEVEL] * CONSECUTIVE_RUNS) == []


@pytest.mark.parametrize("noise", [math.inf, math.nan, 0.0, -0.02, 1.5, None])
def test_noise_that_can_be_none_is_not_taken(noise: float | None) -> None:
    assert floor_of(noise) == FLOOR_NATS
    assert floor_of(1.0) == 1.0


def test_no_number_is_another_model() -> None:
    world = World()
    assert world.runs(*[LEVEL] * LEARNT, math.nan, math.nan) == []
    (finding,) = world.runs(math.nan)
    assert "is no number" in finding.evidence[0].text


def test_one_that_says_nothing_is_learnt_anew() -> None:
    watch = CanaryWatch(0.0, FLOOR_NATS)
    for number in range(LEARNT):
        watch.take(-4.0 + number % 2, 0.0)
    assert watch.level is None
    assert watch.is_noisy
    for _ in range(LEARNT):
        watch.take(-4.0, 0.0)
    assert (watch.level, watch.limit, watch.is_noisy) == (-4.0, FLOOR_NATS, False)


def test_one_that_is_too_noisy_says_so() -> None:
    world = World()
    world.runs(*[LEVEL, LEVEL + 1.0] * LEARNT)
    assert of_canary(world.canary()).startswith("default is too noisy")


def test_another_version_of_the_model_has_a_level_of_its_own() -> None:
    world = World()
    world.runs(*[LEVEL] * LEARNT)
    world.revision = "r2"
    assert world.runs(*[-3.0] * 100) == []
    assert world.canary().level_nats == -3.0


def test_nothing_is_said_of_a_canary_that_ended() -> None:
    world = World()
    assert world.runs(*[LEVEL] * LEARNT, *[-3.0] * CONSECUTIVE_RUNS) != []
    world.now_s += SILENT_S + 1.0
    assert world.analyser.findings(world.now_s) == []
    assert {point.name for point in world.analyser.points(world.now_s)} == set()


def test_it_goes_on_after_a_restart_and_forgets_what_the_operator_no_longer_holds_for_right() -> None:
    world = World()
    world.runs(*[LEVEL] * LEARNT, -3.0, -3.0)
    state = json.loads(json.dumps(world.analyser.dump()))
    for since_s, found in ((0.0, True), (world.now_s, False)):
        world.analyser = DriftAnalyser([], since_s)
        world.analyser.restore(state, world.now_s)
        world.observe()  # what ran before is not taken again
        assert bool(world.runs(-3.0)) is found


@pytest.mark.parametrize("broken", [{"x": 1}, [7], [{}], [{"engine": "e", "model": "m", "canary": 1, "revision": "", "watch": {}}]])
def test_state_that_is_none_is_refused(broken: Any) -> None:
    with pytest.raises(ValueError, match=r"canar|begun_s"):
        DriftAnalyser([]).restore({"streams": [], "canaries": broken}, 0.0)


@pytest.fixture(scope="module")
def reference() -> Assigned:
    return Assigned(build(answers(random.Random(1), 1000), About(model="m")), name="chat.aieref")


def test_a_steady_canary_says_that_it_is_the_prompts(reference: Assigned) -> None:
    world = World(reference)
    world.runs(*[LEVEL] * LEARNT)
    (finding,) = world.answers(1000, first_token_logsumexp=1.5)
    assert finding.cause == "input_drift"
    assert "canary default gives -4.875 as before" in finding.evidence[-2].text
    assert finding.not_visible == ()


def test_a_canary_that_changed_says_that_it_is_the_model(reference: Assigned) -> None:
    world = World(reference)
    world.runs(*[LEVEL] * LEARNT)
    world.answers(1000, first_token_logsumexp=1.5)
    (finding,) = world.runs(*[-3.0] * CONSECUTIVE_RUNS)
    assert finding.cause == "output_drift"
    assert finding.evidence[0].text.startswith("canary default")
    assert any(each.text.startswith("first_token_logsumexp") for each in finding.evidence)


def test_a_canary_is_told_before_answers_are_enough(reference: Assigned) -> None:
    world = World(reference)
    world.runs(*[LEVEL] * LEARNT)
    assert world.answers(200, entropy=3.0) == []
    (finding,) = world.runs(*[-3.0] * CONSECUTIVE_RUNS)
    assert finding.summary == "engine e, m: its canary gives another answer than it did (canary default)"


def test_what_is_shown_of_one_that_learns() -> None:
    world = World()
    world.runs(*[LEVEL] * 7)
    assert world.canary() == DriftCanary(
        name="default", runs=7, runs_to_learn=LEARNT, last_run_age_s=0.0, last_nats=LEVEL, level_nats=None, limit_nats=None
    )
