"""Canaries: what is learnt of one, when it says that the model is another, and that nothing else makes it say so."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from fakes.canary_world import EVERY_S, LEVEL, CanaryWorld, answers

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.canaries import SILENT_S
from aie_agent.analysis.drift.canary import CONSECUTIVE_RUNS, FLOOR_NATS, LEARNT, OF_RUNS, CanaryWatch, floor_of
from aie_agent.analysis.drift.reference import About
from aie_telemetry.api import DriftCanary
from aie_telemetry.catalogue import CATALOGUE
from aie_telemetry.drift_words import of_canary


def test_a_model_that_computes_alike_is_silent_and_a_step_is_found() -> None:
    world = CanaryWorld()
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
    world = CanaryWorld()
    world.runs(*[LEVEL] * LEARNT)
    points = {point.name: (tuple(sorted(dict(point.tags))), point.value) for point in world.analyser.points(world.now_s)}
    assert points.keys() == {name for name in CATALOGUE if name.startswith("aie_drift_canary_")}
    assert {labels for labels, _ in points.values()} == {("canary", "engine", "model")}
    assert [points[f"aie_drift_canary_{what}"][1] for what in ("level_nats", "limit_nats", "alarm")] == [LEVEL, 0.02, 0.0]


def test_what_is_less_than_its_noise_is_the_same() -> None:
    rng = random.Random(1)
    world = CanaryWorld()
    for _ in range(2000):
        assert world.runs(rng.gauss(LEVEL, 0.02)) == []
    (canary,) = [world.canary()]
    assert canary.limit_nats is not None
    assert 0.06 < canary.limit_nats < 0.3


@pytest.mark.parametrize(
    ("noise", "step", "found"), [(0.02, 0.03, True), (0.25, 0.2, False), (None, 0.2, False), (None, 0.3, True)]
)
def test_what_its_batch_may_do_is_the_same(noise: float | None, step: float, found: bool) -> None:
    world = CanaryWorld()
    world.runs(*[LEVEL] * LEARNT, noise=noise)
    assert bool(world.runs(*[LEVEL + step] * CONSECUTIVE_RUNS, noise=noise)) is found


def test_single_outliers_are_none() -> None:
    rng = random.Random(3)
    world = CanaryWorld()
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
    world = CanaryWorld()
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
    world = CanaryWorld()
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
    world = CanaryWorld()
    world.runs(*[LEVEL, LEVEL + 1.0] * LEARNT)
    assert of_canary(world.canary()).startswith("default is too noisy")


def test_another_version_of_the_model_has_a_level_of_its_own() -> None:
    world = CanaryWorld()
    world.runs(*[LEVEL] * LEARNT)
    world.revision = "r2"
    assert world.runs(*[-3.0] * 100) == []
    assert world.canary().level_nats == -3.0


def test_nothing_is_said_of_a_canary_that_ended() -> None:
    world = CanaryWorld()
    assert world.runs(*[LEVEL] * LEARNT, *[-3.0] * CONSECUTIVE_RUNS) != []
    world.now_s += SILENT_S + 1.0
    assert world.analyser.findings(world.now_s) == []
    assert {point.name for point in world.analyser.points(world.now_s)} == set()


def test_it_goes_on_after_a_restart_and_forgets_what_the_operator_no_longer_holds_for_right() -> None:
    world = CanaryWorld()
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
    world = CanaryWorld(reference)
    world.runs(*[LEVEL] * LEARNT)
    (finding,) = world.answers(1000, first_token_logsumexp=1.5)
    assert finding.cause == "input_drift"
    assert "canary default gives -4.875 as before" in finding.evidence[-2].text
    assert finding.not_visible == ()


def test_a_canary_that_changed_says_that_it_is_the_model(reference: Assigned) -> None:
    world = CanaryWorld(reference)
    world.runs(*[LEVEL] * LEARNT)
    world.answers(1000, first_token_logsumexp=1.5)
    (finding,) = world.runs(*[-3.0] * CONSECUTIVE_RUNS)
    assert finding.cause == "output_drift"
    assert finding.evidence[0].text.startswith("canary default")
    assert any(each.text.startswith("first_token_logsumexp") for each in finding.evidence)


def test_a_canary_is_told_before_answers_are_enough(reference: Assigned) -> None:
    world = CanaryWorld(reference)
    world.runs(*[LEVEL] * LEARNT)
    assert world.answers(200, entropy=3.0) == []
    (finding,) = world.runs(*[-3.0] * CONSECUTIVE_RUNS)
    assert finding.summary == "engine e, m: its canary gives another answer than it did (canary default)"


def test_what_is_shown_of_one_that_learns() -> None:
    world = CanaryWorld()
    world.runs(*[LEVEL] * 7)
    assert world.canary() == DriftCanary(
        name="default", runs=7, runs_to_learn=LEARNT, last_run_age_s=0.0, last_nats=LEVEL, level_nats=None, limit_nats=None
    )
