"""Faults of an engine in a process of its own, and the finding that a real agent has of each a moment later."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from aie_hooks import Emitter, oom_forensics
from aie_telemetry import api
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import Program, Start, engine_view, eventually, get, start
from tests.fakes.fake_torch_cuda import MESSAGE, FakeTorchCuda

__all__ = ["start"]

# Its page says that requests run, and that twenty a second fail once a request asked for it.
ENGINE = """
import http.server, time

began = None

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global began
        if self.path == "/break":
            began = time.monotonic()
        failed = int(20 * (time.monotonic() - began)) if began is not None else 0
        labels = 'engine="chat",model="m"'
        lines = ["# TYPE aie_engine_requests_running gauge", f"aie_engine_requests_running{{{labels}}} 3",
                 "# TYPE aie_engine_generation_tokens_total counter",
                 f"aie_engine_generation_tokens_total{{{labels}}} {int(100 * time.monotonic())}",
                 "# TYPE aie_engine_requests_total counter"]
        for outcome, count in (("ok", int(5 * time.monotonic())), ("error", failed)):
            lines.append(f'aie_engine_requests_total{{{labels},outcome="{outcome}"}} {count}')
        body = ("\\n".join(lines) + "\\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def engine() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The engine's process, and its URL."""
    with subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


# Pages come slowly, so that one is fresh though the agent was held up for some seconds when the engine ended.
@pytest.fixture
def agent(start: Start, tmp_path: Path, engine: tuple[subprocess.Popen[bytes], str]) -> tuple[Program, str]:
    """An agent beside the engine, that has seen it, and its URL."""
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
        f'[state]\nfile = "{tmp_path}/state.json"\n[sources]\nscrape_period = "4s"\n'
        f'[[engines]]\nname = "chat"\nmetrics_url = "{engine[1]}/metrics"\n'
    )
    program = start("aie-agent", "run", "--no-bpf", "--config", str(config))
    url = program.url()
    eventually(lambda: (view := engine_view(url, "chat")) is not None and view.state == "up" and view.running, alive=program)
    return program, url


def found(url: str, cause: str) -> api.Finding | None:
    """A finding of the engine, if it is there."""
    status, body = get(f"{url}/api/v1/findings")
    known = msgspec.json.decode(body, type=api.Findings).findings if status == 200 else ()
    return next((each for each in known if (each.cause, each.subject) == (cause, "chat")), None)


def exported(url: str) -> set[tuple[str, str]]:
    """Causes and severities of `aie_finding` on the agent's page."""
    _, page = get(f"{url}/metrics")
    tags = [dict(each.tags) for each in PageParser().parse(page.decode()).samples if each.name == "aie_finding" and each.value == 1]
    return {(each["cause"], each["severity"]) for each in tags if each["subject"] == "chat"}


def test_an_engine_that_is_killed_with_requests_in_it(
    agent: tuple[Program, str], engine: tuple[subprocess.Popen[bytes], str]
) -> None:
    program, url = agent
    assert found(url, "engine_down") is None
    engine[0].kill()
    engine[0].wait()
    finding = eventually(lambda: found(url, "engine_down"), alive=program)
    assert finding.severity == "critical"
    assert "3 requests were in it" in finding.summary
    assert (Path(__file__).parents[2] / finding.runbook).is_file()
    assert eventually(lambda: ("engine_down", "critical") in exported(url), alive=program)


def test_requests_that_fail(agent: tuple[Program, str], engine: tuple[subprocess.Popen[bytes], str]) -> None:
    program, url = agent
    assert found(url, "error_rate") is None
    get(f"{engine[1]}/break")
    finding = eventually(lambda: (each := found(url, "error_rate")) and each.severity == "critical" and each, alive=program)
    assert "errors" in finding.evidence[0].text
    assert finding.since_s > 0


def test_memory_that_runs_out(agent: tuple[Program, str], tmp_path: Path) -> None:
    program, url = agent
    emitter = Emitter("chat", f"unix://{tmp_path}/statsd.sock", flush_interval_s=float("inf"))
    with pytest.raises(torch.OutOfMemoryError), oom_forensics(emitter, 0, cuda=FakeTorchCuda()):
        raise torch.OutOfMemoryError(MESSAGE)
    finding = eventually(lambda: found(url, "cuda_oom"), alive=program)
    emitter.close()
    assert "an allocation of 100 MiB failed on cuda0" in finding.summary
    assert "7 MiB" in " ".join(evidence.text for evidence in finding.evidence)
    assert eventually(lambda: ("cuda_oom", "warning") in exported(url), alive=program)
