"""From a fault to Alertmanager and back: a real engine, the agent, Prometheus with aie's rules, Alertmanager as shipped, all
at one time scale. A leak, a drift, a stopped engine, one that hangs and a lost GPU arrive with their labels, and go when they are
mended, while all that would have told of them is there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aie_agent import simulate
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About
from aie_agent.analysis.drift.reference_file import save
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


PAGE = """
import http.server, pathlib, sys

class Page(http.server.BaseHTTPRequestHandler):
    tokens = 0

    def do_GET(self):
        if not pathlib.Path(sys.argv[1]).exists():
            Page.tokens += 7
        labels = '{engine="0",model_name="m"}'
        body = (
            f"# TYPE vllm:num_requests_running gauge\\nvllm:num_requests_running{labels} 1.0\\n"
            f"# TYPE vllm:generation_tokens_total counter\\nvllm:generation_tokens_total{labels} {Page.tokens}\\n"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Paged:
    """An engine of which there is the page only: one request runs in it, and each look finds more tokens, unless it `hangs`. A
    process of its own: the agent asks the kernel who serves a page."""

    def __init__(self, hangs: Path) -> None:
        self.hangs = hangs
        self._process = subprocess.Popen([sys.executable, "-c", PAGE, hangs], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}/metrics"

    def __enter__(self) -> Paged:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Stage(NamedTuple):
    """All of it, well."""

    engine: Program
    agent: Program
    url: str
    gpus: simulate.Controller
    hooked: Hooked
    paged: Paged
    servers: Alerting

    def alerts(self, *, active: bool = True) -> dict[str, dict[str, Any]]:
        """What is in Alertmanager, by the alert's name: of several of one name, that of the subject that it was made for. With
        `active` nothing that another inhibits."""
        alerts = [(alert["labels"]["alertname"], alert) for alert in self.servers.alertmanager.alerts(active=active)]
        return dict(sorted(alerts, key=lambda each: each[1]["labels"].get("subject") == EXPECTED.get(each[0], {}).get("subject")))

    def break_everything(self) -> None:
        """The five faults, at once."""
        self.hooked.leaks.set()
        self.hooked.drifts.set()
        self.paged.hangs.touch()
        self.engine.process.send_signal(signal.SIGSTOP)
        self.gpus.lose(1)

    def mend_everything(self) -> None:
        """None of them any more."""
        self.hooked.leaks.clear()
        self.hooked.drifts.clear()
        self.paged.hangs.unlink()
        self.engine.process.send_signal(signal.SIGCONT)
        self.gpus.lose(1, lost=False)

    def unseen(self) -> list[str]:
        """What nobody could tell of now: an alert that is gone while something of this is missing is no repair."""
        query = self.servers.prometheus.query
        states = {name: getattr(engine_view(self.url, name), "state", "gone") for name in ("stuck", "hung")}
        looks = {
            "the dead man's switch": "AieWatchdog" in self.alerts(),
            "the agent's page": [each["value"][1] for each in query("up")] == ["1"],
            "the lost GPU": [each["value"][1] for each in query('aie_gpu_up{gpu="1"}')] == ["1"],
            "what the hooks say": bool(query('aie_engine_allocator_reserved_bytes{engine="hooked"}')),
            "drift": bool(query('aie_drift_watching{engine="hooked"} == 1')),
            **{f"engine {name}": state == "up" for name, state in states.items()},
        }
        return [what for what, is_there in looks.items() if not is_there]

    def wait_until_all_is_seen(self) -> None:
        """Fails with what is not."""
        until_s = time.monotonic() + 180.0
        while missing := self.unseen():
            assert time.monotonic() < until_s, missing
            time.sleep(0.2)


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
    # Who is stopped for 40 s hangs as well, and is stopped no more: time enough for the alert before.
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
        f'[leaks]\ntime_scale = {TIME_SCALE}\nwarm_up_requests = 0\n[drift]\nreferences = ["{tmp_path}/m.aieref"]\n'
        f'[gpu]\nexpected = 2\n[findings]\nstacks = false\nhung_after = "40s"\n'
        f'[[engines]]\nname = "stuck"\nmetrics_url = "{engine_url}/metrics"\n'
    )
    with simulate.Controller.create(tmp_path / "gpus", 2, "H100") as gpus, Paged(tmp_path / "hangs") as paged:
        with config.open("a") as file:
            file.write(f'[[engines]]\nname = "hung"\nmetrics_url = "{paged.url}"\n')
        agent = start("aie-agent", "run", "--no-bpf", "--config", str(config), **simulate.environment(gpus.path))
        url = agent.url()
        eventually((tmp_path / "statsd.sock").exists, alive=agent)
        eventually(lambda: get(f"{engine_url}/health/ready")[0] == 200, alive=engine)
        jobs = [Job("aie", (url.removeprefix("http://"),))]
        with Hooked(statsd, gpus) as hooked, alerting(tmp_path / "servers", jobs, TIME_SCALE) as servers:
            made = Stage(engine, agent, url, gpus, hooked, paged, servers)
            # The dead man's switch has come through: so can others.
            made.wait_until_all_is_seen()
            yield made


EXPECTED = {
    "AieMemoryLeak": {
        "severity": "warning",
        "component": "memory",
        "subject": "hooked",
        "engine": "hooked",
        "cause": "memory_leak",
    },
    "AieOutputDrift": {
        "severity": "warning",
        "component": "drift",
        "subject": "hooked",
        "engine": "hooked",
        "cause": "output_drift",
    },
    "AieEngineStopped": {
        "severity": "warning",
        "component": "engine",
        "subject": "stuck",
        "engine": "stuck",
        "cause": "engine_stopped",
    },
    "AieEngineHung": {"severity": "critical", "component": "engine", "subject": "hung", "engine": "hung", "cause": "engine_hung"},
    "AieGpuLost": {"severity": "critical", "component": "gpu", "gpu": "1"},
}


def test_five_faults_become_alerts_and_end_with_their_repair(stage: Stage) -> None:
    assert not set(EXPECTED) & set(stage.alerts())
    stage.break_everything()
    arrived: dict[str, dict[str, Any]] = {}

    def of_subject(name: str, alert: dict[str, Any]) -> bool:
        return EXPECTED[name].get("subject") in (None, alert["labels"].get("subject"))

    def all_there() -> bool:
        there = stage.alerts()
        arrived.update({name: there[name] for name in EXPECTED.keys() & there if of_subject(name, there[name])})
        return set(EXPECTED) <= set(arrived)

    eventually(all_there, alive=stage.agent, timeout_s=240)
    of_all = {"job": "aie", "instance": stage.url.removeprefix("http://")}
    for name, labels in EXPECTED.items():
        assert arrived[name]["labels"].items() >= (of_all | labels).items(), arrived[name]
        assert f"/runbooks/{name}" in arrived[name]["annotations"]["runbook_url"]
        assert arrived[name]["labels"]["action"]
    assert "the lost GPU" in stage.unseen()
    stage.mend_everything()
    eventually(lambda: not set(EXPECTED) & set(stage.alerts(active=False)), alive=stage.agent, timeout_s=240)
    stage.wait_until_all_is_seen()
    # And none comes again, now that all that tells of them is known to be there.
    assert not set(EXPECTED) & set(stage.alerts(active=False))
