"""Promtool tests made of those in `alerts/tests`: each alert beside its own condition, moment by moment.

An alert of ours is put into a file with a rule that records what its expression says at each evaluation, and is given the series of
its tests, after which nothing comes any more. Then what Prometheus makes of `for` and `keep_firing_for` is compared with what was
recorded, by queries that must find nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml

from tests.fakes.alert_files import ALL, TEST_FILES, Rule

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CONDITION: Final = "aie_test_condition"
_FINEST_S: Final = 30
_LONGEST_STEPS: Final = 2000
"""Of a test: one with more moments is left out, and one that would have more is judged at its own pace."""

_LONG_TAIL: Final = 150
"""Moments more, of tests that take days: their alerts look back for a day."""


class Wait(NamedTuple):
    """How long a condition has to hold until its alert fires, and how long the alert stays when it has ended."""

    for_s: int
    keep_s: int


class Case(NamedTuple):
    """One rule on the series of one test, as a rule file and a test of it. `never` are queries that must find nothing, and `events`
    fail where what they are named for does not happen in it."""

    name: str
    rules: dict[str, Any]
    test: dict[str, Any]
    never: dict[str, str]
    events: dict[str, str]


def seconds(text: str) -> int:
    """Of a duration as Prometheus writes it, with one unit."""
    return int(text[:-1]) * _UNITS_S[text[-1]]


def length(values: str) -> int:
    """How many moments promtool's notation has: `1x5` is six, `_x5` five."""
    found = 0
    for token in values.split():
        times = re.search(r"x(\d+)$", token)
        found += int(times[1]) + (not token.startswith("_")) if times else 1
    return found


def cases(rule: Rule, wait: Wait) -> Iterator[Case]:
    """The rule on each test of its alert, judged as `wait` says."""
    for path in TEST_FILES:
        document = yaml.safe_load(path.read_text())
        files = {name.rpartition("/")[2].removesuffix(".yaml") for name in document["rule_files"]}
        for index, test in enumerate(document["tests"]):
            is_of_it = rule.file in files and test["name"].partition(":")[0] == rule.name
            series = [each["values"] for each in test.get("input_series", ())]  # the dead man's switch needs none
            if is_of_it and series and max(map(length, series)) <= _LONGEST_STEPS:
                yield case(rule, wait, f"{path.stem}_{index}", test, seconds(document["evaluation_interval"]))


def case(rule: Rule, wait: Wait, name: str, test: dict[str, Any], pace_s: int, *, is_recorded: bool = False) -> Case:
    """The rule on the series of a test, looked at each `pace_s` seconds or more often. `is_recorded` says that these are what its
    expression reads, and nothing has to be recorded first."""
    interval_s = seconds(test["interval"])
    moments = max(length(each["values"]) for each in test["input_series"])
    step_s = min(pace_s, _FINEST_S) if moments * interval_s <= _LONGEST_STEPS * _FINEST_S else pace_s
    tail = math.ceil((wait.keep_s + 2 * wait.for_s + 3600) / interval_s) + (_LONG_TAIL if interval_s >= 600 else 0)
    series = [each | {"values": _ended(each["values"], moments, tail)} for each in test["input_series"]]
    end_s = (moments + tail) * interval_s
    records = [] if is_recorded else _needed(rule)
    condition = {"record": _CONDITION, "expr": rule.table["expr"]}
    group = {"name": "all", "rules": [*records, condition, rule.table]}

    never = {what: f"count_over_time(({query})[{end_s}s:{step_s}s])" for what, query in violations(rule, wait, step_s).items()}
    witnesses = {
        what: f"count(count_over_time(({query})[{end_s}s:{step_s}s])) > bool 0" for what, query in events(rule, step_s).items()
    }
    asked = [{"expr": query, "eval_time": f"{end_s}s", "exp_samples": []} for query in never.values()]
    happens = [{"labels": "{}", "value": 1}]
    asked += [{"expr": query, "eval_time": f"{end_s}s", "exp_samples": happens} for query in witnesses.values()]
    one = {"name": name, "interval": test["interval"], "input_series": series, "promql_expr_test": asked}
    return Case(name, {"groups": [group]}, {"evaluation_interval": f"{step_s}s", "tests": [one]}, never, witnesses)


def _needed(rule: Rule) -> list[dict[str, Any]]:
    """The recording rules that its expression reads, or that those read, in their order."""
    records = [other.table for other in ALL if other.file == rule.file and "record" in other.table]
    read, found = rule.table["expr"], []
    for record in reversed(records):
        if record["record"] in read:
            found.append(record)
            read += record["expr"]
    return found[::-1]


def _ended(values: str, moments: int, tail: int) -> str:
    """The series until the test's end, and then nothing."""
    missing = moments - length(values)
    return f"{values} {f'_x{missing} ' if missing else ''}stale _x{tail}"


def _firing(rule: Rule) -> str:
    return f'ALERTS{{alertname="{rule.name}", alertstate="firing"}}'


def _matching(rule: Rule) -> str:
    """The labels that tell an alert from its condition: those that the rule gives, but for one that it passes on."""
    given = [name for name, value in rule.table["labels"].items() if value != f"{{{{ $labels.{name} }}}}"]
    return f"ignoring ({', '.join(['alertname', 'alertstate', *given])})"


def violations(rule: Rule, wait: Wait, step_s: int) -> dict[str, str]:
    """What must never be true, each as a query at one moment; an evaluation is every `step_s`."""
    firing, match = _firing(rule), _matching(rule)
    steps, kept_steps = math.ceil(wait.for_s / step_s), math.ceil(wait.keep_s / step_s)
    half_ms = step_s * 500
    held = f"(count_over_time({_CONDITION}[{steps * step_s * 1000 + half_ms}ms]) >= {steps + 1})"
    lately = f"count_over_time({_CONDITION}[{kept_steps * step_s * 1000 + half_ms}ms])"
    before = f"{firing} offset {step_s}s"
    return {
        "it fires before its condition held for long enough": f"({firing} unless {before}) unless {match} {held}",
        "it does not fire although its condition held for long enough": f"{held} unless {match} {firing}",
        "it ends too early": f"(({before}) and {match} {lately}) unless {firing}",
        "it ends too late": f"{firing} unless {match} {lately}",
    }


def events(rule: Rule, step_s: int) -> dict[str, str]:
    """What has to happen in some test of it, or the violations would have no occasion."""
    firing, match = _firing(rule), _matching(rule)
    return {
        "begins": f"{firing} unless {firing} offset {step_s}s",
        "waits": f'ALERTS{{alertname="{rule.name}", alertstate="pending"}}',
        "stays": f"{firing} unless {match} {_CONDITION}",
        "ends": f"({firing} offset {step_s}s) unless {firing}",
    }
