"""Engines that nobody announced: the agent finds them by itself, reads their page, and says when one hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import urllib3

from aie_telemetry import api
from aie_telemetry.events import encode_event
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import BIN, HTTP, Program, Start, engine_view, eventually, get, snapshot

pytestmark = pytest.mark.model

HUNG_AFTER_S = 3


def start_engine(start: Start, statsd: str) -> tuple[Program, str]:
    """The reference engine with SmolLM2 under a name of its own, ready."""
    name = f"found-{os.getpid()}"
    arguments = ("serve", "--model", "smollm2", "--name", name, "--port", "0", "--kv-tokens", "2048")
    engine = start("aie-engine", *arguments, AIE_STATSD=statsd)
    url = engine.url()
    eventually(lambda: get(f"{url}/health/ready")[0] == 200, alive=engine)
    return engine, url


def start_agent(start: Start, tmp_path: Path) -> tuple[Program, str]:
    """The agent, told of no engine."""
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n'
        f'[discovery]\nperiod = "1s"\n[findings]\nhung_after = "{HUNG_AFTER_S}s"\n'
    )
    agent = start("aie-agent", "run", "--no-bpf", "--config", str(config))
    return agent, agent.url()


@contextlib.contextmanager
def requests_running(engine_url: str) -> Iterator[None]:
    """A client that asks for one long answer after the other."""
    asking = threading.Event()
    asking.set()
    model = json.loads(get(f"{engine_url}/v1/models")[1])["data"][0]["id"]
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 400, "stream": True})

    def ask() -> None:
        while asking.is_set():
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                answer = HTTP.request("POST", f"{engine_url}/v1/chat/completions", body=body, timeout=300, preload_content=False)
                for _ in answer.stream(256):
                    if not asking.is_set():
                        break
                answer.close()

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield
    finally:
        asking.clear()
        client.join(120)


def findings(agent_url: str) -> tuple[api.Finding, ...] | None:
    status, body = get(f"{agent_url}/api/v1/findings")
    return msgspec.json.decode(body, type=api.Findings).findings if status == 200 else None


def exported(agent_url: str, name: str) -> list[dict[str, str]]:
    """The labels of each series of a metric on the agent's page."""
    _, body = get(f"{agent_url}/metrics")
    return [dict(sample.tags) for sample in PageParser().parse(body.decode()).samples if sample.name == name]


def hung(agent_url: str, name: str) -> api.Finding | None:
    return next((each for each in findings(agent_url) or () if (each.cause, each.subject) == ("engine_hung", name)), None)


