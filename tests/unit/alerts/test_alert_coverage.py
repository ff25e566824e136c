"""That nothing is left out: every cause has an alert, every XID its family, every alert its promtool tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import pytest
import yaml

from aie_agent.analysis.causes import ENGINE_CAUSES, OF_SUBJECTS
from aie_telemetry.clock_events import CLOCK_EVENTS, WARM
from aie_telemetry.xids import SEVERITIES, XIDS
from alerts import build
from tests.fakes.alert_files import ALERT_RULES, ALERTS, NAMES, TEST_FILES

CAUSES: Final = {cause.__name__ for cause in ENGINE_CAUSES} | OF_SUBJECTS
OF_NUMBERS: Final = {
    "agent_blind": "AieAgentBlind",
    "series_refused": "AieAgentSeriesRefused",
    "gpu_lost": "AieGpuLost",
    "gpu_thermal": "AieGpuThrottled",
    "gpu_power_brake": "AieGpuThrottled",
    "gpu_slowed": "AieGpuThrottled",
    "gpu_ecc": "AieGpuEccUncorrected",
    "gpu_row_remap": "AieGpuRowRemapPending",
    "gpu_row_remap_failed": "AieGpuRowRemapFailed",
    "gpu_link_width": "AieGpuLinkWidth",
    "gpu_link_generation": "AieGpuLinkGeneration",
    "gpu_orphan": "AieGpuOrphans",
    **{f"gpu_xid_{family}": f"AieGpuXid{family.capitalize()}" for family in (*SEVERITIES, "unknown")},
}
"""Causes that an alert tells from the numbers, and not by the finding."""

KINDS: Final = ("fires", "healthy", "flaps", "restarts", "gaps")
ALWAYS: Final = {"AieWatchdog"}
"""Alerts that are no alarms: there is nothing in which they may be silent."""
STEADY: Final = ("flaps", "restarts", "gaps")


def selectors(query: str) -> list[Any]:
    found: list[Any] = []
    promql.walk(promql.parse(query), found.append)
    return [node for node in found if isinstance(node, promql.VectorSelector)]


def told_selectors(node: Any) -> list[Any]:
    """Those whose series an expression tells: not what stands right of `unless` and `and`, which only take some of them out."""
    if isinstance(node, promql.ParenExpr):
        return told_selectors(node.expr)
    if isinstance(node, promql.BinaryExpr) and str(node.op) in {"unless", "and"}:
        return told_selectors(node.lhs)
    if isinstance(node, promql.BinaryExpr):
        return told_selectors(node.lhs) + told_selectors(node.rhs)
    found: list[Any] = []
    promql.walk(node, found.append)
    return [each for each in found if isinstance(each, promql.VectorSelector)]


def values(found: list[Any], metric: str, label: str) -> set[str]:
    """Those that the matchers of a label list, of the selectors of a metric."""
    matchers = [matcher for each in found if each.name == metric for matcher in each.matchers.matchers if matcher.name == label]
    return {value for matcher in matchers for value in matcher.value.split("|")}


def matched(rule_name: str, metric: str, label: str) -> set[str]:
    """The values that an alert's matchers of a label list."""
    found = [each for rule in ALERT_RULES if rule.name == rule_name for each in selectors(rule.table["expr"])]
    return values(found, metric, label)


def test_findings_without_an_alert_are_told_by_the_general_ones() -> None:
    """What these leave out is what other alerts tell, no more and no less."""
    general = {"AieFindingCritical", "AieFindingWarning"}
    told = {cause for name in set(NAMES) - general for cause in matched(name, "aie_finding", "cause")}
    assert told.isdisjoint(OF_NUMBERS)
    assert set(OF_NUMBERS.values()) <= set(NAMES)
    for name in general:
        left_out = matched(name, "aie_finding", "cause")
        assert left_out == told | OF_NUMBERS.keys()
        assert left_out <= CAUSES


def test_alerts_of_findings_are_of_all_that_is_no_information() -> None:
    for rule in ALERT_RULES:
        of_findings = [selector for selector in selectors(rule.table["expr"]) if selector.name == "aie_finding"]
        for selector in of_findings:
            severity = next(matcher.value for matcher in selector.matchers.matchers if matcher.name == "severity")
            expected = rule.table["labels"]["severity"] if rule.name.startswith("AieFinding") else "warning|critical"
            assert severity == expected


def test_each_xid_is_in_the_alert_of_its_family() -> None:
    for family in SEVERITIES:
        listed = matched(f"AieGpuXid{family.capitalize()}", "aie_gpu_xid_errors_total", "xid")
        assert listed == {str(xid.number) for xid in XIDS if xid.blame == family}
    assert matched("AieGpuXidUnknown", "aie_gpu_xid_errors_total", "xid") == {str(xid.number) for xid in XIDS}


