"""Answers that are all alike, or scatter less than they ever did; and what is alike and no collapse."""

from __future__ import annotations

import random

import pytest
from fakes.drift_world import MEANS, DriftWorld, answers_of, causes_of, usual_reference

from aie_agent.analysis.drift.analyser import Assigned
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About, Reference

PROMPT, LENGTH = "first_token_logsumexp", "log_length"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return usual_reference()


@pytest.mark.parametrize(
    ("varies", "severity", "said"),
    [
        ({PROMPT}, "critical", "the prompts differ"),
        ({PROMPT, LENGTH}, "critical", "the prompts differ"),
        (set(), "warning", "one prompt again and again"),
        ({LENGTH}, "warning", "one prompt again and again"),
    ],
)
def test_equal_answers_are_a_collapse(reference: Reference, varies: set[str], severity: str, said: str) -> None:
    world = DriftWorld(Assigned(reference))
    for _ in range(12):
        answers = answers_of(world.rng, 10, {})
        found = world.second({name: answers[name] if name in varies else [mean] * 10 for name, mean in MEANS.items()})
    assert [(each.cause, each.severity) for each in found] == [("output_collapse", severity)]
    assert "of the last 120 requests all have the same entropy and surprisal, 100 are too many" in found[0].evidence[0].text
    assert said in found[0].evidence[0].text
    metrics = world.metrics()
    alarms = [metrics["aie_drift_alarm", name] for name in ("entropy", "surprisal", PROMPT, LENGTH)]
    assert alarms == [1.0, 1.0, 0.0, 0.0]
    (shown,) = world.analyser.shown(["e"], world.now_s)
    since_s = found[0].since_s
    assert {each.name: each.alarm_since_s for each in shown.statistics} == {
        "entropy": since_s,
        "surprisal": since_s,
        PROMPT: None,
        LENGTH: None,
    }


@pytest.mark.parametrize("equal", [{LENGTH}, {PROMPT}, {LENGTH, PROMPT}, {"entropy"}, {"surprisal"}, {"entropy", LENGTH, PROMPT}])
def test_a_statistic_that_is_equal_alone_is_no_collapse(reference: Reference, equal: set[str]) -> None:
    world = DriftWorld(Assigned(reference))
    for _ in range(40):
        answers = answers_of(world.rng, 10, {})
        assert world.second({name: [MEANS[name]] * 10 if name in equal else answers[name] for name in MEANS}) == []
    assert all(value == 0.0 for (name, _), value in world.metrics().items() if name == "aie_drift_alarm")


def test_where_prompts_are_not_compared_equal_answers_are_a_warning() -> None:
    columns = answers_of(random.Random(1), 1000, {})
    world = DriftWorld(Assigned(build({name: columns[name] for name in ("entropy", "surprisal")}, About(model="m"))))
    for _ in range(12):
        found = world.second({name: [mean] * 10 for name, mean in MEANS.items()})
    assert [each.severity for each in found] == ["warning"]
    assert "whether prompts differ" in found[0].not_visible[0]


@pytest.mark.parametrize("narrow", [PROMPT, LENGTH])
def test_prompts_and_lengths_that_scatter_less_are_no_collapse(reference: Reference, narrow: str) -> None:
    world = DriftWorld(Assigned(reference))
    for _ in range(110):
        answers = answers_of(world.rng, 10, {})
        answers[narrow] = [world.rng.gauss(MEANS[narrow], 0.2) for _ in range(10)]
        found = world.second(answers)
    assert "output_collapse" not in causes_of(found)
    assert world.metrics()["aie_drift_output_stability_ratio", narrow] < 0.4


def test_answers_that_scatter_less_are_a_collapse(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    for _ in range(110):
        found = world.second({name: [world.rng.gauss(mean, 0.3) for _ in range(10)] for name, mean in MEANS.items()})
    collapse = next(each for each in found if each.cause == "output_collapse")
    assert collapse.severity == "warning"
    assert "scatter 0.29 times" in collapse.evidence[0].text
    assert world.metrics()["aie_drift_output_stability_ratio", "entropy"] < 0.4
