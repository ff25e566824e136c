"""A real engine with a canary, and a real agent: the canary is seen, alike each time, and no request is counted for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aie_telemetry.exposition import PageParser
from tests.e2e.programs import Start, eventually, get, start

__all__ = ["start"]

pytestmark = pytest.mark.model


def _sums(url: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for sample in PageParser().parse(get(f"{url}/metrics")[1].decode()).samples:
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def test_a_canary_reaches_the_agent_and_no_request_is_counted(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
    )
    agent = start("aie-agent", "run", "--no-bpf", "--config", str(config))
    url = agent.url()
    eventually((tmp_path / "statsd.sock").exists, alive=agent)
    options = ("--model", "smollm2", "--port", "0", "--statsd", f"unix://{tmp_path}/statsd.sock", "--name", "canaried")
    engine = start("aie-engine", "serve", *options, "--canary-every", "1s")
    engine_url = engine.url()

    def canary() -> dict[str, Any]:
        shown = json.loads(get(f"{url}/api/v1/snapshot")[1])["drift"]
        found = [each for drift in shown if drift["engine"] == "canaried" for each in drift["canaries"]]
        return dict(found[0]) if found else {}

    told: set[float] = set()

    def three_runs() -> bool:
        now = canary()
        told.update({now["last_nats"]} if now else ())
        return bool(now) and now["runs"] >= 3

    eventually(three_runs, alive=engine)
    assert len(told) == 1, "to the last digit"
    sums = _sums(engine_url)
    assert sums["aie_engine_canary_runs_total"] >= 3
    assert sums["aie_engine_requests_received_total"] == sums["aie_engine_step_seconds_count"] == 0