def test_pages_of_xids_say_what_the_catalogue_says() -> None:
    for family in SEVERITIES:
        text = (ALERTS / "aie_alerts" / "runbooks" / f"AieGpuXid{family.capitalize()}.md").read_text()
        rows = re.findall(r"^\| (\d+) \| (.*?) \| (\w+) \| (.*?) \|$", text, re.MULTILINE)
        assert rows == [(str(xid.number), xid.meaning, xid.severity, xid.action) for xid in XIDS if xid.blame == family]


def test_throttling_is_told_of_each_reason_that_is_a_warning() -> None:
    """Of heat near the limit where it costs, and of no other: the power limit stands in the rule as what heat near its own is not
    blamed for, and is not told itself."""
    metric, warnings = (
        "aie_gpu_clock_event_active",
        {reason for reason, event in CLOCK_EVENTS.items() if event.severity == "warning"} | {WARM},
    )
    (query,) = (rule.table["expr"] for rule in ALERT_RULES if rule.name == "AieGpuThrottled")
    assert values(told_selectors(promql.parse(query)), metric, "reason") == warnings
    assert matched("AieGpuThrottled", metric, "reason") == warnings | {"sw_power_cap"}
    wrong = f'{query} or {metric}{{reason="sw_power_cap"}} > 0'
    assert values(told_selectors(promql.parse(wrong)), metric, "reason") == warnings | {"sw_power_cap"}


def _promtool_tests() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in TEST_FILES:
        for each in yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["tests"]:
            yield each["name"].partition(":")[0], each


PROMTOOL_TESTS: Final = tuple(_promtool_tests())


def _subjects(test: dict[str, Any]) -> set[str]:
    """What the series of a test are named by: the values of the labels that say what each is."""
    text = "\n".join(each["series"] for each in test.get("input_series", ()))
    return set(re.findall(r'(?:instance|engine)="(\w+)"', text))


def _firing(test: dict[str, Any], name: str) -> list[set[str]]:
    """Who must fire, at each moment that a test looks at."""
    alerts = [
        {
            kind
            for alert in each.get("exp_alerts", ())
            for kind in (alert["exp_labels"].get(label) for label in ("instance", "engine"))
        }
        for each in test["alert_rule_test"]
        if each["alertname"] == name
    ]
    queries = [
        {kind for sample in each.get("exp_samples", ()) for kind in re.findall(r'="(\w+)"', sample["labels"])}
        for each in test["promql_expr_test"]
        if each["expr"].startswith("count by") and f'alertname="{name}", alertstate="firing"' in each["expr"]
    ]
    return [*alerts, *queries]


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_is_tested_for_each_kind(name: str) -> None:
    """It fires; what is well, near to the fault, stays silent; what flaps, restarts or has gaps does not change what is told."""
    tests = [test for of, test in PROMTOOL_TESTS if of == name]
    fired = [alert for test in tests for each in test["alert_rule_test"] for alert in each.get("exp_alerts", ())]
    assert fired, "no test in which it fires"
    assert all(alert["exp_annotations"].keys() == {"summary", "description", "runbook_url"} for alert in fired)
    if name in ALWAYS:
        return
    kinds = {kind for test in tests for kind in _subjects(test)}
    assert kinds >= set(KINDS)
    for test in tests:
        moments = _firing(test, name)
        assert moments
        assert not any("healthy" in moment for moment in moments)
        for kind in STEADY:
            assert len({kind in moment for moment in moments}) == 1, f"{kind} changes"
        titled = test["name"].partition(": ")[2].split(", ")
        assert set(titled) == set(KINDS) & _subjects(test)


def test_each_severity_of_an_alert_is_seen_to_fire() -> None:
    for rule in ALERT_RULES:
        severity = rule.table["labels"]["severity"]
        if "{{" in severity:
            continue  # by number, and as found: tests/integration/alerts
        seen = {
            alert["exp_labels"]["severity"]
            for of, test in PROMTOOL_TESTS
            if of == rule.name
            for each in test["alert_rule_test"]
            for alert in each.get("exp_alerts", ())
        }
        assert severity in seen, rule.name


def test_what_is_generated_is_fresh() -> None:
    stale = [path for path, text in build.generated().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run python alerts/build.py"


def test_every_rule_file_is_in_the_document() -> None:
    text = (Path(ALERTS).parent / "docs" / "alerts.md").read_text()
    for name in NAMES:
        assert f"[{name}](" in text


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_what_is_recorded_is_recorded_first(path: Path) -> None:
    """Prometheus evaluates groups side by side, promtool in any order: a verdict must not depend on it, nor change each time."""
    document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    rules = [yaml.load((path.parent / each).read_text(), Loader=yaml.CSafeLoader) for each in document["rule_files"]]
    names = [group["name"] for each in rules for group in each["groups"]]
    if any("-records" in name for name in names):
        order = document["group_eval_order"]
        assert set(order) == set(names)
        assert order == sorted(order, key=lambda name: "-records" not in name)
