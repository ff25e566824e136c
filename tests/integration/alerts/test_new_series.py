"""What an alert says of the last minutes, of series that are new: a window that is not full yet says nothing of all of it.

Prometheus' functions over a window take what there is of it: the least of ten minutes is one look for who began a moment ago. So
each alert whose expression looks back in that way is given its faulty series from their first moment on. It must not fire before it
can know what it says, and must when it does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from aie_alerts.scale import duration_s
from tests.fakes.alert_files import ALERT_RULES, NAMES, TEST_FILES
from tests.fakes.promtool_series import expanded, parts, written

OF_ALL_OF_IT: Final = re.compile(r"\b(?:avg|min|max|sum|count|quantile|stddev)_over_time\(")
"""Functions whose value is of a whole window. Rates and increases need no guard: what did not rise yet has none."""

SAID_S: Final = {
    "AieAgentBlind": 120,
    "AieAgentPushesFail": 900,
    "AieDriftNotWatched": 3600,
    "AieEngineStalled": 600,
    "AieKvCacheFull": 600,
    "AieAllocatorGap": 1800,
    "AieGpuThrottled": 300,
    "AieGpuLinkGeneration": 300,
}
"""For how long it has been so, by the words of the alert."""

OF_STARTS: Final = {"AieEngineRestarts", "AieHostOomKill"}
"""Look back for what there was before, and count what came: what is new has none."""

WORDS: Final = {
    "five": 5,
    "ten": 10,
    "two": 2,
    "half an hour": 30,
}
STEP_S: Final = 15
SLACK_S: Final = 150
_FOR: Final = re.compile(r"\b[Ff]or (half an hour|(?:two|five|ten)(?= minutes))|best of (five)|of (five) minutes, while")


def said_min(description: str) -> int | None:
    """For how many minutes something was so, as the words say; None where they do not."""
    match = _FOR.search(description)
    return None if match is None else WORDS[next(group for group in match.groups() if group)]


def _new(series: dict[str, str], interval_s: float, until_s: float) -> dict[str, str]:
    """The series as it is at last, from its first moment on."""
    numbers = [each for each in expanded(series["values"]) if isinstance(each, float)]
    slope = (numbers[-1] - numbers[-2]) * STEP_S / interval_s if len(numbers) > 1 else 0.0
    values = [numbers[-1] + slope * index for index in range(int(until_s // STEP_S) + 1)]
    return {"series": series["series"], "values": written(values)}


def _of(name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The first test in which an alert fires, of what fires in it alone."""
    for path in TEST_FILES:
        document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        for test in document["tests"]:
            if test["name"].partition(":")[0] == name:
                yield path, document | {"tests": [test]}


def made(name: str) -> dict[str, Any]:
    """A test of an alert on new series."""
    path, document = next(_of(name))
    (test,) = document["tests"]
    said_s = SAID_S[name]
    until_s = said_s + SLACK_S
    series = [each for each in test["input_series"] if "fires" in parts(each["series"])[1].values()]
    firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
    return document | {
        "rule_files": [str(path.parent / each) for each in document["rule_files"]],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "name": name,
                "interval": f"{STEP_S}s",
                "input_series": [_new(each, duration_s(test["interval"]), until_s) for each in series],
                "promql_expr_test": [
                    {"expr": firing, "eval_time": f"{said_s - STEP_S}s", "exp_samples": []},
                    {
                        "expr": f"{firing} > bool 0",
                        "eval_time": f"{until_s}s",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        ],
    }


def test_every_alert_that_looks_back_is_tried() -> None:
    """Those of objectives are not: how much of a budget is gone is told of as much as there was."""
    looks_back = {rule.name for rule in ALERT_RULES if OF_ALL_OF_IT.search(rule.table["expr"])}
    assert looks_back == SAID_S.keys() | OF_STARTS


def test_what_words_say() -> None:
    for rule in ALERT_RULES:
        said = said_min(rule.table["annotations"]["description"])
        if said is not None:
            assert 60 * said == SAID_S.get(rule.name, duration_s(rule.table["for"])), rule.name
    assert sum(said_min(rule.table["annotations"]["description"]) is not None for rule in ALERT_RULES) >= 10
    assert set(NAMES) >= SAID_S.keys()


@pytest.mark.parametrize("name", SAID_S)
def test_new_series_are_not_told_before_the_window_is_full(promtool: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "made.json").write_text(json.dumps(made(name)))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "made.json")],
        env={**os.environ, "GOGC": "400"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
