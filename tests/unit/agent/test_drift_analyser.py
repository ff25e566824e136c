"""The analyser of drift: what hooks sent in, findings and metrics out; and all that is normal and is none."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from fakes.drift_world import METRIC, START_S, DriftWorld, answers_of, causes_of, usual_reference

from aie_agent.analysis.drift.analyser import Assigned
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About, Aim, Reference
from aie_agent.samples import Batch, Tags, Values
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import CATALOGUE


@pytest.fixture(scope="module")
def reference() -> Reference:
    return usual_reference()


def test_normal_traffic_of_a_day_is_no_finding(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    assert all(not found for found in world.requests(30_000))
    assert world.metrics()["aie_drift_windows_total", "entropy"] == 300


@pytest.mark.parametrize(
    ("shifts", "cause", "named"),
    [
        ({"first_token_logsumexp": 1.0}, "input_drift", ["first_token_logsumexp"]),
        ({"first_token_logsumexp": 1.0, "entropy": 1.0}, "input_drift", ["entropy", "first_token_logsumexp"]),
        ({"entropy": -1.0}, "output_drift", ["entropy"]),
        ({"log_length": 1.0, "surprisal": 1.0}, "output_drift", ["surprisal", "log_length"]),
    ],
)
def test_a_shift_is_named_by_what_shifted(reference: Reference, shifts: dict[str, float], cause: str, named: list[str]) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(1000)
    found = world.requests(1000, **shifts)
    first = next(index for index, each in enumerate(found) if each)
    assert 49 <= first <= 59
    (finding,) = found[-1]
    assert (finding.cause, finding.subject, finding.severity) == (cause, "e", "warning")
    assert finding.since_s == START_S + 100 + 10, "when the first window of the alarm was complete"
    assert all(name in finding.summary for name in named)
    *shifted, rule = finding.evidence
    assert list(dict.fromkeys(each.text.split(" ")[0].rstrip(":") for each in shifted)) == named
    assert "days at the present rate, for traffic as it was while the reference was recorded, for an unknown time" in rule.text
    assert "a reference of 1000 requests" in rule.text
    assert all(each.metric in CATALOGUE for each in finding.evidence)
    assert finding.confidence is not None
    assert finding.confidence > 0.99


def test_a_few_requests_far_out_are_told_with_the_numbers_that_say_so(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    for _ in range(60):
        answers = answers_of(world.rng, 10, {})
        far = [50.0 if world.rng.random() < 0.08 else value for value in answers["entropy"]]
        found = world.second(answers | {"entropy": far})
    (finding,) = found
    assert finding.cause == "output_drift"
    assert [each.metric for each in finding.evidence[:-1]] == ["aie_drift_outside_ratio", "aie_drift_unseen_ratio"]
    metrics = world.metrics()
    assert metrics["aie_drift_consecutive_windows", "entropy"] >= 5
    assert metrics["aie_drift_distance_ratio", "entropy"] < metrics["aie_drift_threshold_ratio", "entropy"]
    assert 0.04 <= metrics["aie_drift_unseen_ratio", "entropy"] <= metrics["aie_drift_outside_ratio", "entropy"]
    unseen = f"entropy: {100 * metrics['aie_drift_unseen_ratio', 'entropy']:.0f} of the last 100 requests outside"
    assert finding.evidence[1].text.startswith(unseen)
    assert metrics["aie_drift_unseen_ratio", "surprisal"] == 0.0


@pytest.mark.parametrize(
    ("cause", "shifts", "windows"),
    [
        ("input_drift", {"first_token_logsumexp": 1.0}, 4),
        ("input_drift", {"first_token_logsumexp": 0.05}, 40),
        ("output_drift", {"entropy": -1.0}, 4),
        ("output_drift", {"log_length": 0.05, "surprisal": 0.05}, 40),
    ],
)
def test_what_shifts_for_four_windows_or_by_little_is_no_drift(
    reference: Reference, cause: str, shifts: dict[str, float], windows: int
) -> None:
    """A window less than the rule asks for, again and again; and a twentieth of a standard deviation, which is within chance."""
    world = DriftWorld(Assigned(reference))
    for _ in range(3):
        found = [*world.requests(100 * windows, **shifts), *world.requests(600)]
        assert cause not in [each for second in found for each in causes_of(second)]


def test_where_more_is_asked_than_the_reference_was_made_for_it_says_that_chance_comes_sooner() -> None:
    aim = Aim(days=100_000, requests_per_second=0.1)
    world = DriftWorld(Assigned(build(answers_of(random.Random(1), 1000, {}), About(model="m"), aim)))
    (finding,) = world.requests(3000, entropy=1.0)[-1]
    said = next(each.text for each in finding.evidence if each.metric == "aie_drift_run_length_requests")
    assert (
        "(not the 100000 days that it was made for: 10 requests a second are looked at, not 0.1; make one with --rate 10)" in said
    )
    (shown,) = world.analyser.shown(["e"], world.now_s)
    assert shown.run_length_s is not None
    assert shown.promised_s is not None
    assert shown.run_length_s < shown.promised_s


@pytest.mark.parametrize(("each_of", "said"), [(1, "a reference of 2000 requests)"), (5, "fewer than 500 it may come more often)")])
def test_where_values_depend_on_each_other_it_says_of_how_many_independent_ones(each_of: int, said: str) -> None:
    """Sessions: so many requests in a row that are alike but for a tenth."""
    rng = random.Random(1)

    def entropies(count: int, mean: float) -> list[float]:
        levels = [rng.gauss(mean, 1.0) for _ in range(count // each_of)]
        return [level + rng.gauss(0.0, 0.1) for level in levels for _ in range(each_of)]

    world = DriftWorld(Assigned(build({"entropy": entropies(2000, 2.0)}, About(model="m"))))
    shifted = entropies(2000, 6.0)
    for at in range(0, len(shifted), 10):
        found = world.second({"entropy": shifted[at : at + 10]})
    (finding,) = found
    assert finding.evidence[-1].text.endswith(said)


def test_the_finding_ends_when_traffic_is_as_before(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(600, entropy=1.5)
    assert causes_of(world.requests(10)[-1]) == ["output_drift"]
    found = world.requests(600)
    assert causes_of(found[40]) == ["output_drift"]
    assert found[-1] == []


def test_nothing_is_said_of_traffic_that_ended(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    assert world.requests(600, entropy=1.5)[-1]
    world.now_s += 3601
    assert world.second({}) == []
    assert world.metrics() == {}


def test_every_metric_is_in_the_catalogue_with_its_labels(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(1500)
    points = world.analyser.points(world.now_s)
    assert {point.name for point in points} == {
        name for name in CATALOGUE if name.startswith("aie_drift_") and "_canary_" not in name
    }
    for point in points:
        assert {label for label, _ in point.tags} == set(CATALOGUE[point.name].labels)
        assert point.kind is CATALOGUE[point.name].kind
    assert list(points[0].tags) == sorted(points[0].tags)


def test_the_same_views_give_the_same_findings(reference: Reference) -> None:
    def run() -> list[Sequence[Finding]]:
        world = DriftWorld(Assigned(reference))
        return world.requests(500) + world.requests(700, surprisal=1.0)

    assert run() == run()


def test_a_flood_is_bounded_and_told(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    tags: Tags = (("engine", "e"), ("model", "m"))
    batch = Batch("statsd", 1001.0, values=[Values(METRIC["entropy"], tags, (2.0,) * 1000, lost=500) for _ in range(100)])
    world.values.take(batch)
    world.analyser.observe(world.view(), 1001.0)
    metrics = world.metrics()
    assert metrics["aie_drift_values_total", "entropy"] == 20_000
    assert metrics["aie_drift_values_lost_total", "entropy"] == 10_000


def test_many_engines_are_bounded(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    for number in range(200):
        tags: Tags = (("engine", f"e{number}"), ("model", "m"))
        world.values.take(Batch("statsd", 1001.0, values=[Values(METRIC["entropy"], tags, (2.0,))]))
        world.analyser.observe(world.view(), 1001.0 + number)
    assert len([key for key in world.analyser.points(1201.0) if key.name == "aie_drift_watching"]) == 64
