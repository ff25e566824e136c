"""A real engine with a canary, and a real agent that remembers another number of it: found and heeded, and no request counted."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

from aie_agent.analysis.drift.canary import CONSECUTIVE_RUNS, LEARNT, CanaryWatch
from aie_agent.state import StateFile
from aie_telemetry.api import Drift
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import HTTP, Start, eventually, get, snapshot, start

__all__ = ["start"]

pytestmark = pytest.mark.model

NAME = "canaried"
OTHER_LEVEL = -4.5
"""Of the model that was served before: this one's is -4.875."""


def _remembered(path: Path) -> None:
    """The state of an agent that learnt what another model gave."""
    watch = CanaryWatch(time.time(), 0.02)
    for _ in range(LEARNT):
        watch.take(OTHER_LEVEL, time.time())
    canary = {"engine": NAME, "model": "smollm2", "canary": "default", "revision": "", "watch": watch.dump()}
    StateFile(path).write({"drift": {"streams": [], "told": [], "canaries": [canary]}})


def _sums(url: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for sample in PageParser().parse(get(f"{url}/metrics")[1].decode()).samples:
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def test_a_canary_that_gives_another_number_degrades_the_engine(start: Start, tmp_path: Path) -> None:
    _remembered(tmp_path / "state.json")
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
        f'[drift]\non_alarm = "{tmp_path}/degraded"\n[state]\nfile = "{tmp_path}/state.json"\n'
    )
    agent = start("aie-agent", "run", "--no-bpf", "--config", str(config))
    url = agent.url()
    eventually((tmp_path / "statsd.sock").exists, alive=agent)
    options = ("--model", "smollm2", "--port", "0", "--statsd", f"unix://{tmp_path}/statsd.sock", "--name", NAME)
    engine = start("aie-engine", "serve", *options, "--canary-every", "1s", "--degrade-file", f"{tmp_path}/degraded")
    engine_url = engine.url()

    def drift() -> list[Drift]:
        now = snapshot(url)
        return [] if now is None else [each for each in now.drift if each.engine == NAME and each.canaries]

    told: set[float | None] = set()

    def alarm() -> bool:
        told.update(each.last_nats for row in drift() for each in row.canaries)
        return any(each.alarm_since_s is not None for row in drift() for each in row.canaries)

    eventually(alarm, alive=engine)
    assert len(told - {None}) == 1, "to the last digit"
    health = eventually(lambda: (now := json.loads(get(f"{engine_url}/health")[1]))["status"] == "degraded" and now, alive=engine)
    assert health["causes"] == ["output_drift"]

    def drifts() -> list[str]:
        return [each.subject for each in now.findings if each.cause == "output_drift"] if (now := snapshot(url)) else []

    assert eventually(drifts, alive=agent) == [NAME]
    sums = _sums(engine_url)
    assert sums["aie_engine_canary_runs_total"] >= CONSECUTIVE_RUNS
    assert sums["aie_engine_requests_received_total"] == sums["aie_engine_step_seconds_count"] == 0
    body = msgspec.json.encode({"model": "smollm2", "prompt": "Hello", "max_tokens": 1})
    answer = HTTP.request("POST", f"{engine_url}/v1/completions", body=body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.headers["X-Aie-Degraded"]) == (200, "output_drift")
