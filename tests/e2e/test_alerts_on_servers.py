"""From a fault to Alertmanager and back: a real engine, the agent, Prometheus with aie's rules, Alertmanager as shipped, all
at one time scale. A leak, a drift, a stuck engine and a lost GPU arrive with their labels, and go when they are mended."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aie_agent import simulate
from aie_agent.analysis.drift.reference import About, build, save
from aie_hooks import AllocatorHook, AllocatorStats, Emitter, LogitsHooks
from demo.alerting import Alerting, alerting
from demo.monitoring import Job
from tests.e2e.programs import Program, Start, engine_view, eventually, get

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

TIME_SCALE = 240
"""Of the leak analysis and of the rules: a day is six minutes."""
GIB = 1 << 30
STEADY_BYTES = 20 * GIB
LEAK_BYTES_PER_S = GIB
CONTEXT_BYTES = 400 << 20
DRIFT = 0.6
"""In standard deviations and a half of the entropy."""

Answer = tuple[float, float, float, int]


def _answer(rng: random.Random, shift: float) -> Answer:
    """Entropy, surprisal, log-sum-exp of the first token, and length."""
    return rng.gauss(2 + shift, 0.4), abs(rng.gauss(1.5, 0.3)), rng.gauss(20, 2), rng.randint(10, 40)


class Hooked:
    """An engine that is this process: its hooks tell of memory on GPU 0, which the GPU has too, and of answers."""

    def __init__(self, address: str, gpus: simulate.Controller) -> None:
        self.leaks = threading.Event()
        self.drifts = threading.Event()
        self._gpus = gpus
        self._allocated = STEADY_BYTES
        self._emitter = Emitter("hooked", address, packets_per_second=1e9, flush_interval_s=float("inf"))
        self._allocator = AllocatorHook(self._emitter, self._stats)
        self._logits = LogitsHooks(self._emitter, model="m", rate=1.0)
        self._rng = random.Random(2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Hooked:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._emitter.close()

    def _stats(self) -> AllocatorStats:
        return AllocatorStats("cuda0", self._allocated, self._allocated + GIB)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.2):
            now = time.monotonic()
            self._allocated = self._allocated + round((now - before) * LEAK_BYTES_PER_S) if self.leaks.is_set() else STEADY_BYTES
            before = now
            process = simulate.Process(os.getpid(), self._allocated + GIB + CONTEXT_BYTES)
            self._gpus.set_processes(0, [process])
            self._allocator.report()
            for _ in range(4):
                for _ in range(5):  # a packet or two: what the receiver's queue has no room for is dropped
                    self._answers()
                self._emitter.flush()

    def _answers(self) -> None:
        entropy, surprisal, logsumexp, length = _answer(self._rng, DRIFT if self.drifts.is_set() else 0.0)
        with self._logits.enter() as hook:
            for _ in range(length):
                hook.add(-surprisal, entropy, logsumexp)


class Stage:
    """All of it, well."""

    def __init__(self, engine: Program, agent: Program, gpus: simulate.Controller, hooked: Hooked, servers: Alerting) -> None:
        self.engine = engine
        self.agent = agent
        self.gpus = gpus
        self.hooked = hooked
        self.servers = servers

    def alerts(self, *, active: bool = True) -> dict[str, dict[str, Any]]:
        """What is in Alertmanager, by the alert's name; with `active` nothing that another inhibits."""
        return {alert["labels"]["alertname"]: alert for alert in self.servers.alertmanager.alerts(active=active)}

    def break_everything(self) -> None:
        """The four faults, at once."""
        self.hooked.leaks.set()
        self.hooked.drifts.set()
        self.engine.process.send_signal(signal.SIGSTOP)
        self.gpus.lose(1)

    def mend_everything(self) -> None:
        """None of them any more."""
        self.hooked.leaks.clear()
        self.hooked.drifts.clear()
        self.engine.process.send_signal(signal.SIGCONT)
        self.gpus.lose(1, lost=False)


@pytest.fixture
def stage(start: Start, tmp_path: Path) -> Iterator[Stage]:
    rng = random.Random(1)
    columns = {"entropy": [_answer(rng, 0.0)[0] for _ in range(1000)]}
    save(build(columns, About(model="m")), tmp_path / "m.aieref")
    statsd = f"unix://{tmp_path}/statsd.sock"
    engine = start(
        "aie-engine", *("serve", "--model", "smollm2", "--name", "stuck", "--port", "0", "--kv-tokens", "1024"), AIE_STATSD=statsd
    )
    engine_url = engine.url()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
        f'[leaks]\ntime_scale = {TIME_SCALE}\nwarm_up_requests = 0\n[drift]\nreferences = ["{tmp_path}/m.aieref"]\n'
        f'[gpu]\nexpected = 2\n[findings]\nstacks = false\n[[engines]]\nname = "stuck"\nmetrics_url = "{engine_url}/metrics"\n'
    )
    with simulate.Controller.create(tmp_path / "gpus", 2, "H100") as gpus:
        agent = start("aie-agent", "run", "--no-bpf", "--config", str(config), **simulate.environment(gpus.path))
        url = agent.url()
        eventually((tmp_path / "statsd.sock").exists, alive=agent)
        eventually(lambda: get(f"{engine_url}/health/ready")[0] == 200, alive=engine)
        jobs = [Job("aie", (url.removeprefix("http://"),))]
        with Hooked(statsd, gpus) as hooked, alerting(tmp_path / "servers", jobs, TIME_SCALE) as servers:
            eventually(lambda: (view := engine_view(url, "stuck")) is not None and view.state == "up", alive=agent)
            made = Stage(engine, agent, gpus, hooked, servers)
            # The dead man's switch has come through: so can others.
            eventually(lambda: "AieWatchdog" in made.alerts(), alive=agent)
            eventually(lambda: servers.prometheus.query("aie_drift_watching == 1"), alive=agent)
            yield made


EXPECTED = {
    "AieMemoryLeak": {"severity": "warning", "component": "memory", "subject": "hooked", "cause": "memory_leak"},
    "AieOutputDrift": {"severity": "warning", "component": "drift", "subject": "hooked", "cause": "output_drift"},
    "AieEngineStopped": {"component": "engine", "subject": "stuck", "engine": "stuck", "cause": "engine_stopped"},
    "AieGpuLost": {"severity": "critical", "component": "gpu", "gpu": "1"},
}


def test_four_faults_become_alerts_and_end_with_their_repair(stage: Stage) -> None:
    assert not set(EXPECTED) & set(stage.alerts())
    stage.break_everything()
    arrived: dict[str, dict[str, Any]] = {}

    def all_there() -> bool:
        arrived.update(stage.alerts())
        return set(EXPECTED) <= set(arrived)

    eventually(all_there, alive=stage.agent, timeout_s=240)
    for name, labels in EXPECTED.items():
        assert arrived[name]["labels"].items() >= ({"job": "aie"} | labels).items(), arrived[name]
        assert f"/runbooks/{name}" in arrived[name]["annotations"]["runbook_url"]
        assert arrived[name]["labels"]["action"]
    stage.mend_everything()
    eventually(lambda: not set(EXPECTED) & set(stage.alerts(active=False)), alive=stage.agent, timeout_s=240)
