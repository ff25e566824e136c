"""Statistics whose reference is constant, or has few values: a canary, the length of short answers, a flag."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from fakes.drift_world import DriftWorld, answers_of

from aie_agent.analysis.drift.analyser import Assigned
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.offline import Verdict, judge
from aie_agent.analysis.drift.reference import About, Reference
from aie_agent.analysis.drift.verdicts import drift_findings
from aie_agent.analysis.drift.watch import Window

ABOUT = About(model="m")
CANARY = -4.875


def _normal(count: int, seed: int, mean: float = 3.0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(mean, 0.5) for _ in range(count)]


def _short(count: int, seed: int) -> list[float]:
    """Answers of one to three tokens."""
    rng = random.Random(seed)
    return [float(rng.choice([1, 1, 2, 2, 3])) for _ in range(count)]


@pytest.fixture(scope="module")
def reference() -> Reference:
    columns = {"entropy": _normal(1000, 1), "surprisal": _normal(1000, 2), "tokens": _short(1000, 3), "canary": [CANARY] * 1000}
    return build(columns, ABOUT)


def _judge(reference: Reference, **changed: Sequence[float]) -> Verdict:
    usual = {"entropy": _normal(1000, 4), "surprisal": _normal(1000, 5), "tokens": _short(1000, 6), "canary": [CANARY] * 1000}
    return judge(reference, usual | changed)


def test_an_equal_canary_is_never_an_alarm(reference: Reference) -> None:
    assert not _judge(reference).alarm
    assert not _judge(reference, canary=[CANARY + 1e-5 * (row % 3) for row in range(1000)]).alarm, "last bits"
    alone = build({"canary": [CANARY] * 600}, ABOUT)
    same = judge(alone, {"canary": [CANARY] * 1000})
    assert (same.alarm, same.state) == (False, "ok")


@pytest.mark.parametrize("canary", [[-9.5] * 1000, [CANARY + 0.02] * 1000, [CANARY, -9.5] * 500])
def test_a_canary_that_changed_is_an_alarm(reference: Reference, canary: list[float]) -> None:
    found = _judge(reference, canary=canary)
    assert (found.statistic, found.check, found.first_alarm_request) == ("canary", "out_of_range", 500)
    assert found.per_statistic["canary"].untested == "1 distinct values, fewer than 20"


def test_a_canary_that_changed_too_late_for_an_alarm_is_unsteady(reference: Reference) -> None:
    changed = _judge(reference, canary=[CANARY] * 600 + [-9.5] * 400)
    assert (changed.alarm, changed.unsteady) == (False, ("canary",))
    assert any(each.startswith("canary: 4 windows hold too many values that differ from -4.8") for each in changed.warnings)
    assert _judge(reference, canary=[CANARY] * 700 + [-9.5] * 300).unsteady == ()


def test_values_that_short_answers_never_had_are_an_alarm(reference: Reference) -> None:
    found = _judge(reference, tokens=[200.0] * 1000)
    assert (found.statistic, found.check, found.first_alarm_request) == ("tokens", "out_of_range", 500)


def test_few_values_raise_nothing_in_normal_traffic() -> None:
    """No window of two thousand has ten values outside: the chance of one is below 1e-6."""
    watched = build({"tokens": _short(1000, 3), "entropy": _normal(1000, 1)}, ABOUT)
    verdict = judge(watched, {"tokens": _short(200_000, 7), "entropy": _normal(200_000, 8)})
    assert not verdict.per_statistic["tokens"].alarm


def test_a_constant_column_does_not_hide_that_answers_are_all_alike(reference: Reference) -> None:
    found = _judge(reference, entropy=[3.0] * 1000, surprisal=[2.5] * 1000, tokens=[2.0] * 1000)
    assert (found.check, found.first_alarm_request) == ("constant", 100)
    assert not found.per_statistic["canary"].alarm


def test_an_engine_whose_length_never_varied_and_now_does_is_found() -> None:
    """Live, of what is not compared; and what is not compared hides no collapse."""
    columns = answers_of(random.Random(1), 1000, {})
    world = DriftWorld(Assigned(build(columns | {"log_length": [0.0] * 1000}, ABOUT)))
    for _ in range(60):
        assert world.second(answers_of(world.rng, 10, {}) | {"log_length": [0.0] * 10}) == []
    for _ in range(60):
        found = world.second(answers_of(world.rng, 10, {}) | {"log_length": [5.3] * 10})
    (finding,) = found
    assert finding.cause == "output_drift"
    assert finding.evidence[0].text.startswith("log_length: 100 of the last 100 requests outside 0 to 0")
    assert finding.confidence is not None
    assert finding.confidence > 0.99
    assert world.metrics()["aie_drift_outside_ratio", "log_length"] == 1.0
    assert world.metrics()["aie_drift_consecutive_windows", "log_length"] == 6


@pytest.mark.parametrize("taken", [0, 10**10])
def test_confidence_goes_with_the_distance_and_not_with_how_long_it_ran(taken: int) -> None:
    """The last window is set to just at the threshold, and to beyond it."""
    world = DriftWorld(Assigned(build(answers_of(random.Random(1), 1000, {}), ABOUT)))
    found = next(each for each in world.requests(500, entropy=0.8) if each)
    stream = world.analyser._streams["e", "m"]
    watch = stream.watches["entropy"]
    watch.taken += taken
    told = []
    for beyond in (0.0, 0.01, 0.3):
        watch.last = Window(watch.column.threshold + beyond, 0)
        (finding,) = drift_findings("e", "m", stream, {}, world.now_s)
        told.append(finding.confidence or 0.0)
    assert found[0].confidence is not None
    assert 0.5 <= told[0] < told[1] < told[2]
    assert told[2] > 0.99
