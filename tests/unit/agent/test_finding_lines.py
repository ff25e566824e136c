"""Findings as lines of JSON."""

from __future__ import annotations

import io
import json

import msgspec
import pytest

from aie_agent.outputs.finding_lines import FindingLines
from aie_telemetry import api


def _finding(cause: str, severity: api.Severity = "warning", explained_by: str = "") -> api.Finding:
    return api.Finding(cause=cause, subject="chat", severity=severity, since_s=1.0, summary="s", explained_by=explained_by)


def test_what_comes_changes_and_goes_is_a_line_each() -> None:
    stream = io.StringIO()
    lines = FindingLines(stream)
    for second, findings in enumerate(
        ([], [_finding("a")], [_finding("a"), _finding("b")], [_finding("a", "critical"), _finding("b", explained_by="a")], [])
    ):
        lines.update(findings, float(second))
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["time_s"], each["state"], each["finding"]["cause"]) for each in told] == [
        (1.0, "begun", "a"), (2.0, "begun", "b"), (3.0, "changed", "a"), (3.0, "changed", "b"),
        (4.0, "over", "a"), (4.0, "over", "b"),
    ]  # fmt: skip
    assert told[2]["finding"]["severity"] == "critical"
    assert told[3]["finding"]["explained_by"] == "a"


def test_another_subject_that_explains_it_is_a_change() -> None:
    stream = io.StringIO()
    lines = FindingLines(stream)
    for second, gpu in enumerate(("gpu0", "gpu0", "gpu1")):
        finding = msgspec.structs.replace(_finding("slow", explained_by="hot"), explained_by_subject=gpu)
        lines.update([finding], float(second))
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["state"], each["finding"]["explained_by_subject"]) for each in told] == [("begun", "gpu0"), ("changed", "gpu1")]


def test_a_reader_that_goes_away_ends_it_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    stream.close()
    lines = FindingLines(stream)
    lines.update([_finding("a")], 0.0)
    lines.update([], 1.0)
    assert caplog.text.count("no longer written") == 1


def test_off_by_default() -> None:
    FindingLines(None).update([_finding("a")], 0.0)
