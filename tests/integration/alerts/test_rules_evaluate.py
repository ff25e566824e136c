"""Every rule in a real Prometheus, over every metric of the catalogue with several values of each label, from two hosts and jobs:
that no expression fails for series that meet more than one partner, which tests with few series do not see. One target has two sets
of labels: so it is when a pod is replaced and `instance` is the node, or where the label of each of two Prometheus is kept."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

import aie_alerts
from aie_telemetry.catalogue import CATALOGUE, Kind, Metric
from demo.monitoring import Job, MonitoringError, Prometheus, executable, prometheus
from tests.fakes.alert_files import ALL, named_causes
from tests.integration.dashboards.served_page import served

TIME_SCALE: Final = 60.0
"""A window of five minutes is five seconds, and has five samples."""
DEADLINE_S: Final = 60.0
MOST_SERIES: Final = 256
VALUES: Final = {
    "outcome": ("ok", "error"),
    "severity": ("warning", "critical"),
    "cause": (*(cause for _, cause in named_causes()), "python_gc"),
    "xid": ("79", "31"),
    "set": ("cuda_memory", "cuda_launch"),
    "source": ("nvml", "scrape:a"),
    "device": ("cpu", "cuda0"),
    "since": ("volatile", "aggregate"),
    "type": ("uncorrected", "corrected"),
    "reason": ("hw_thermal", "hw_slowdown"),
}
"""Of labels that rules ask for; others are a and b."""
PODS: Final = ("old", "new")
"""Each series is there of both, with one `job` and `instance`."""


def page() -> str:
    """A page with all families."""
    return "".join(f"{line}\n" for metric in CATALOGUE.values() for line in _family(metric))


def _family(metric: Metric) -> Iterator[str]:
    yield f"# TYPE {metric.name} {metric.kind.value}"
    sets = itertools.islice(itertools.product(*(VALUES.get(label, ("a", "b")) for label in metric.labels)), MOST_SERIES)
    for values, pod in itertools.product(sets, PODS):
        labels = [f'{label}="{value}"' for label, value in zip(metric.labels, values, strict=True)] + [f'pod="{pod}"']
        if metric.kind is not Kind.HISTOGRAM:
            yield _sample(metric.name, labels, 100)
            continue
        bounds = [*(f"{bound:g}" for bound in metric.buckets or ()), "+Inf"]
        for place, bound in enumerate(bounds):
            yield _sample(f"{metric.name}_bucket", [*labels, f'le="{bound}"'], 100 + place)
        yield _sample(f"{metric.name}_sum", labels, 100)
        yield _sample(f"{metric.name}_count", labels, 99 + len(bounds))


def _sample(name: str, labels: list[str], value: int) -> str:
    return f"{name}{{{','.join(labels)}}} {value}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        executable("prometheus")
    except MonitoringError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("rules")
    for name, text in aie_alerts.files(time_scale=TIME_SCALE).items():
        if name.parts[0] == aie_alerts.RULES:
            (directory / name.name).write_text(text)
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(served(page())).removeprefix("http://").removesuffix("/metrics") for _ in range(2)]
        jobs = [Job("agents", tuple(hosts)), Job("engines", (hosts[0],))]
        yield stack.enter_context(prometheus(directory / "server", jobs, rules=sorted(directory.glob("*.yaml"))))


def _rules(server: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in server.get("/api/v1/rules")["data"]["groups"] for rule in group["rules"]]


def test_every_rule_can_be_evaluated(server: Prometheus) -> None:
    """Until something fires of every alert that these numbers can make fire, at least twice what one look takes."""
    until = time.monotonic() + DEADLINE_S
    while True:
        found = _rules(server)
        failed = {f"{rule['name']}: {rule['lastError']}" for rule in found if rule["health"] == "err"}
        assert failed == set()
        if all(rule["health"] == "ok" for rule in found) and server.query('ALERTS{alertname="AieMemoryLeak", alertstate="firing"}'):
            break
        assert time.monotonic() < until, [rule["name"] for rule in found if rule["health"] != "ok"]
        time.sleep(0.2)
    assert {rule["name"] for rule in found} == {rule.name for rule in ALL}


def test_what_fires_has_complete_texts(server: Prometheus) -> None:
    """A template that fails says so in the text, where promtool has no such series."""
    until = time.monotonic() + DEADLINE_S
    expected = {name for name, _ in named_causes()} | {"AieFindingWarning", "AieGpuEccUncorrected", "AieWatchdog"}
    while True:
        firing = [alert for alert in server.alerts() if alert["state"] == "firing"]
        missing = expected - {alert["labels"]["alertname"] for alert in firing}
        if not missing:
            break
        assert time.monotonic() < until, missing
        time.sleep(0.2)
    for alert in firing:
        for text in (*alert["annotations"].values(), *alert["labels"].values()):
            assert "<error" not in text
            assert "<no value>" not in text
            assert "{{" not in text


def test_nothing_of_two_jobs_is_added(server: Prometheus) -> None:
    """The same page under two jobs: what is recorded is of each, and of none more than it."""
    until = time.monotonic() + DEADLINE_S
    while len(recorded := server.query('job_instance_engine_model:aie_engine_generation_tokens:rate5m{engine="a", model="a"}')) < 3:
        assert time.monotonic() < until, recorded
        time.sleep(0.2)
    assert sorted(each["metric"]["job"] for each in recorded) == ["agents", "agents", "engines"]
