"""The manifests of deploy/kubernetes: who is let in and scraped, what an agent may, as whom. What was not run: docs/deploy.md."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from dockerfile_parse import DockerfileParser
from fakes.deploy_files import DEPLOY, MANIFESTS, compose, daemon_set, documents, resources, sidecar_pod

from aie_agent import config as configuration
from aie_telemetry.endpoints import AGENT_HTTP_PORT

OPERATOR = "monitoring.coreos.com/v1"
OPERATORS = (OPERATOR, "monitoring.coreos.com/v1alpha1")
IDS = (65532, 65532)
"""User and group of an agent without capabilities, and of its engine."""


def test_no_default_profile_takes_from_the_daemon_set_what_its_capabilities_are_for() -> None:
    (container,) = daemon_set()["spec"]["template"]["spec"]["containers"]
    for profile in ("seccompProfile", "appArmorProfile"):
        assert container["securityContext"][profile] == {"type": "Unconfined"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_takes_the_manifests(path: Path) -> None:
    checked = 0
    for document in documents(path):
        if document["apiVersion"] not in OPERATORS:
            kubernetes_validate.validate(document, "1.33", strict=True)
            checked += 1
    assert checked or {each["kind"] for each in documents(path)} <= {"PrometheusRule", "AlertmanagerConfig"}


def _pods() -> list[dict[str, Any]]:
    """The sidecar's pod and the DaemonSet's, each with the namespace that its manifest names."""
    template = daemon_set()["spec"]["template"]
    return [sidecar_pod(), template | {"metadata": template["metadata"] | {"namespace": daemon_set()["metadata"]["namespace"]}}]


def test_every_agent_is_bounded_probed_and_unprivileged() -> None:
    for pod in _pods():
        (agent,) = [each for each in pod["spec"]["containers"] if each["name"] == "aie-agent"]
        assert agent["resources"]["limits"].keys() == {"cpu", "memory"}
        assert agent["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert agent["ports"][0]["containerPort"] == AGENT_HTTP_PORT
        security = agent["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        assert pod["spec"]["automountServiceAccountToken"] is False
    assert [pod["spec"].get("hostPID", False) for pod in _pods()] == [False, True]


def test_an_engine_starts_and_serves_whatever_its_sidecar_does() -> None:
    """An init container, a startup probe, a volume that is missing: each would hold the engine or its pod up."""
    spec = sidecar_pod()["spec"]
    assert "initContainers" not in spec
    engine, agent = spec["containers"]
    assert (engine["name"], agent["name"]) == ("engine", "aie-agent")
    assert not {"startupProbe", "readinessProbe"} & agent.keys()
    assert agent["livenessProbe"]["initialDelaySeconds"] >= 30
    assert all(volume.get("configMap", {"optional": True})["optional"] for volume in spec["volumes"])
    assert "depends_on" not in compose()["services"]["engine"]


def _selects(selector: dict[str, Any], pod: dict[str, Any]) -> bool:
    assert selector.keys() == {"matchLabels"}, "this test reads no other selectors"
    labels: dict[str, str] = pod["metadata"]["labels"]
    return bool(selector["matchLabels"].items() <= labels.items())


def _lets_in(pod: dict[str, Any], port: int, namespace: str) -> bool:
    """Whether NetworkPolicies let TCP through to a pod's port: what no policy selects is open, else what one of them opens."""
    policies = [
        each["spec"]
        for each in resources("NetworkPolicy")
        if each["metadata"].get("namespace") == pod["metadata"].get("namespace") and _selects(each["spec"]["podSelector"], pod)
    ]
    caller = {"metadata": {"labels": {"kubernetes.io/metadata.name": namespace}}}
    rules = [rule for policy in policies for rule in policy["ingress"]]
    opened = [rule for rule in rules if {"protocol": "TCP", "port": port} in rule["ports"]]
    sources = [rule.get("from", [{"namespaceSelector": {"matchLabels": {}}}]) for rule in opened]
    return not policies or any(_selects(each["namespaceSelector"], caller) for source in sources for each in source)


def test_only_prometheus_reaches_an_agent_that_is_open() -> None:
    for pod in _pods():
        assert _lets_in(pod, AGENT_HTTP_PORT, "monitoring")
        assert not _lets_in(pod, AGENT_HTTP_PORT, "default")


def test_an_engine_stays_open_to_all() -> None:
    pod = sidecar_pod()
    served = [port["containerPort"] for each in pod["spec"]["containers"] for port in each["ports"]]
    assert served == [8000, AGENT_HTTP_PORT]
    assert _lets_in(pod, 8000, "default")
    assert _lets_in(pod, 8000, "monitoring")
    assert not _lets_in(pod, 8001, "default")


