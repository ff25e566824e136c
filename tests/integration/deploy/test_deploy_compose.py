"""The images of deploy/ and its compose.yaml, checked by the programs that read them. What was not run: docs/deploy.md."""

from __future__ import annotations

import http.server
import json
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser
from fakes.deploy_files import DEPLOY, ROOT, compose, documents

from aie_agent import config as configuration
from aie_telemetry.endpoints import AGENT_HTTP_PORT
from demo.monitoring import executable


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


def test_compose_names_files_that_are_there_and_opens_nothing_to_the_network() -> None:
    services = compose()["services"]
    others = {"prometheus", "alertmanager", "grafana", "telegraf", "collector"}
    assert services.keys() == {"engine", "load", "agent", "rules"} | others
    built = {each["image"] for each in services.values() if "build" in each}
    assert {services[name]["image"] for name in ("load", "rules")} <= built
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose()["volumes"] or (DEPLOY / source).exists(), volume
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_what_compose_mounts_is_taken_by_whom_it_is_for(promtool: str) -> None:
    folder = DEPLOY / "compose"
    configuration.parse(configuration.read(folder / "agent.toml"), "agent.toml")
    manifest = next(each for each in documents(DEPLOY / "kubernetes" / "sidecar.yaml") if each["kind"] == "ConfigMap")
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
    assert "--enable-feature=exemplar-storage" in compose()["services"]["prometheus"]["command"]


def test_the_rules_of_compose_are_those_of_a_rehearsal_and_lead_to_the_agent(promtool: str, tmp_path: Path) -> None:
    """What the service writes, by its own command; Prometheus reads it where the volume is."""
    services = compose()["services"]
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
            first, *_ = [asked.get(timeout=60) for _ in range(3)]
            assert load.stdout is not None
            assert "503" in load.stdout.readline()
        finally:
            load.kill()
            server.shutdown()
            server.server_close()
    assert first["path"] == "/v1/chat/completions"
    served = compose()["services"]["engine"]["command"]
    assert first["model"] == served[served.index("--name") + 1]
