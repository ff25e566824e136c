"""A model that gives NaN, as its hooks tell it; and what hooks drop for other reasons."""

from __future__ import annotations

import msgspec
import pytest
from fakes.drift_world import START_S, DriftWorld, answers_of, causes_of, usual_reference

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.drift.reference import Reference
from aie_agent.request_values import RequestValues
from aie_agent.samples import Point
from aie_telemetry.catalogue import Kind


@pytest.fixture(scope="module")
def reference() -> Reference:
    return usual_reference()


def _dropped(count: float) -> Point:
    return Point("aie_hooks_dropped_total", Kind.COUNTER, (("engine", "e"), ("reason", "invalid")), count, delta=True)


@pytest.mark.parametrize("references", [True, False])
def test_nan_is_found_within_ten_answers_and_needs_no_reference(reference: Reference, references: bool) -> None:
    world = DriftWorld(*([Assigned(reference)] if references else []))
    world.requests(100)
    found = [world.second({"log_length": [4.0] * 5}, [_dropped(15)]) for _ in range(3)]
    assert [causes_of(each) for each in found] == [[], ["nan_logits"], ["nan_logits"]]
    (finding,) = found[-1]
    assert finding.severity == "critical"
    assert finding.since_s == START_S + 11
    said = (
        "15 answers in a row had no entropy, 10 are too many; with the last 10 of them came numbers that hooks dropped as none: 30"
    )
    assert [each.text for each in finding.evidence] == [said]
    healthy = world.requests(700)
    (shown,) = healthy[30]
    assert shown.evidence == finding.evidence, "it is shown for a minute, with what told of it"
    assert healthy[-1] == []


@pytest.mark.parametrize(("references", "before"), [(True, 100), (False, 100), (False, 0)])
def test_entropies_that_no_float32_holds_are_nan_too(reference: Reference, references: bool, before: int) -> None:
    world = DriftWorld(*([Assigned(reference)] if references else []))
    world.requests(before)
    found = [world.second({"entropy": [1e39] * 5, **_lengths(0)}) for _ in range(3)]
    assert [causes_of(each) for each in found] == [[], ["nan_logits"], ["nan_logits"]]
    (evidence,) = found[-1][0].evidence
    said = "15 answers in a row had no entropy, 10 are too many; with the last 10 of them came entropies that no float32 holds: 10"
    assert evidence.text == said
    assert world.requests(700)[-1] == []


def test_of_both_kinds_both_counts_are_said(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(100)
    for number in range(11):
        found = world.second(_lengths(number, 1) | ({"entropy": [1e39]} if number == 3 else {}), [_dropped(number != 3)])
    ((evidence,),) = [each.evidence for each in found]
    assert evidence.text == (
        "11 answers in a row had no entropy, 10 are too many; with the last 10 of them came numbers that hooks dropped as none: 9,"
        " entropies that no float32 holds: 1"
    )
    assert evidence.metric == "aie_hooks_dropped_total"


@pytest.mark.parametrize("references", [True, False])
@pytest.mark.parametrize("at_once", [1, 10, 400])
@pytest.mark.parametrize(("of_a_hundred", "told"), [(9, False), (10, True), (40, True)])
def test_a_tenth_of_the_last_entropies_is_nan_whatever_else_came(
    reference: Reference, references: bool, at_once: int, of_a_hundred: int, told: bool
) -> None:
    world = DriftWorld(*([Assigned(reference)] if references else []))
    causes = set()
    for number in range(0, 800, at_once):
        bad = [(at * of_a_hundred) % 100 < of_a_hundred for at in range(number, number + at_once)]
        answers = answers_of(world.rng, at_once, {})
        entropies = [1e39 if none else good for none, good in zip(bad, answers["entropy"], strict=True)]
        found = world.second(answers | {"entropy": entropies})
        causes |= set(causes_of(found))
    assert causes == ({"nan_logits"} if told else set())
    if told:
        (finding,) = found
        count = max(100, at_once)
        many = count * of_a_hundred // 100
        said = f"{many} of {count} entropies that came are none, no float32 holds them: a tenth are too many"
        assert [(each.text, each.metric) for each in finding.evidence] == [(said, "aie_engine_output_entropy_nats")]
        assert world.requests(700)[-1] == []


def test_a_few_entropies_that_no_float32_holds_are_no_finding_and_an_alarm_that_ends(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    for _ in range(30):
        answers = answers_of(world.rng, 12, {})
        assert world.second(answers | {"entropy": [*answers["entropy"][:11], 1e39]}) == []
    assert world.metrics()["aie_drift_alarm", "entropy"] == 1.0
    assert all(found == [] for found in world.requests(200))
    assert world.metrics()["aie_drift_alarm", "entropy"] == 0.0


def _lengths(number: int, count: int = 5) -> dict[str, list[float]]:
    return {"log_length": [4.0 + number / 100] * count}


def test_hooks_of_another_kind_that_drop_are_no_nan(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    for number in range(30):
        assert world.second({"entropy": [2.0 + number / 100], **_lengths(number)}, [_dropped(15)]) == []
        assert world.second({}, [_dropped(15)]) == []


def test_an_engine_that_never_told_an_entropy_gives_no_nan(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    assert all(world.second(_lengths(number), [_dropped(15)]) == [] for number in range(30))


def test_what_is_dropped_far_from_the_answers_is_of_something_else(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(100)
    for number in range(300):
        answers = _lengths(number, 1) if number % 30 == 15 else {}
        assert world.second(answers, [] if 4 <= number % 30 <= 26 else [_dropped(15)]) == []


def test_lengths_alone_while_nothing_is_dropped_are_no_nan(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(100)
    assert all(world.second(_lengths(number)) == [] for number in range(30))


def test_fewer_numbers_dropped_than_answers_came_are_no_nan(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(100)
    assert all(world.second(_lengths(number), [_dropped(1)]) == [] for number in range(30))


@pytest.mark.parametrize("restarted", ["agent", "engine"])
def test_a_restart_does_not_hide_nan(reference: Reference, restarted: str) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(100)
    if restarted == "agent":
        state = msgspec.json.decode(msgspec.json.encode(world.analyser.dump()))
        world.analyser, world.values = DriftAnalyser([Assigned(reference)]), RequestValues()
        world.analyser.restore(state, world.now_s)
    else:
        world.engines = []
        world.second({})
        world.engines = ["e"]
    found = [world.second(_lengths(0), [_dropped(15)]) for _ in range(3)]
    assert causes_of(found[-1]) == ["nan_logits"]


def test_rare_answers_without_numbers_are_nan(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(100)
    for number in range(300):
        found = world.second(_lengths(number, 1) if number % 30 == 15 else {}, [_dropped(9)] if number % 30 == 18 else [])
    assert causes_of(found) == ["nan_logits"]


def test_nan_in_a_watched_layer_is_found_at_once() -> None:
    world = DriftWorld()

    def layer(count: float) -> Point:
        tags = (("engine", "e"), ("layer", "l"), ("model", "m"))
        return Point("aie_engine_activation_nonfinite_total", Kind.COUNTER, tags, count, delta=True)

    assert world.second({}, [layer(0)]) == []
    (finding,) = world.second({}, [layer(7)])
    assert (finding.cause, finding.since_s) == ("nan_logits", START_S + 2)
    assert "7 values of watched layers" in finding.evidence[0].text
