"""Alertmanager's configuration in a real Alertmanager: which alert silences which, and who hears of it."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml

import aie_alerts
from demo.monitoring import Alertmanager, MonitoringError, alertmanager
from tests.fakes.alert_files import ALERT_RULES, NAMES

CONFIG: Final = Path(aie_alerts.__file__).parent / aie_alerts.ALERTMANAGER
DEADLINE_S: Final = 60.0
Labels = Mapping[str, str]
Shown = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    try:
        with alertmanager(tmp_path_factory.mktemp("alertmanager"), CONFIG) as running:
            yield running
    except MonitoringError as error:
        if "is missing" not in str(error):
            raise
        pytest.skip(str(error))


def alert(name: str, severity: str, component: str = "engine", **more: str) -> Labels:
    return {"alertname": name, "severity": severity, "component": component, "job": "aie", **more}


E1: Final = {"instance": "a:9465", "engine": "llama"}
E2: Final = {"instance": "a:9465", "engine": "qwen"}
G0: Final = {"instance": "a:9465", "gpu": "0", "component": "gpu"}
G1: Final = {"instance": "a:9465", "gpu": "1", "component": "gpu"}

CASES: Final[dict[str, tuple[Labels, ...]]] = {
    "the same, less severe": (
        alert("AieMemoryFullSoon", "critical", device="cuda0", **E1),
        alert("AieMemoryFullSoon", "warning", device="cuda0", **E1),
        alert("AieMemoryFullSoon", "warning", device="cuda1", **E1),
    ),
    "an engine that is gone": (
        alert("AieEngineDown", "critical", subject="llama", cause="engine_down", **E1),
        alert("AieEngineErrors", "warning", subject="llama", cause="error_rate", **E1),
        alert("AieEngineErrors", "warning", subject="qwen", cause="error_rate", **E2),
    ),
    "an engine that hangs": (
        alert("AieEngineHung", "critical", subject="llama", cause="engine_hung", **E1),
        alert("AieEngineStalled", "warning", model="m", **E1),
        alert("AieEngineStalled", "warning", model="m", **E2),
    ),
    "a verdict before numbers": (
        alert("AieMemoryLeak", "warning", "memory", subject="llama", cause="memory_leak", **E1),
        alert("AieMemoryGrows", "warning", "memory", device="cpu", **E1),
        alert("AieMemoryFullSoon", "warning", "memory", device="cpu", **E1),
        alert("AieMemoryNearlyFull", "warning", "memory", **E1),
    ),
    "a lost GPU": (
        alert("AieGpuLost", "critical", reason="lost", **G0),
        alert("AieGpuXidLink", "critical", xid="79", **G0),
        alert("AieGpuXidLink", "critical", xid="79", **G1),
    ),
    "information beside a warning": (
        alert("AieQueueSaturated", "warning", subject="llama", cause="queue_saturation", **E1),
        alert("AieDriftNotWatched", "info", "drift", model="m", **E1),
        alert("AieDriftNotWatched", "info", "drift", model="m", **E2),
    ),
    "an agent that is down": (
        alert("AieAgentDown", "warning", "agent", instance="a:9465"),
        alert("AieGpuOrphans", "warning", **G0),
        alert("AieSloTtft", "critical", "slo", engine="llama", model="m", slo="ttft", window="1h"),
    ),
    "no agent at all": (
        alert("AieAgentAbsent", "critical", "agent"),
        alert("AieAgentDown", "warning", "agent", instance="b:9465"),
        alert("AieWatchdog", "info", "alerting"),
    ),
    "two windows of one objective": (
        alert("AieSloErrors", "critical", "slo", engine="llama", model="m", slo="errors", window="1h"),
        alert("AieSloErrors", "critical", "slo", engine="llama", model="m", slo="errors", window="6h"),
        alert("AieSloErrors", "critical", "slo", engine="qwen", model="m", slo="errors", window="6h"),
    ),
    "one objective, less severe": (
        alert("AieSloErrors", "critical", "slo", engine="llama", model="m", slo="errors", window="6h"),
        alert("AieSloErrors", "warning", "slo", engine="llama", model="m", slo="errors", window="3d"),
        alert("AieSloTtft", "warning", "slo", engine="llama", model="m", slo="ttft", window="3d"),
    ),
    "information of a GPU beside a warning": (
        alert("AieGpuXidMemory", "critical", xid="48", **G0),
        alert("AieGpuXidReport", "info", xid="45", **G0),
        alert("AieGpuXidApplication", "info", xid="13", **G0),
    ),
    "a report of an error of another GPU": (
        alert("AieGpuXidDriver", "critical", xid="119", **G0),
        alert("AieGpuXidReport", "warning", xid="154", **G0),
        alert("AieGpuXidReport", "warning", xid="154", **G1),
    ),
    "an engine that was killed": (
        alert("AieEngineOomKilled", "critical", subject="llama", cause="oom_killed", **E1),
        alert("AieEngineRestarts", "warning", **E1),
        alert("AieHostOomKill", "warning", "host", instance="a:9465"),
    ),
    "a host without memory": (
        alert("AieHostMemoryLow", "warning", "host", instance="a:9465", subject="host", cause="host_memory_low"),
        alert("AieHostSwapping", "warning", "host", subject="host", cause="swapping", instance="a:9465"),
        alert("AieMemoryNearlyFull", "warning", "memory", **E1),
    ),
    "a cache that is too small": (
        alert("AiePreemptionStorm", "warning", subject="llama", cause="kv_preemption", **E1),
        alert("AieKvCacheFull", "warning", model="m", **E1),
        alert("AieKvCacheFull", "warning", model="m", **E2),
    ),
    "fragments before the gap that they are": (
        alert("AieMemoryFragmentation", "warning", "memory", subject="llama", cause="memory_fragmentation", **E1),
        alert("AieAllocatorGap", "warning", "memory", device="cuda0", **E1),
        alert("AieAllocatorGap", "warning", "memory", device="cuda0", **E2),
    ),
    "what comes out of NaN": (
        alert("AieNanLogits", "critical", "drift", subject="llama", cause="nan_logits", model="a", **E1),
        alert("AieOutputDrift", "warning", "drift", subject="llama", cause="output_drift", model="a", **E1),
        alert("AieInputDrift", "warning", "drift", subject="llama", cause="input_drift", model="a", **E1),
        alert("AieOutputCollapse", "critical", "drift", subject="llama", cause="output_collapse", model="b", **E1),
    ),
}
"""A source, what it silences, and what is so near that it might and must not."""

HERE: Final = {"cluster": "prod"}
"""The label of one Prometheus of several that share an Alertmanager."""
ELSEWHERE: Final = {"cluster": "staging"}
"""How another of them differs: it may have the same jobs, and the same private addresses."""
OF_A_TARGET: Final = {"environment": "live", "namespace": "chat"}
"""Labels that a target may have of its own: an alert about its series has them, one about a sum or an absence of them has not."""


def send(manager: Alertmanager, alerts: Sequence[Labels]) -> None:
    body = json.dumps([{"labels": each} for each in alerts]).encode()
    request = urllib.request.Request(f"{manager.url}/api/v2/alerts", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60.0):
        pass


@pytest.mark.parametrize("case", CASES)
def test_what_silences_what(manager: Alertmanager, case: str) -> None:
    """Each case has a job of its own, so that it sees only its own alerts."""
    source, target, *bystanders = ({**each, **HERE, "job": case} for each in CASES[case])
    bystanders.append({**target, **ELSEWHERE})
    send(manager, [source, target, *bystanders])
    found = wait_for_suppressed(manager, case)
    assert found[shown(target)] == "suppressed"
    for each in (source, *bystanders):
        assert found[shown(each)] != "suppressed", each


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("source_has_them", [True, False])
def test_labels_of_targets_do_not_keep_apart_what_one_silences(manager: Alertmanager, case: str, source_has_them: bool) -> None:
    job = f"{case}, labels of a target {source_has_them}"
    source, target = ({**each, "job": job} for each in CASES[case][:2])
    (source if source_has_them else target).update(OF_A_TARGET)
    send(manager, [source, target])
    assert wait_for_suppressed(manager, job)[shown(target)] == "suppressed"


def test_one_prometheus_needs_no_labels_of_its_own(manager: Alertmanager) -> None:
    job = "without external labels"
    source, target, bystander = ({**each, "job": job} for each in CASES["an engine that is gone"])
    send(manager, [source, target, bystander])
    found = wait_for_suppressed(manager, job)
    assert [found[shown(each)] == "suppressed" for each in (source, target, bystander)] == [False, True, False]


def shown(labels: Labels) -> Shown:
    return tuple(sorted(labels.items()))


def wait_for_suppressed(manager: Alertmanager, job: str) -> dict[Shown, str]:
    """The state of each alert of a job, once one of them is silenced."""
    until = time.monotonic() + DEADLINE_S
    while True:
        found = {
            shown(each["labels"]): each["status"]["state"] for each in manager.alerts(active=False) if each["labels"]["job"] == job
        }
        if "suppressed" in found.values() or time.monotonic() > until:
            return found
        time.sleep(0.05)


def holds(matcher: str, labels: Labels) -> bool:
    """Whether an alert is one that a matcher of the configuration means. Raises KeyError for an operator that none of them has."""
    label, operator, quoted = matcher.split(" ", 2)
    value, wanted = labels.get(label, ""), quoted.strip('"')
    return {"=": value == wanted, "!=": value != wanted, "=~": re.fullmatch(wanted, value) is not None}[operator]


def test_each_rule_of_inhibition_has_a_case() -> None:
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        assert any(
            all(holds(matcher, source) for matcher in rule["source_matchers"])
            and all(holds(matcher, target) for matcher in rule["target_matchers"])
            and all(source.get(label) == target.get(label) for label in rule.get("equal", ()))
            for source, target, *_ in CASES.values()
        ), rule


def alternatives(pattern: str) -> list[str]:
    """What a matcher of names lists: the parts of a pattern that may have one group of parts in itself."""
    return [
        f"{before}{inner}{after}"
        for before, group, after in re.findall(r"([^|(]*)(\([^)]*\))?([^|(]*)(?:\||$)", pattern)
        for inner in group.strip("()").split("|")
        if before or group
    ]


def test_alternatives() -> None:
    assert alternatives("AieA") == ["AieA"]
    assert alternatives("AieA|AieB.+|AieC(D|E)F") == ["AieA", "AieB.+", "AieCDF", "AieCEF"]


def test_rules_of_inhibition_name_alerts_and_labels_that_exist() -> None:
    table = yaml.safe_load(CONFIG.read_text())
    labels = {"alertname", "severity", "component", "job", "instance", "engine", "model", "device", "gpu", "subject", "cause"}
    for rule in table["inhibit_rules"]:
        assert set(rule["equal"]) <= labels | {"slo", "reason", "xid", *HERE}
        assert set(HERE) <= set(rule["equal"])
        for text in (*rule["source_matchers"], *rule["target_matchers"]):
            label, _, value = text.split(" ", 2)
            assert label in labels | {"window"}
            if label == "alertname":
                for each in alternatives(value.strip('"')):
                    assert any(re.fullmatch(each, name) for name in NAMES), each


def test_every_severity_has_a_receiver() -> None:
    table = yaml.safe_load(CONFIG.read_text())
    receivers = {each["name"] for each in table["receivers"]}
    assert {route["receiver"] for route in table["route"]["routes"]} | {table["route"]["receiver"]} == receivers
    severities = {rule.table["labels"]["severity"] for rule in ALERT_RULES if "{{" not in rule.table["labels"]["severity"]}
    assert severities == {"critical", "warning", "info"}
