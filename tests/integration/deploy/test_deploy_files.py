"""What stands in deploy/, checked by the programs that read it, as far as they are here. What was not run: docs/deploy.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from aie_agent import config as configuration
from aie_telemetry.endpoints import AGENT_HTTP_PORT
from demo.monitoring import executable

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "aie-agent.service"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OPERATOR = "monitoring.coreos.com/v1"


def _documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def _resources(kind: str) -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in _documents(path) if each["kind"] == kind]


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    return found


def test_systemd_takes_the_unit(analyze: str, tmp_path: Path) -> None:
    """The program has to be there: it is in the unit that this test reads, where the installed one is elsewhere."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/aie/bin/", f"{Path(sys.executable).parent}/"))
    verified = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_unit_exposes_little(analyze: str) -> None:
    """systemd's own score, 0 (safe) to 10: "OK" ends at 5."""
    rated = subprocess.run([analyze, "security", "--offline=true", str(UNIT)], capture_output=True, text=True, check=False).stdout
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", rated)
    assert score is not None, rated
    assert float(score[1]) <= 3.5


def test_unit_and_daemon_set_hold_the_same_capabilities() -> None:
    (unit,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    (ambient,) = re.findall(r"^AmbientCapabilities=(.*)$", UNIT.read_text(), re.MULTILINE)
    (daemon_set,) = _resources("DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    capabilities = container["securityContext"]["capabilities"]
    assert unit == ambient
    assert {f"CAP_{each}" for each in capabilities["add"]} == set(unit.split())
    assert capabilities["drop"] == ["ALL"]
    assert "privileged" not in container["securityContext"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_takes_the_manifests(path: Path) -> None:
    checked = 0
    for document in _documents(path):
        if document["apiVersion"] != OPERATOR:
            kubernetes_validate.validate(document, "1.33", strict=True)
            checked += 1
    assert checked or {each["kind"] for each in _documents(path)} == {"PrometheusRule"}


def _pod_specs() -> list[dict[str, Any]]:
    return [each["spec"] for each in _resources("Pod")] + [each["spec"]["template"]["spec"] for each in _resources("DaemonSet")]


def _agents() -> list[dict[str, Any]]:
    found = [c for spec in _pod_specs() for c in (*spec.get("initContainers", ()), *spec["containers"])]
    return [each for each in found if each["name"] == "aie-agent"]


def test_every_agent_is_bounded_probed_and_unprivileged() -> None:
    assert len(_agents()) == 2
    for agent in _agents():
        assert agent["resources"]["limits"].keys() == {"cpu", "memory"}
        assert agent["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert agent["startupProbe"]["httpGet"]["path"] == "/readyz"
        assert agent["ports"][0]["containerPort"] == AGENT_HTTP_PORT
        security = agent["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
    assert [spec.get("hostPID", False) for spec in _pod_specs()] == [False, True]
    assert all(spec["automountServiceAccountToken"] is False for spec in _pod_specs())


def test_only_prometheus_reaches_an_agent_that_is_open() -> None:
    (policy,) = _resources("NetworkPolicy")
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": AGENT_HTTP_PORT}]
    (labels,) = [policy["spec"]["podSelector"]["matchLabels"]]
    pods = [*_resources("Pod"), *(each["spec"]["template"] for each in _resources("DaemonSet"))]
    assert all(labels.items() <= pod["metadata"]["labels"].items() for pod in pods)


def test_the_operator_finds_ports_and_labels() -> None:
    (service,) = _resources("Service")
    (monitor,) = _resources("ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    (daemon_set,) = _resources("DaemonSet")
    assert service["spec"]["selector"].items() <= daemon_set["spec"]["template"]["metadata"]["labels"].items()


def test_the_rules_for_the_operator_are_aie_s_rules(promtool: str, tmp_path: Path) -> None:
    fresh = subprocess.run([sys.executable, str(DEPLOY / "build.py"), "--check"], capture_output=True, text=True, check=False)
    assert fresh.returncode == 0, fresh.stderr
    (resource,) = _resources("PrometheusRule")
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(resource["spec"]))
    checked = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    shipped = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "alerts" / "aie_alerts" / "rules").glob("*.yaml"))]
    assert resource["spec"]["groups"] == [group for file in shipped for group in file["groups"]]


@pytest.mark.parametrize("path", [DEPLOY / "Dockerfile", DEPLOY / "compose" / "engine.Dockerfile"], ids=lambda path: path.name)
def test_an_image_copies_what_is_there_and_ends_as_nobody_s_root(path: Path, tmp_path: Path) -> None:
    parser = DockerfileParser(fileobj=None, path=str(tmp_path))
    parser.content = path.read_text()
    for step in parser.structure:
        words = step["value"].split()
        if step["instruction"] == "COPY" and not words[0].startswith("--from"):
            assert all((ROOT / source).exists() for source in words[:-1]), step
    users = [step["value"] for step in parser.structure if step["instruction"] == "USER"]
    assert users
    assert not users[-1].startswith(("0", "root"))
    assert all(":" in image for image in parser.parent_images)


def test_no_agent_s_image_has_torch() -> None:
    installs = re.findall(r"pip install .*", (DEPLOY / "Dockerfile").read_text())
    assert installs == ["pip install --no-cache-dir --quiet -c constraints.txt '.[agent,otel]'"]


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def test_compose_names_files_that_are_there_and_opens_nothing_to_the_network() -> None:
    services = _compose()["services"]
    assert services.keys() == {"engine", "agent", "prometheus", "alertmanager", "grafana", "telegraf", "collector"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in _compose()["volumes"] or (DEPLOY / source).exists(), volume
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_what_compose_mounts_is_taken_by_whom_it_is_for(promtool: str) -> None:
    folder = DEPLOY / "compose"
    configuration.parse(configuration.read(folder / "agent.toml"), "agent.toml")
    manifest = next(each for each in _documents(DEPLOY / "kubernetes" / "sidecar.yaml") if each["kind"] == "ConfigMap")
    assert "metrics_url" in manifest["data"]["agent.toml"]
    checks = (
        [promtool, "check", "config", "--syntax-only", str(folder / "prometheus.yaml")],
        [str(executable("amtool")), "check-config", str(ROOT / "alerts" / "aie_alerts" / "alertmanager.yaml")],
    )
    for check in checks:
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    pipelines = yaml.safe_load((folder / "collector.yaml").read_text())
    for pipeline in pipelines["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(pipelines[part])
        assert pipeline["processors"][0] == "memory_limiter"


@pytest.mark.parametrize("kind", ["ConfigMap"])
def test_configurations_in_manifests_are_valid(kind: str, tmp_path: Path) -> None:
    maps = _resources(kind)
    assert len(maps) == 2
    for each in maps:
        file = tmp_path / "agent.toml"
        file.write_text(each["data"]["agent.toml"])
        configuration.parse(configuration.read(file), "agent.toml")