@pytest.mark.parametrize("hooks", [False, True], ids=["page only", "page and hooks"])
def test_found_stopped_and_continued(start: Start, tmp_path: Path, hooks: bool) -> None:
    engine, engine_url = start_engine(start, f"unix://{tmp_path}/statsd.sock" if hooks else "off")
    agent, agent_url = start_agent(start, tmp_path)
    name = f"found-{os.getpid()}"

    def view_that(condition: Callable[[api.Engine], object]) -> api.Engine:
        return eventually(lambda: (view := engine_view(agent_url, name)) and condition(view) and view, alive=agent)

    view = view_that(lambda view: view.metrics_from == ("page",) and view.processes)
    assert (view.state, view.kind) == ("up", "aie")
    assert engine.process.pid in {process.tgid for process in view.processes}
    assert view.container is None or len(view.container) == 12
    names = [each.name for each in eventually(lambda: snapshot(agent_url), alive=agent).engines]
    assert names.count(name) == 1
    assert f"aie-engine-{engine_url.rpartition(':')[2]}" not in names, "one engine has one name"
    assert findings(agent_url) == () or hung(agent_url, name) is None

    with requests_running(engine_url):
        view_that(lambda view: view.running and view.generation_tokens_per_second)
        # On a busy host it may have made no token for three seconds before it made these.
        eventually(lambda: findings(agent_url) is not None and hung(agent_url, name) is None, alive=agent)
        engine.process.send_signal(signal.SIGSTOP)
        try:
            finding = eventually(lambda: hung(agent_url, name), alive=agent)
            assert finding.severity == "critical"
            assert f"kill -CONT {engine.process.pid}" in finding.advice
            longer = eventually(
                lambda: (seen := engine_view(agent_url, name)) and seen.page_reason and hung(agent_url, name), alive=agent
            )
            assert longer.since_s == pytest.approx(finding.since_s, abs=5.0)
            labels = {"cause": "engine_hung", "subject": name, "severity": "critical"}
            eventually(lambda: labels in exported(agent_url, "aie_finding"), alive=agent)
            text = subprocess.run(
                [BIN / "aie-top", "--connect", agent_url, "--once"], capture_output=True, text=True, check=True
            ).stdout
            assert f"engine {name} hangs" in text
        finally:
            engine.process.send_signal(signal.SIGCONT)
        eventually(lambda: findings(agent_url) is not None and hung(agent_url, name) is None, alive=agent)
        eventually(lambda: labels not in exported(agent_url, "aie_finding"), alive=agent)
        view_that(lambda view: view.generation_tokens_per_second)

    engine.stop()
    view_that(lambda view: view.state == "down")
    eventually(
        lambda: (found := snapshot(agent_url)) and f"scrape:{name}" not in [source.name for source in found.sources], alive=agent
    )


def test_check_lists_what_it_finds(start: Start, tmp_path: Path) -> None:
    engine, engine_url = start_engine(start, "off")
    check = [BIN / "aie-agent", "check", "--json", "--listen", "127.0.0.1:0"]
    rows = json.loads(subprocess.run(check, capture_output=True, check=False).stdout)
    (row,) = [row for row in rows if row["what"] == f"found: found-{os.getpid()}"]
    assert row["visible"]
    assert f"{engine_url}/metrics" in row["found"]
    assert str(engine.process.pid) in row["found"]
    off = subprocess.run([*check, "--no-discovery"], capture_output=True, text=True, check=False).stdout
    assert "found: " not in off


def test_an_event_is_kept_and_shown(start: Start, tmp_path: Path) -> None:
    agent, agent_url = start_agent(start, tmp_path)
    eventually(lambda: snapshot(agent_url), alive=agent)
    details = {"asked_bytes": float(3 << 30), "free_bytes": float(1 << 30), "reserved_unallocated_bytes": float(2 << 30)}
    event = api.Event(time_s=time.time(), kind="oom", engine="leaky", summary="out of memory on cuda0", details=details)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hook:
        hook.connect(str(tmp_path / "statsd.sock"))
        hook.send(encode_event(event))
        view = eventually(lambda: (view := engine_view(agent_url, "leaky")) and view.processes and view, alive=agent)
    assert view.processes[0].tgid == os.getpid(), "the kernel says who sent it"
    events = msgspec.json.decode(get(f"{agent_url}/api/v1/events")[1], type=api.Events).events
    kept = tuple(each for each in events if each.kind != "finding")
    assert [(each.engine, each.kind, each.details) for each in kept] == [("leaky", "oom", details)]
    assert eventually(lambda: snapshot(agent_url), alive=agent).events == kept
    eventually(lambda: {"kind": "oom"} in exported(agent_url, "aie_agent_events_total"), alive=agent)
    top = [BIN / "aie-top", "--connect", agent_url, "--once"]
    eventually(lambda: any(each.cause == "cuda_oom" for each in findings(agent_url) or ()), alive=agent)
    text = " ".join(subprocess.run(top, capture_output=True, text=True, check=True).stdout.split())
    assert "engine leaky: an allocation of 3.00 GiB failed on cuda0" in text
    assert "3.00 GiB was asked for; 1.00 GiB was free on the device; 2.00 GiB was reserved and not allocated" in text
