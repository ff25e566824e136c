"""Targets that bear further labels, as the Prometheus Operator gives them and static configurations do: every promtool test again,
with two more labels on each series. Each verdict must be as without them: no alert more, none less, each with its labels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.fakes.alert_files import TEST_FILES
from tests.fakes.promtool_series import parts, shown

FURTHER: Final = {"namespace": "serving", "pod": "llama-0"}
_WITHOUT: Final = f"without ({', '.join(FURTHER)})"
PLACES: Final = [path for path in TEST_FILES if not path.stem.endswith(("limits", "hours", "windows"))]
"""Not those that ask the same alerts again, near their limits."""
_NAME: Final = re.compile(r"^[\w:]+(?=\{)|^[\w:]+$")


def with_further_labels(series: str) -> str:
    """The same series of such a target."""
    name, labels = parts(series)
    return shown(name, labels | FURTHER)


def verdicts(test: dict[str, Any]) -> list[dict[str, Any]]:
    """What a test says of alerts, as queries that do not look at the further labels; and its own queries in the same way."""
    found = []
    for each in test.get("alert_rule_test", ()):
        name = each["alertname"]
        query = f'count {_WITHOUT} (ALERTS{{alertname="{name}", alertstate="firing"}})'
        told = [alert["exp_labels"] | {"alertname": name, "alertstate": "firing"} for alert in each.get("exp_alerts", ())]
        samples = [{"labels": shown("", labels), "value": 1} for labels in told]
        found.append({"expr": query, "eval_time": each["eval_time"], "exp_samples": samples})
    for each in test.get("promql_expr_test") or ():
        samples = [{**sample, "labels": _NAME.sub("", sample["labels"]) or "{}"} for sample in each.get("exp_samples") or ()]
        found.append({**each, "expr": f"max {_WITHOUT} ({each['expr']})", "exp_samples": samples})
    return found


def again(path: Path) -> dict[str, Any]:
    """A file of tests with further labels on every series."""
    document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    tests = [
        {
            **{key: value for key, value in test.items() if key != "alert_rule_test"},
            "input_series": [{**each, "series": with_further_labels(each["series"])} for each in test.get("input_series", ())],
            "promql_expr_test": verdicts(test),
        }
        for test in document["tests"]
    ]
    return {**document, "rule_files": [str(path.parent / each) for each in document["rule_files"]], "tests": tests}


def test_a_series_with_further_labels() -> None:
    assert with_further_labels('up{job="a"}') == 'up{job="a", namespace="serving", pod="llama-0"}'
    assert with_further_labels("up") == 'up{namespace="serving", pod="llama-0"}'


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.stem)
def test_verdicts_are_the_same_with_further_labels(promtool: str, tmp_path: Path, path: Path) -> None:
    made = again(path)
    assert all(test["promql_expr_test"] for test in made["tests"])
    (tmp_path / "made.json").write_text(json.dumps(made))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "made.json")],
        env={**os.environ, "GOGC": "400"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
