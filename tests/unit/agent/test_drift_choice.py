"""Which reference an engine is compared with, and what is said where there is none that fits."""

from __future__ import annotations

import random

import pytest
from fakes.drift_world import DriftWorld, answers_of, reference_of, usual_reference

from aie_agent.analysis.drift.analyser import Assigned
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About, Reference


@pytest.fixture(scope="module")
def reference() -> Reference:
    return usual_reference()


def test_an_engine_without_a_reference_is_not_compared_and_says_so(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(1000, model="n", entropy=5.0)
    assert world.analyser.findings(world.now_s) == []
    assert world.metrics() == {("aie_drift_watching", ""): 0.0}
    (state,) = world.analyser.shown(["e"], world.now_s)
    assert state.reason == "no reference for the model 'n' (there is one for: m)"


def test_an_engine_whose_hooks_send_nothing_says_so(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    (state,) = world.analyser.shown(["e"], world.now_s)
    assert "its hooks send none" in state.reason
    assert world.metrics() == {}


def test_the_reference_that_names_the_engine_is_taken(reference: Reference) -> None:
    own = build(answers_of(random.Random(5), 1000, {"entropy": 3.0}), About(model="m", traffic_class="own"))
    world = DriftWorld(Assigned(reference), Assigned(own, "e"))
    assert world.requests(1500, entropy=3.0)[-1] == []
    world = DriftWorld(Assigned(reference_of(model="n"), "e"), Assigned(reference))
    world.requests(10)
    assert "there is one for: n" in world.analyser.shown(["e"], world.now_s)[0].reason, (
        "the engine's own is refused, and no other is taken for it"
    )


def test_a_reference_of_another_revision_is_refused() -> None:
    world = DriftWorld(Assigned(reference_of(revision="r1")))
    world.info("r2")
    world.requests(700, entropy=3.0)
    assert world.analyser.findings(world.now_s) == []
    assert "revision r1" in world.analyser.shown(["e"], world.now_s)[0].reason
    world.info("r1")
    assert world.requests(700)[-1] == []
    assert world.analyser.shown(["e"], world.now_s)[0].reason == ""


def test_of_two_revisions_that_a_rollout_keeps_the_served_one_is_taken() -> None:
    world = DriftWorld(Assigned(reference_of(revision="r1")), Assigned(reference_of(revision="r2")))
    world.info("r2")
    world.requests(700)
    (shown,) = world.analyser.shown(["e"], world.now_s)
    assert shown.reason == ""
    world.info("r3")
    world.requests(10)
    assert "revision r1, r2 of the model" in world.analyser.shown(["e"], world.now_s)[0].reason


def test_of_two_classes_of_traffic_none_is_taken_until_the_engine_is_named() -> None:
    chat, code = reference_of(traffic_class="chat"), reference_of(traffic_class="code")
    world = DriftWorld(Assigned(chat), Assigned(code))
    world.requests(10)
    (shown,) = world.analyser.shown(["e"], world.now_s)
    assert shown.reason == "2 references fit ('chat' of ?, 'code' of ?): say which is the engine's (drift.references = ENGINE=FILE)"
    world = DriftWorld(Assigned(chat), Assigned(code, "e"))
    world.requests(10)
    assert world.analyser.shown(["e"], world.now_s)[0].reason == ""


def test_a_reference_without_any_statistic_of_hooks_is_refused() -> None:
    world = DriftWorld(Assigned(build({"x": answers_of(random.Random(5), 1000, {})["entropy"]}, About(model="m"))))
    world.requests(10)
    assert "none of the statistics that hooks send" in world.analyser.shown(["e"], world.now_s)[0].reason
    assert world.metrics() == {("aie_drift_watching", ""): 0.0}


def test_another_version_of_the_model_begins_anew(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.info("r1")
    assert world.requests(600, entropy=1.5)[-1]
    world.now_s += 10
    world.info("r2")
    assert world.requests(400, entropy=1.5)[-1] == []
    assert world.metrics()["aie_drift_windows_total", "entropy"] == 4
