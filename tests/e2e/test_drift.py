"""An engine whose answers change, and what a real agent makes of it: a finding, metrics, the file of the alarm, a recording."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About
from aie_agent.analysis.drift.reference_file import save
from aie_hooks import Emitter, LogitsHooks
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import Program, Start, eventually, get, start

__all__ = ["start"]

BATCH = 5
"""Answers a packet or two: the sender never blocks, and drops what the receiver's queue has no room for."""


def _answer(rng: random.Random, shift: float) -> tuple[float, float, float, int]:
    """Entropy, surprisal, log-sum-exp of the first token, and length."""
    return rng.gauss(2 + shift, 0.4), abs(rng.gauss(1.5, 0.3)), rng.gauss(20, 2), rng.randint(10, 400)


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    rng = random.Random(1)
    rows = [_answer(rng, 0.0) for _ in range(1000)]
    columns = {"entropy": [row[0] for row in rows], "first_token_logsumexp": [row[2] for row in rows]}
    path = tmp_path / "r.aieref"
    save(build(columns, About(model="m")), path)
    return path


@pytest.fixture
def webhook() -> Iterator[tuple[str, Queue[list[dict[str, Any]]]]]:
    """A server that keeps what it is sent."""
    came: Queue[list[dict[str, Any]]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", came
        server.shutdown()
        thread.join()


@pytest.fixture
def agent(start: Start, tmp_path: Path, reference: Path, webhook: tuple[str, Queue[Any]]) -> tuple[Program, str]:
    (tmp_path / "recordings").mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
        f'[drift]\nreferences = ["{reference}", "{tmp_path}/none"]\n'
        f'on_alarm = "{tmp_path}/degraded"\nwebhook = "{webhook[0]}"\nrecord = "{tmp_path}/recordings"\n'
    )
    program = start("aie-agent", "run", "--no-bpf", "--config", str(config))
    url = program.url()
    eventually((tmp_path / "statsd.sock").exists, alive=program)
    return program, url


def _seen(url: str) -> float:
    """How many values of the entropy the agent compared."""
    return _metrics(url).get("aie_drift_values_total", 0.0)


def _metrics(url: str) -> dict[str, float]:
    _, page = get(f"{url}/metrics")
    samples = PageParser().parse(page.decode()).samples
    return {s.name: s.value for s in samples if dict(s.tags).get("statistic", "entropy") == "entropy"}


def _causes(url: str) -> list[str]:
    status, body = get(f"{url}/api/v1/findings")
    return [each["cause"] for each in json.loads(body)["findings"]] if status == 200 else []


def _shown(url: str) -> dict[str, Any]:
    """What the snapshot says of the comparison."""
    (drift,) = json.loads(get(f"{url}/api/v1/snapshot")[1])["drift"]
    return dict(drift)


def test_answers_that_change_are_a_finding(
    agent: tuple[Program, str], tmp_path: Path, webhook: tuple[str, Queue[list[dict[str, Any]]]]
) -> None:
    program, url = agent
    rng = random.Random(2)
    emitter = Emitter("e", f"unix://{tmp_path}/statsd.sock", packets_per_second=1e9, flush_interval_s=float("inf"))
    hooks = LogitsHooks(emitter, model="m", rate=1.0)

    def some_answers(shift: float) -> None:
        for number in range(50):
            entropy, surprisal, logsumexp, length = _answer(rng, shift)
            with hooks.enter() as hook:
                for _ in range(length):
                    hook.add(-surprisal, entropy, logsumexp)
            if number % BATCH == BATCH - 1:
                emitter.flush()

    def answers_until(condition: Callable[[], bool], shift: float) -> None:
        """What the socket's queue has no room for is dropped, as it is of an engine that is faster than its agent."""
        eventually(lambda: some_answers(shift) or condition(), program)

    answers_until(lambda: _seen(url) >= 600, 0.0)
    assert "output_drift" not in _causes(url)
    assert not (tmp_path / "degraded").exists()
    assert _shown(url)["statistics"][0]["windows"] >= 6
    answers_until(lambda: "output_drift" in _causes(url), 0.6)
    (row,) = [json.loads(line) for line in eventually(lambda: _text(tmp_path / "degraded"), program).splitlines()]
    assert (row["engine"], row["cause"]) == ("e", "output_drift")
    assert _metrics(url)["aie_drift_alarm"] == 1.0
    shown = _shown(url)
    assert shown["reference"].startswith("r.aieref ")
    assert [each["name"] for each in shown["statistics"] if each["alarm_since_s"]] == ["entropy"]
    (told,) = eventually(lambda: webhook[1].get(timeout=60), program)  # at the start, nothing was wrong
    assert (told["engine"], told["cause"]) == ("e", "output_drift")
    emitter.close()
    assert program.stop() == 0
    header, *recorded = (tmp_path / "recordings" / "e-m.csv").read_text().splitlines()
    assert header == "time_s,request,entropy,surprisal,first_token_logsumexp,log_length"
    assert len(recorded) >= 1100
    assert f"{tmp_path}/none: No such file" in program.text()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
