"""Every promtool test again, on targets with further labels, as the Prometheus Operator and static configurations give them, and
with the windows of Prometheus 3. Each verdict must be as without: no alert more, none less, each with its labels.

promtool is of Prometheus 2, whose windows hold the sample that is just as old as they are long. Those of Prometheus 3 do not. Times
are whole milliseconds, so a window that is one shorter holds the same samples. (Not tried: Prometheus 3 has a sample
that is just five minutes old for gone, too, where no window is asked for.)
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

from aie_alerts.scale import milliseconds
from tests.fakes.alert_files import RULE_FILES, TEST_FILES
from tests.fakes.promtool_series import parts, shown

FURTHER: Final = {"namespace": "serving", "pod": "llama-0"}
_WITHOUT: Final = f"without ({', '.join(FURTHER)})"
_WINDOW: Final = re.compile(r"\[(\w+)(?=[:\]])")
_NAME: Final = re.compile(r"^[\w:]+(?=\{)|^[\w:]+$")


def with_further_labels(series: str) -> str:
    """The same series of such a target."""
    name, labels = parts(series)
    return shown(name, labels | FURTHER)


def left_open(text: str) -> str:
    """Rules or a query with windows that begin after the moment at which they begin now."""
    return _WINDOW.sub(lambda match: f"[{milliseconds(match[1]) - 1}ms", text)


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
        found.append({**each, "expr": f"max {_WITHOUT} ({left_open(each['expr'])})", "exp_samples": samples})
    return found


def again(path: Path, rules: Path) -> dict[str, Any]:
    """A file of tests with further labels on every series, of the rules in a folder."""
    document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    tests = [
        {
            **{key: value for key, value in test.items() if key != "alert_rule_test"},
            "input_series": [{**each, "series": with_further_labels(each["series"])} for each in test.get("input_series", ())],
            "promql_expr_test": verdicts(test),
        }
        for test in document["tests"]
    ]
    return {**document, "rule_files": [str(rules / Path(each).name) for each in document["rule_files"]], "tests": tests}


def test_a_series_with_further_labels() -> None:
    assert with_further_labels('up{job="a"}') == 'up{job="a", namespace="serving", pod="llama-0"}'
    assert with_further_labels("up") == 'up{namespace="serving", pod="llama-0"}'


def test_windows_that_begin_after_their_moment() -> None:
    assert left_open("rate(a[5m]) > max_over_time(b[1h:30s])") == "rate(a[299999ms]) > max_over_time(b[3599999ms:30s])"
    assert left_open('{engine=~"[a-z]+"}') == '{engine=~"[a-z]+"}'


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_verdicts_are_the_same(promtool: str, tmp_path: Path, path: Path) -> None:
    for rules in RULE_FILES:
        (tmp_path / rules.name).write_text(left_open(rules.read_text()))
    made = again(path, tmp_path)
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
