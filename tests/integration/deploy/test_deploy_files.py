"""What stands in deploy/, checked by the programs that read it, as far as they are here. What was not run: docs/deploy.md."""

from __future__ import annotations

import http.server
import json
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from aie_agent import config as configuration
from aie_ebpf.prerequisites import KERNEL_SOURCE
from aie_telemetry.endpoints import AGENT_HTTP_PORT
from demo.monitoring import executable

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "aie-agent.service"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OPERATOR = "monitoring.coreos.com/v1"
OPERATORS = (OPERATOR, "monitoring.coreos.com/v1alpha1")
IDS = (65532, 65532)
"""User and group of an agent without capabilities, and of its engine."""


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


def _settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_starts_after_the_driver_and_leaves_the_kernel_s_headers_in_sight() -> None:
    """DeviceAllow names the driver's devices, which systemd looks up at the start."""
    (after,) = _settings("After")
    assert {"modprobe@nvidia.service", "nvidia-persistenced.service"} <= set(after.split())
    assert any(each.startswith("char-nvidia") for each in _settings("DeviceAllow"))
    assert not _settings("ProtectKernelModules")
    assert f"BCC_KERNEL_SOURCE={KERNEL_SOURCE}" in _settings("Environment")


def test_unit_and_daemon_set_hold_the_same_capabilities_but_for_the_kernel_s_log() -> None:
    """A container that is not privileged may not open /dev/kmsg, whatever it holds and mounts."""
    (unit,) = _settings("CapabilityBoundingSet")
    assert _settings("AmbientCapabilities") == [unit]
    pod = _daemon_set()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert len(unit.split()) == 6
    assert {f"CAP_{each}" for each in security["capabilities"]["add"]} == set(unit.split()) - {"CAP_SYSLOG"}
    assert security["capabilities"]["drop"] == ["ALL"]
    assert "privileged" not in security
    assert not [each for each in pod["volumes"] if each.get("hostPath", {}).get("path", "").startswith("/dev")]


