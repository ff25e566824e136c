"""The main job on real input: a real model serves, the agent watches, `aie-top` shows; and bad days."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest
import urllib3

from aie_telemetry import api
from aie_telemetry.catalogue import OUTCOMES
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import BIN, HTTP, Program, Start, engine_view, eventually, get, snapshot

pytestmark = pytest.mark.model

MIB = 1 << 20


def start_engine(start: Start, socket_path: Path, name: str = "smollm2") -> tuple[Program, str]:
    """The reference engine with SmolLM2, ready."""
    arguments = ("serve", "--model", "smollm2", "--name", name, "--port", "0", "--kv-tokens", "2048")
    engine = start("aie-engine", *arguments, AIE_STATSD=f"unix://{socket_path}")
    url = engine.url()
    eventually(lambda: get(f"{url}/health/ready")[0] == 200, alive=engine)
    return engine, url


def start_agent(start: Start, tmp_path: Path, *arguments: str, udp: str = "127.0.0.1:0") -> tuple[Program, str]:
    """The agent, listening."""
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "{udp}"\n[discovery]\nenabled = false\n'
    )
    agent = start("aie-agent", "run", "--no-bpf", "--config", str(config), *arguments)
    return agent, agent.url()


def chat(engine_url: str, tokens: int = 8) -> int:
    """One request; gives the status, or 0 when the engine went away."""
    body = json.dumps(
        {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": tokens, "seed": 1}
    )
    try:
        return HTTP.request("POST", f"{engine_url}/v1/chat/completions", body=body, timeout=120).status
    except urllib3.exceptions.HTTPError:
        return 0


def page_value(url: str, name: str, **labels: str) -> float | None:
    """One sample of a metrics page."""
    _, body = get(f"{url}/metrics")
    wanted = set(labels.items())
    values = [
        sample.value for sample in PageParser().parse(body.decode()).samples if sample.name == name and wanted <= set(sample.tags)
    ]
    return values[0] if values else None


def test_engine_agent_and_top_together(start: Start, tmp_path: Path) -> None:
    engine, engine_url = start_engine(start, tmp_path / "statsd.sock")
    agent, agent_url = start_agent(start, tmp_path, "--engine", f"smollm2={engine_url}/metrics")
    eventually(lambda: (view := engine_view(agent_url, "smollm2")) and view.state == "up", alive=agent)
    answered = 0

    def complete() -> api.Engine | None:
        nonlocal answered
        assert chat(engine_url) == 200  # at each look: a rate is of the last seconds
        answered += 1
        view = engine_view(agent_url, "smollm2")
        seen = view is not None and view.requests_per_second and view.inter_token.p99_seconds and view.processes and view.cpu_cores
        return view if seen else None

    view = eventually(complete, alive=agent)
    assert view.state == "up"
    assert view.model == "smollm2"
    assert view.metrics_from == ("page",)
    assert view.processes[0].tgid == engine.process.pid
    assert view.time_to_first_token.p50_seconds > 0
    assert view.generation_tokens_per_second > 0
    assert 0 <= view.kv_usage_ratio <= 1
    (memory,) = eventually(lambda: snapshot(agent_url), alive=agent).memory
    assert (memory.engine, memory.device) == ("smollm2", "cpu")
    assert memory.physical_bytes > memory.allocator_reserved_bytes > memory.allocator_allocated_bytes > 300 * MIB
    assert memory.unaccounted_bytes == pytest.approx(memory.physical_bytes - memory.allocator_reserved_bytes, abs=50 * MIB)

    eventually(lambda: page_value(agent_url, "aie_engine_requests_total", engine="smollm2", outcome="ok") == answered, alive=agent)
    assert page_value(agent_url, "aie_engine_up", engine="smollm2") == 1
    text = subprocess.run([BIN / "aie-top", "--connect", agent_url, "--once"], capture_output=True, text=True, check=True).stdout
    assert "smollm2" in text
    rows = subprocess.run([BIN / "aie-top", "--connect", agent_url, "--once", "--json"], capture_output=True, check=True).stdout
    assert b'"smollm2"' in rows


def test_both_pages_pass_promtool(start: Start, tmp_path: Path, promtool: str) -> None:
    _, engine_url = start_engine(start, tmp_path / "statsd.sock")
    agent, agent_url = start_agent(start, tmp_path, "--engine", f"smollm2={engine_url}/metrics")
    assert chat(engine_url) == 200
    eventually(lambda: page_value(agent_url, "aie_engine_memory_unaccounted_bytes"), alive=agent)
    for url in (engine_url, agent_url):
        _, page = get(f"{url}/metrics")
        checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_totals_agree_at_the_end(start: Start, tmp_path: Path) -> None:
    _, engine_url = start_engine(start, tmp_path / "statsd.sock")
    assert chat(engine_url) == 200
    bad = HTTP.request("POST", f"{engine_url}/v1/chat/completions", body="{", timeout=30)
    assert bad.status == 400
    ended = sum(page_value(engine_url, "aie_engine_requests_total", outcome=outcome) or 0 for outcome in OUTCOMES)
    open_ = sum(page_value(engine_url, f"aie_engine_requests_{state}") or 0 for state in ("running", "waiting"))
    assert page_value(engine_url, "aie_engine_requests_received_total") == ended + open_ == 2


def test_hooks_alone_join_an_engine_without_any_configuration(start: Start, tmp_path: Path) -> None:
    agent, agent_url = start_agent(start, tmp_path)
    engine, engine_url = start_engine(start, tmp_path / "statsd.sock", name="unannounced")

    def joined() -> api.Engine | None:
        assert chat(engine_url) == 200  # at each look: a rate is of the last seconds
        view = engine_view(agent_url, "unannounced")
        return view if view is not None and view.outcomes_per_second.get("ok") and view.processes else None

    view = eventually(joined, alive=agent)
    assert view.metrics_from == ("statsd",)
    assert view.processes[0].tgid == engine.process.pid
    memory = eventually(
        lambda: (found := snapshot(agent_url)) and [m for m in found.memory if m.allocator_reserved_bytes], alive=agent
    )
    assert memory[0].physical_bytes > 300 * MIB


def test_engine_killed_in_the_middle_of_a_request(start: Start, tmp_path: Path) -> None:
    engine, engine_url = start_engine(start, tmp_path / "statsd.sock")
    agent, agent_url = start_agent(start, tmp_path, "--engine", f"smollm2={engine_url}/metrics")
    statuses: list[int] = []

    def ask_until_it_is_gone() -> None:
        while not statuses or statuses[-1]:
            statuses.append(chat(engine_url, tokens=200))

    client = threading.Thread(target=ask_until_it_is_gone)
    client.start()
    eventually(lambda: (view := engine_view(agent_url, "smollm2")) and view.state == "up" and view.running == 1, alive=agent)
    engine.process.send_signal(signal.SIGKILL)
    client.join(60)
    assert statuses[-1] == 0
    view = eventually(lambda: (view := engine_view(agent_url, "smollm2")) and view.state == "down" and view, alive=agent)
    assert view.running is None, "what a dead engine said is not shown as if it were now"
    eventually(lambda: page_value(agent_url, "aie_engine_up", engine="smollm2") == 0, alive=agent)
    assert page_value(agent_url, "aie_engine_requests_running", engine="smollm2") is None
    assert eventually(lambda: (view := engine_view(agent_url, "smollm2")) and not view.processes, alive=agent)

    def states() -> dict[str, str]:
        found = eventually(lambda: snapshot(agent_url), alive=agent)
        return {source.name: source.state for source in found.sources}

    eventually(lambda: states()["scrape:smollm2"] == "down", alive=agent)
    assert states()["host"] == "up"


def test_agent_restarted_under_a_running_engine(start: Start, tmp_path: Path) -> None:
    first, first_url = start_agent(start, tmp_path)
    _, engine_url = start_engine(start, tmp_path / "statsd.sock")
    assert chat(engine_url) == 200
    eventually(lambda: (view := engine_view(first_url, "smollm2")) and view.processes, alive=first)
    assert first.stop() == 0
    assert chat(engine_url) == 200, "the engine does not notice that the agent is gone"
    second, second_url = start_agent(start, tmp_path)
    view = eventually(lambda: (view := engine_view(second_url, "smollm2")) and view.processes and view, alive=second)
    assert view.state == "up"
    quiet = eventually(lambda: (view := engine_view(second_url, "smollm2")) and view.outcomes_per_second and view, alive=second)
    assert quiet.outcomes_per_second["ok"] == 0, "what was counted while no agent listened did not happen just now"

    def answered() -> float | None:
        assert chat(engine_url) == 200  # at each look: a rate is of the last seconds
        return (view := engine_view(second_url, "smollm2")) and view.outcomes_per_second.get("ok")

    eventually(answered, alive=second)


def test_flood_leaves_the_agent_answering_within_its_caps(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        udp_port = free.getsockname()[1]
    agent, agent_url = start_agent(start, tmp_path, udp=f"127.0.0.1:{udp_port}")
    eventually(lambda: snapshot(agent_url), alive=agent)
    socket_path = tmp_path / "statsd.sock"
    flooding = threading.Event()
    flooding.set()

    def flood(worker: int) -> None:
        family, address = ((socket.AF_UNIX, str(socket_path)), (socket.AF_INET, ("127.0.0.1", udp_port)))[worker]
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.setblocking(False)
            count = 0
            while flooding.is_set():
                lines = [b"flood_%d_%d,k=%d:1|c" % (worker, count % 50_000, count + i) for i in range(20)] + [os.urandom(40)]
                with contextlib.suppress(BlockingIOError):
                    sender.send(b"\n".join(lines))
                count += 20

    workers = [threading.Thread(target=flood, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    try:
        dropped = eventually(lambda: (found := snapshot(agent_url)) and found.agent.drops, alive=agent)
        before = eventually(lambda: snapshot(agent_url), alive=agent)
        later = eventually(lambda: (found := snapshot(agent_url)) and found.time_s > before.time_s + 5 and found, alive=agent)
        assert get(f"{agent_url}/healthz")[0] == 200
        assert get(f"{agent_url}/metrics")[0] == 200
        lost = eventually(lambda: page_value(agent_url, "aie_agent_statsd_kernel_drops_total", socket="udp"), alive=agent)
    finally:
        flooding.clear()
        for worker in workers:
            worker.join()
    assert dropped
    assert lost
    assert later.agent.series <= later.agent.series_limit
    assert later.agent.resident_bytes < 250 * MIB
    assert get(f"{agent_url}/healthz")[0] == 200


def test_agents_port_in_use_is_one_clear_line(start: Start, tmp_path: Path) -> None:
    _, agent_url = start_agent(start, tmp_path)
    port = agent_url.rpartition(":")[2]
    done = subprocess.run(
        [BIN / "aie-agent", "run", "--no-bpf", "--config", tmp_path / "agent.toml", "--listen", f"127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "port is in use" in done.stderr


def test_check_beside_a_running_agent_finds_nothing_amiss(start: Start, tmp_path: Path) -> None:
    agent, agent_url = start_agent(start, tmp_path)
    eventually(lambda: snapshot(agent_url), alive=agent)
    listen = agent_url.removeprefix("http://")
    check = [BIN / "aie-agent", "check", "--config", tmp_path / "agent.toml", "--listen", listen]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "an agent serves here already" in done.stdout


def test_top_says_plainly_that_no_agent_answers() -> None:
    done = subprocess.run(
        [BIN / "aie-top", "--connect", "http://127.0.0.1:1", "--once"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_snapshot_on_the_wire_is_the_schema(start: Start, tmp_path: Path) -> None:
    agent, agent_url = start_agent(start, tmp_path)
    eventually(lambda: snapshot(agent_url), alive=agent)
    _, body = get(f"{agent_url}/api/v1/snapshot")
    read = msgspec.json.decode(body, type=api.Snapshot)
    assert msgspec.json.decode(msgspec.json.encode(read)) == msgspec.json.decode(body), (
        "no key on the wire is unknown to the schema"
    )
