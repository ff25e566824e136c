"""A fault that outlives a restart of its agent is told after it as before: each alert on the series in which it fires, interrupted.

Of the test of each alert the series that fire go on: once they fire they end, as those of a page do whose agent ends, and come back
two intervals later, with the same gauges, while counters begin anew. As long after that as the alert needs, it must fire.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from aie_alerts.scale import duration_s
from tests.fakes.alert_files import ALERT_RULES, NAMES, RULE_FILES, TEST_FILES
from tests.fakes.promtool_series import COUNTERS, MISSING, STALE, Value, expanded, parts, written

NOTHING_TO_OUTLIVE: Final = {
    "AieWatchdog": "it is no alarm",
    "AieAgentDown": "an agent that is back is not down",
    "AieAgentAbsent": "an agent that is back is not absent",
    "AieAgentRestarts": "starts are events: what is told is that there were three",
    "AieAgentProbeChildRestarts": "as above",
    "AieEngineRestarts": "as above, of an engine",
    "AieHostOomKill": "a kill is an event",
    "AieAllocatorRetries": "a retry is an event: its rise within a window is told",
    **{name: "an XID is an event" for name in NAMES if name.startswith("AieGpuXid") and name != "AieGpuXidUnseen"},
}
"""Alerts of what does not last, each with the reason: there is nothing that a restart could interrupt."""

KEPT: Final = re.compile(r"aie_gpu_ecc_|aie_host_")
"""Counters of the driver and the kernel, which do not know that an agent was restarted."""

NOT_AGAIN: Final = {
    "aie_agent_source_last_success_timestamp_seconds",
    "aie_agent_otlp_last_success_timestamp_seconds",
}
"""What an agent does not say of what has failed since it was started anew."""

STARTED: Final = "aie_agent_start_time_seconds"
"""Is of the new run."""

RECOVERY_S: Final = {"AieAgentBlind": 600.0, "AieAgentPushesFail": 1800.0}
"""Alerts with a window of a day, of which they want to find something, and not to see all: so long they take at most."""

_WINDOW: Final = re.compile(r"(\w+_over_time|rate|increase|changes)\([^\[\]]*\[(\w+)")
_OFFSET: Final = re.compile(r"\[\w+\] offset (\w+)\)")


def interrupted(values: Sequence[Value], at: int, until: int, *, is_reset: bool) -> list[Value]:
    """A series that is stale at one moment, missing at the next, and goes on as it would have, until the end."""
    going_on = list(values)
    last, before = (going_on[index] if len(going_on) > 1 else going_on[-1] for index in (-1, -2))
    rises = is_reset and isinstance(last, float) and isinstance(before, float)
    while len(going_on) < until:
        previous = going_on[-1]
        step = float(last) - float(before) if rises else 0.0
        going_on.append(previous + step if isinstance(previous, float) else MISSING)
    zero = next((each for each in reversed(going_on[:at]) if isinstance(each, float)), 0.0) if is_reset else 0.0
    after = [each - zero if isinstance(each, float) else each for each in going_on[at + 2 : until]]
    return [*going_on[:at], STALE, MISSING, *after]


def _recovery_s(name: str) -> float:
    """How long an alert needs after a restart, at most: its windows anew, and its `for`."""
    if name in RECOVERY_S:
        return RECOVERY_S[name]
    found = 0.0
    for rule in ALERT_RULES:
        if rule.name == name:
            windows = [
                duration_s(window) for function, window in _WINDOW.findall(rule.table["expr"]) if function != "last_over_time"
            ]
            offsets = [duration_s(offset) for offset in _OFFSET.findall(rule.table["expr"])]
            found = max(found, max([0, *windows, *offsets]) + duration_s(rule.table["for"]))
    return found


def _is_of_what_fires(series: str) -> bool:
    _, labels = parts(series)
    subjects = {labels[label] for label in ("instance", "engine") if label in labels}
    return "fires" in subjects


def _of_one(name: str, test: dict[str, Any]) -> dict[str, Any] | None:
    """The interrupted test; None where nothing fires in it."""
    fired = [each for each in test["alert_rule_test"] if each["alertname"] == name and each.get("exp_alerts")]
    series = [each for each in test.get("input_series", ()) if _is_of_what_fires(each["series"])]
    if not fired or not series:
        return None
    interval_s = int(duration_s(test["interval"]))
    at = int(duration_s(fired[0]["eval_time"])) // interval_s + 1
    end = at + 3 + int(_recovery_s(name) // interval_s) + 1
    question = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) > bool 0'
    yes = [{"labels": "{}", "value": 1}]
    return {
        "name": f"{name}: {test['name']}",
        "interval": test["interval"],
        "input_series": [
            {
                "series": each["series"],
                "values": _interrupted(each, at, end + 1, interval_s),
            }
            for each in series
        ],
        "promql_expr_test": [
            {"expr": question, "eval_time": f"{moment * interval_s}s", "exp_samples": yes} for moment in (at - 1, end)
        ],
    }


def _interrupted(series: dict[str, str], at: int, until: int, interval_s: int) -> str:
    name, _ = parts(series["series"])
    values = expanded(series["values"])
    if name in NOT_AGAIN:
        values = [*values[:at], STALE]
    elif name == STARTED:
        values = [*values[: at + 2], float((at + 2) * interval_s)]
    return written(interrupted(values, at, until, is_reset=COUNTERS.search(name) is not None and KEPT.match(name) is None))


def _documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """The tests of each file, interrupted."""
    for path in TEST_FILES:
        document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        made = []
        for test in document["tests"]:
            name = test["name"].partition(":")[0]
            if name in NAMES and name not in NOTHING_TO_OUTLIVE and (one := _of_one(name, test)) is not None:
                made.append(one)
        if made:
            rules = [str(path.parent / each) for each in document["rule_files"]]
            yield path.stem, {**document, "rule_files": rules, "tests": made}


DOCUMENTS: Final = dict(_documents())


def test_interrupted() -> None:
    assert interrupted([0.0, 10.0, 20.0], 2, 6, is_reset=True) == [0.0, 10.0, STALE, MISSING, 30.0, 40.0]
    assert interrupted([1.0, 5.0], 2, 6, is_reset=False) == [1.0, 5.0, STALE, MISSING, 5.0, 5.0]
    assert interrupted([1.0, STALE], 1, 4, is_reset=False) == [1.0, STALE, MISSING, MISSING]


def test_each_alert_is_interrupted_or_has_nothing_to_outlive() -> None:
    tried = {test["name"].partition(":")[0] for document in DOCUMENTS.values() for test in document["tests"]}
    assert tried == set(NAMES) - NOTHING_TO_OUTLIVE.keys()
    assert {path.stem for path in RULE_FILES} <= {
        Path(each).stem for document in DOCUMENTS.values() for each in document["rule_files"]
    }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_faults_are_told_over_a_restart_of_the_agent(promtool: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "made.json").write_text(json.dumps(DOCUMENTS[name]))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "made.json")],
        env={**os.environ, "GOGC": "400"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
