"""References of which nothing can be compared: live they are held to what they are held to offline, and say the same of it."""

from __future__ import annotations

import math
import random

import pytest
from fakes.drift_world import DriftWorld, causes_of

from aie_agent.analysis.drift.analyser import Assigned
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.offline import judge
from aie_agent.analysis.drift.reference import About, Reference
from aie_telemetry.api import Finding
from aie_telemetry.drift_words import told

ANSWERS = ("entropy", "surprisal")


def _walk(seed: int, count: int) -> list[float]:
    rng = random.Random(seed)
    walk = [0.0]
    for _ in range(count - 1):
        walk.append(0.99 * walk[-1] + rng.gauss(0, 1))
    return walk


@pytest.fixture(scope="module")
def reference() -> Reference:
    made = build({name: _walk(seed, 2000) for seed, name in enumerate(ANSWERS, 1)}, About(model="m"))
    assert not any(column.tells for column in made.header.columns)
    return made


def _live(world: DriftWorld, stream: dict[str, list[float]]) -> list[list[Finding]]:
    """What was found after each ten requests."""
    length = len(stream["entropy"])
    return [list(world.second({name: stream[name][at : at + 10] for name in stream})) for at in range(0, length, 10)]


@pytest.mark.parametrize(
    ("stream", "check", "cause"),
    [
        ({"entropy": [value + 200 for value in _walk(3, 700)], "surprisal": _walk(4, 700)}, "out_of_range", "output_drift"),
        ({name: [*_walk(seed, 300), *[1.0] * 200] for seed, name in enumerate(ANSWERS, 3)}, "constant", "output_collapse"),
        ({name: _walk(seed, 700) for seed, name in enumerate(ANSWERS, 3)}, None, None),
    ],
)
def test_live_is_as_offline(reference: Reference, stream: dict[str, list[float]], check: str | None, cause: str | None) -> None:
    verdict = judge(reference, stream)
    world = DriftWorld(Assigned(reference))
    found = _live(world, stream)
    first = next((10 * (index + 1) for index, each in enumerate(found) if each), None)
    assert (verdict.check, verdict.first_alarm_request) == (check, first)
    assert causes_of(found[-1]) == ([] if cause is None else [cause])


def test_what_is_no_number_is_an_alarm_live_as_offline(reference: Reference) -> None:
    stream = {"entropy": [*_walk(3, 99), math.nan], "surprisal": _walk(4, 100)}
    world = DriftWorld(Assigned(reference))
    _live(world, stream)
    assert judge(reference, stream).check == "nonfinite"
    assert world.metrics()["aie_drift_alarm", "entropy"] == 1.0


def test_it_says_why_nothing_is_compared_as_the_reference_does_and_claims_no_run_length(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference, name="walk.aieref"))
    found = _live(world, {"entropy": [value + 200 for value in _walk(3, 700)], "surprisal": _walk(4, 700)})
    (shown,) = world.analyser.shown(["e"], world.now_s)
    assert shown.reference.startswith("walk.aieref ")
    assert all(f"{column.name}: {column.untested}" in told(shown) for column in reference.header.columns)
    assert (shown.run_length_requests, shown.run_length_s) == (None, None)
    assert "how often chance does this is not known" in found[-1][0].evidence[-1].text
    metrics = world.metrics()
    assert metrics["aie_drift_watching", ""] == 0.0
    assert not [name for name, _ in metrics if "run_length" in name]