def test_no_default_profile_takes_from_the_daemon_set_what_its_capabilities_are_for() -> None:
    (container,) = _daemon_set()["spec"]["template"]["spec"]["containers"]
    for profile in ("seccompProfile", "appArmorProfile"):
        assert container["securityContext"][profile] == {"type": "Unconfined"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_takes_the_manifests(path: Path) -> None:
    checked = 0
    for document in _documents(path):
        if document["apiVersion"] not in OPERATORS:
            kubernetes_validate.validate(document, "1.33", strict=True)
            checked += 1
    assert checked or {each["kind"] for each in _documents(path)} <= {"PrometheusRule", "AlertmanagerConfig"}


def _daemon_set() -> dict[str, Any]:
    (found,) = _resources("DaemonSet")
    return found


def _sidecar() -> dict[str, Any]:
    (found,) = _resources("Pod")
    return found


def _pods() -> list[dict[str, Any]]:
    """The sidecar's pod and the DaemonSet's, each with the namespace that its manifest names."""
    template = _daemon_set()["spec"]["template"]
    return [_sidecar(), template | {"metadata": template["metadata"] | {"namespace": _daemon_set()["metadata"]["namespace"]}}]


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
    spec = _sidecar()["spec"]
    assert "initContainers" not in spec
    engine, agent = spec["containers"]
    assert (engine["name"], agent["name"]) == ("engine", "aie-agent")
    assert not {"startupProbe", "readinessProbe"} & agent.keys()
    assert agent["livenessProbe"]["initialDelaySeconds"] >= 30
    assert all(volume.get("configMap", {"optional": True})["optional"] for volume in spec["volumes"])
    assert "depends_on" not in _compose()["services"]["engine"]


def _selects(selector: dict[str, Any], pod: dict[str, Any]) -> bool:
    assert selector.keys() == {"matchLabels"}, "this test reads no other selectors"
    labels: dict[str, str] = pod["metadata"]["labels"]
    return bool(selector["matchLabels"].items() <= labels.items())


def _lets_in(pod: dict[str, Any], port: int, namespace: str) -> bool:
    """Whether NetworkPolicies let TCP through to a pod's port: what no policy selects is open, else what one of them opens."""
    policies = [
        each["spec"]
        for each in _resources("NetworkPolicy")
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
    pod = _sidecar()
    served = [port["containerPort"] for each in pod["spec"]["containers"] for port in each["ports"]]
    assert served == [8000, AGENT_HTTP_PORT]
    assert _lets_in(pod, 8000, "default")
    assert _lets_in(pod, 8000, "monitoring")
    assert not _lets_in(pod, 8001, "default")


def test_the_operator_finds_ports_and_labels() -> None:
    (service,) = _resources("Service")
    (monitor,) = _resources("ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    sidecar, node = _pods()
    assert service["spec"]["selector"].items() <= node["metadata"]["labels"].items()
    (of_pods,) = _resources("PodMonitor")
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
    (of_pods,) = _resources("PodMonitor")
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
    assert "app.kubernetes.io/name" in _sidecar()["metadata"]["labels"]


def test_what_the_node_s_kernel_killed_is_told_by_the_daemonset_alone() -> None:
    (monitor,) = _resources("ServiceMonitor")
    (of_pods,) = _resources("PodMonitor")
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
    ours = [each for path in MANIFESTS for each in _documents(path) if each["apiVersion"] in OPERATORS]
    assert {each["kind"] for each in ours} == {"ServiceMonitor", "PodMonitor", "PrometheusRule", "AlertmanagerConfig"}
    assert {each["metadata"]["labels"]["release"] for each in ours} == {"kube-prometheus-stack"}


def _image_user(path: Path, tmp_path: Path) -> str:
    parser = DockerfileParser(fileobj=None, path=str(tmp_path))
    parser.content = path.read_text()
    return [str(step["value"]) for step in parser.structure if step["instruction"] == "USER"][-1]


def test_an_agent_without_capabilities_is_of_its_engine_s_user(tmp_path: Path) -> None:
    spec = _sidecar()["spec"]
    of_pod = spec["securityContext"]
    users = {each["name"]: of_pod | each.get("securityContext", {}) for each in spec["containers"]}
    assert {(each["runAsUser"], each["runAsGroup"], each["runAsNonRoot"]) for each in users.values()} == {(*IDS, True)}
    images = [_image_user(DEPLOY / each, tmp_path) for each in ("Dockerfile", "compose/engine.Dockerfile")]
    assert images == [":".join(map(str, IDS))] * 2
    services = _compose()["services"]
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
    others = {"prometheus", "alertmanager", "grafana", "telegraf", "collector"}
    assert services.keys() == {"engine", "load", "agent", "rules"} | others
    built = {each["image"] for each in services.values() if "build" in each}
    assert {services[name]["image"] for name in ("load", "rules")} <= built
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


def test_compose_s_prometheus_scrapes_the_agent_alone_and_keeps_the_traces_that_it_passes_on() -> None:
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
    assert [each["static_configs"] for each in scraped] == [[{"targets": [f"agent:{AGENT_HTTP_PORT}"]}]]
    assert "--enable-feature=exemplar-storage" in _compose()["services"]["prometheus"]["command"]


def test_the_rules_of_compose_are_those_of_a_rehearsal_and_lead_to_the_agent(promtool: str, tmp_path: Path) -> None:
    """What the service writes, by its own command; Prometheus reads it where the volume is."""
    services = _compose()["services"]
    command = [str(tmp_path) if each == "/alerts" else each for each in services["rules"]["command"]]
    subprocess.run([Path(sys.executable).with_name("aie-agent"), *command], check=True, capture_output=True)
    written = sorted((tmp_path / "rules").iterdir())
    assert written
    done = subprocess.run([promtool, "check", "rules", *map(str, written)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = "".join(each.read_text() for each in written)
    (port,) = [each.rpartition(":")[0] for each in services["agent"]["ports"]]
    links = re.findall(r"runbook_url: '?(\S+)/runbooks/", text)
    assert set(links) == {f"http://{port}"}
    (lost,) = [
        rule
        for group in yaml.safe_load((tmp_path / "rules" / "gpu.yaml").read_text())["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "AieGpuLost"
    ]
    assert lost["for"] == "1s"
    assert "alerts:/alerts:ro" in services["prometheus"]["volumes"]
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())
    assert prometheus["rule_files"] == ["/alerts/rules/*.yaml"]
    assert prometheus["global"]["scrape_interval"] == "1s"


def test_the_client_of_compose_asks_what_the_engine_takes_and_goes_on_after_an_error() -> None:
    asked: queue.Queue[dict[str, Any]] = queue.Queue()

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.put({"path": self.path} | json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(503 if asked.qsize() == 1 else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    script = DEPLOY / "compose" / "load.py"
    with subprocess.Popen([sys.executable, "-S", str(script), url, "0.01"], stdout=subprocess.PIPE, text=True) as load:
        try:
            first, *_ = [asked.get(timeout=30) for _ in range(3)]
            assert load.stdout is not None
            assert "503" in load.stdout.readline()
        finally:
            load.kill()
            server.shutdown()
            server.server_close()
    assert first["path"] == "/v1/chat/completions"
    served = _compose()["services"]["engine"]["command"]
    assert first["model"] == served[served.index("--name") + 1]


@pytest.mark.parametrize("kind", ["ConfigMap"])
def test_configurations_in_manifests_are_valid(kind: str, tmp_path: Path) -> None:
    maps = _resources(kind)
    assert len(maps) == 2
    for each in maps:
        file = tmp_path / "agent.toml"
        file.write_text(each["data"]["agent.toml"])
        configuration.parse(configuration.read(file), "agent.toml")
