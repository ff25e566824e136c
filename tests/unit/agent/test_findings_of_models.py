"""Two models of one engine are two: what is found of one hides nothing of the other, wherever findings go."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from fakes.drift_world import MEANS, DriftWorld, answers_of, reference_of

from aie_agent.analysis.causes import EXPLAINS, STEADINESS
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.drift.analyser import Assigned
from aie_agent.analysis.explain import explain
from aie_agent.analysis.findings import as_batch
from aie_agent.analysis.history import FindingHistory
from aie_agent.analysis.steady import Steady
from aie_agent.outputs.degrade import DegradeFile
from aie_agent.outputs.finding_lines import FindingLines
from aie_telemetry.api import Finding, Severity

NOW = 1000.0


def of_model(model: str, severity: Severity = "warning", cause: str = "output_collapse") -> Finding:
    return Finding(cause=cause, subject="e", severity=severity, since_s=NOW, summary=f"{cause} of {model}", model=model)


@pytest.fixture(scope="module")
def shown() -> tuple[Finding, ...]:
    """What the real analyser and diagnosis show where `a` answers all alike, and `b` ever narrower."""
    world = DriftWorld(Assigned(reference_of(model="a")), Assigned(reference_of(model="b")))
    diagnosis, rng, found = Diagnosis((world.analyser,), (), ()), random.Random(5), ()
    for _ in range(120):
        alike = answers_of(world.rng, 10, {}) | {name: [MEANS[name]] * 10 for name in ("entropy", "surprisal")}
        narrow = answers_of(world.rng, 10, {}) | {"entropy": [rng.gauss(MEANS["entropy"], 0.1) for _ in range(10)]}
        world.second(alike, model="a")
        world.second(narrow, model="b")
        found = diagnosis.update(world.view(), world.now_s)
    return found


def test_a_collapse_of_one_model_is_not_lost_behind_that_of_another(shown: tuple[Finding, ...]) -> None:
    collapsed = {each.model: (each.severity, each.explained_by) for each in shown if each.cause == "output_collapse"}
    assert collapsed.keys() == {"a", "b"}
    assert collapsed["a"] == ("critical", "")
    assert collapsed["b"][0] == "warning"


def test_a_drift_of_one_model_explains_nothing_of_another(shown: tuple[Finding, ...]) -> None:
    for each in shown:
        if each.explained_by:
            assert any(other.cause == each.explained_by and other.model in ("", each.model) for other in shown)
    told = explain([of_model("a", cause="input_drift"), of_model("a"), of_model("b")], EXPLAINS, lambda _a, _b: True)
    assert [each.explained_by for each in told] == ["", "input_drift", ""]
    (_, *both) = explain([of_model("", cause="nan_logits"), of_model("a"), of_model("b")], EXPLAINS, lambda _a, _b: True)
    assert [each.explained_by for each in both] == ["nan_logits"] * 2, "NaN is of the engine as a whole"


def test_each_keeps_its_own_severity_and_goes_by_itself() -> None:
    steady = Steady(STEADINESS)
    both = [of_model("a", "critical"), of_model("b", "warning")]
    assert steady.update(both, NOW) == both
    assert steady.update(both[1:], NOW + 1) == both[1:]


def test_the_page_the_lines_the_events_and_the_degrade_file_have_both(tmp_path: Path) -> None:
    both = [of_model("a", "critical"), of_model("b", "critical")]
    points = [dict(point.tags) for point in as_batch([*both, of_model("", cause="engine_down")], (), NOW).points]
    assert [(each["cause"], each.get("model")) for each in points] == [
        ("output_collapse", "a"),
        ("output_collapse", "b"),
        ("engine_down", None),
    ]
    stream, path = io.StringIO(), tmp_path / "degrade"
    lines, history, degrade = FindingLines(stream), FindingHistory(), DegradeFile(path)
    for found in (both, both[1:]):
        lines.update(found, NOW)
        degrade.update(found, NOW)
        events = history.update(found, NOW)
        assert [(each["engine"], each["model"]) for each in map(json.loads, path.read_text().splitlines())] == [
            ("e", finding.model) for finding in found
        ]
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["state"], each["finding"]["model"]) for each in told] == [("begun", "a"), ("begun", "b"), ("over", "a")]
    assert [event.summary for event in events] == ["over after 0 s: output_collapse of a"]