def test_the_operator_finds_ports_and_labels() -> None:
    (service,) = resources("Service")
    (monitor,) = resources("ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    sidecar, node = _pods()
    assert service["spec"]["selector"].items() <= node["metadata"]["labels"].items()
    (of_pods,) = resources("PodMonitor")
    assert [_selects(of_pods["spec"]["selector"], pod) for pod in (sidecar, node)] == [True, False]
    (ports,) = [each["ports"] for each in sidecar["spec"]["containers"] if each["name"] == "aie-agent"]
    assert of_pods["spec"]["podMetricsEndpoints"][0]["port"] == ports[0]["name"]


def _relabeled(rules: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, str] | None:
    """What Prometheus makes of labels by rules of relabeling as they stand here, which replace a label or drop a series."""
    for rule in rules:
        joined = rule.get("separator", ";").join(labels.get(name, "") for name in rule["sourceLabels"])
        matched = re.fullmatch(rule.get("regex", "(?s:(.*))"), joined)
        if matched is None:
            continue
        match rule.get("action", "replace"):
            case "drop":
                return None
            case "replace":
                labels = labels | {rule["targetLabel"]: matched.expand(rule.get("replacement", "$1").replace("$", "\\"))}
            case other:
                raise ValueError(f"{other} is not known here")
    return labels


def test_namespaces_and_apps_are_jobs_of_their_own() -> None:
    """Else the engine of one team would be a replica of another's of the same name."""
    (of_pods,) = resources("PodMonitor")
    (endpoint,) = of_pods["spec"]["podMetricsEndpoints"]
    names = [("team-a", "engine"), ("team-b", "engine"), ("team-a", "chat"), ("team-a", "")]
    made = [
        _relabeled(
            endpoint["relabelings"],
            {
                "job": "aie/aie-sidecars",
                "__meta_kubernetes_namespace": namespace,
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": app,
            },
        )
        for namespace, app in names
    ]
    assert [labels and labels["job"] for labels in made] == ["team-a/engine", "team-b/engine", "team-a/chat", "team-a"]
    assert "app.kubernetes.io/name" in sidecar_pod()["metadata"]["labels"]


def test_what_the_node_s_kernel_killed_is_told_by_the_daemonset_alone() -> None:
    (monitor,) = resources("ServiceMonitor")
    (of_pods,) = resources("PodMonitor")
    kept = {
        kind: [
            name
            for name in ("aie_host_oom_kills_total", "aie_host_memory_available_bytes", "aie_finding")
            if _relabeled(endpoint.get("metricRelabelings", []), {"__name__": name}) is not None
        ]
        for kind, endpoint in (("node", monitor["spec"]["endpoints"][0]), ("sidecar", of_pods["spec"]["podMetricsEndpoints"][0]))
    }
    assert kept["node"] == ["aie_host_oom_kills_total", "aie_host_memory_available_bytes", "aie_finding"]
    assert kept["sidecar"] == ["aie_host_memory_available_bytes", "aie_finding"]


def test_kube_prometheus_stack_takes_what_is_the_operator_s() -> None:
    """It selects by the name of its Helm release."""
    ours = [each for path in MANIFESTS for each in documents(path) if each["apiVersion"] in OPERATORS]
    assert {each["kind"] for each in ours} == {"ServiceMonitor", "PodMonitor", "PrometheusRule", "AlertmanagerConfig"}
    assert {each["metadata"]["labels"]["release"] for each in ours} == {"kube-prometheus-stack"}


def _image_user(path: Path, tmp_path: Path) -> str:
    parser = DockerfileParser(fileobj=None, path=str(tmp_path))
    parser.content = path.read_text()
    return [str(step["value"]) for step in parser.structure if step["instruction"] == "USER"][-1]


def test_an_agent_without_capabilities_is_of_its_engine_s_user(tmp_path: Path) -> None:
    spec = sidecar_pod()["spec"]
    of_pod = spec["securityContext"]
    users = {each["name"]: of_pod | each.get("securityContext", {}) for each in spec["containers"]}
    assert {(each["runAsUser"], each["runAsGroup"], each["runAsNonRoot"]) for each in users.values()} == {(*IDS, True)}
    images = [_image_user(DEPLOY / each, tmp_path) for each in ("Dockerfile", "compose/engine.Dockerfile")]
    assert images == [":".join(map(str, IDS))] * 2
    services = compose()["services"]
    assert [name for name, each in services.items() if "user" in each] == ["rules"], "root writes files, and is in no network"
    assert services["rules"]["network_mode"] == "none"


# Becomes the sidecar's agent, and says what it sees of a process. Modules are loaded before: the interpreter may be root's alone.
SEEN = """
import os, pathlib, sys
from aie_agent.sources.listeners import held_sockets
from aie_agent.sources.procfs import Procfs
tgid, uid, gid = map(int, sys.argv[1:])
os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
assert "CapEff:\t0000000000000000" in pathlib.Path("/proc/self/status").read_text()
def readable(name):
    try:
        return bool(pathlib.Path(f"/proc/{tgid}/{name}").read_bytes())
    except PermissionError:
        return False
sockets = held_sockets(pathlib.Path(f"/proc/{tgid}"))
print(sorted(sockets) if sockets is not None else None, readable("smaps"), Procfs().memory(tgid) is not None)
"""


@pytest.mark.parametrize("same", [True, False])
def test_what_the_kernel_shows_an_agent_without_capabilities(same: bool) -> None:
    """What docs/deploy.md says of the sidecar, by aie's own readers: who serves a page, memory maps, memory in sum."""
    if os.geteuid() != 0:
        pytest.skip("becoming two users needs root")
    uid, gid = IDS if same else (IDS[0] + 1, IDS[1] + 1)
    with socket.create_server(("127.0.0.1", 0)) as served:
        inode = str(os.fstat(served.fileno()).st_ino)
        engine = subprocess.Popen(["sleep", "60"], stdin=served, user=uid, group=gid, extra_groups=[])
        try:
            call = [sys.executable, "-c", SEEN, str(engine.pid), *map(str, IDS)]
            done = subprocess.run(call, capture_output=True, text=True, check=True)
        finally:
            engine.kill()
            engine.wait()
    assert done.stdout.strip() == (f"['{inode}'] True True" if same else "None False True")


@pytest.mark.parametrize("kind", ["ConfigMap"])
def test_configurations_in_manifests_are_valid(kind: str, tmp_path: Path) -> None:
    maps = resources(kind)
    assert len(maps) == 2
    for each in maps:
        file = tmp_path / "agent.toml"
        file.write_text(each["data"]["agent.toml"])
        configuration.parse(configuration.read(file), "agent.toml")
