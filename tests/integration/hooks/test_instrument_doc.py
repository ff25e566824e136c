"""The document's own code blocks, run: the ten lines in a plain server under load, vLLM's plugin on a stand-in of its interface."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import urllib3
from torch.distributions import Categorical

import aie_hooks
from aie_hooks import VllmStats
from aie_telemetry.catalogue import OUTCOMES
from aie_telemetry.exposition import PageParser
from aie_telemetry.memory_probe import REQUESTS_NAME, ProbeRequest, encode_requests
from aie_telemetry.statsd import Sample
from tests.e2e.programs import Program, Start, engine_view, eventually, get, start
from tests.integration.hooks.plain_server import VOCABULARY, tiny_model
from tests.unit.hooks.hook_receivers import UnixReceiver, decode, levels, observations, total, totals

__all__ = ["start"]

DOCUMENT = Path(__file__).parents[3] / "docs" / "instrument-your-engine.md"
SERVER = Path(__file__).with_name("plain_server.py")
CLIENTS = 4
HTTP = urllib3.PoolManager(retries=False, timeout=120, maxsize=CLIENTS)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


PLAIN, MEMORY, PROBE, VLLM = blocks("python")


class Server:
    """The plain server as a process of its own, and what it says that it did."""

    def __init__(self, tmp_path: Path, endpoint: str) -> None:
        block = tmp_path / "block.py"
        block.write_text(PLAIN)
        self.did_path = tmp_path / "did.jsonl"
        self.process = subprocess.Popen(
            [sys.executable, SERVER, block, self.did_path],
            stdout=subprocess.PIPE,
            env=os.environ | {"AIE_STATSD": endpoint, "PYTHONPATH": str(DOCUMENT.parents[1])},
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), "the server did not start"
        self.url = line.removeprefix("listening on ").strip()

    def ask(self, prompt_ids: list[int], max_tokens: int) -> tuple[int, list[int]]:
        body = json.dumps({"prompt_ids": prompt_ids, "max_tokens": max_tokens})
        answer = HTTP.request("POST", f"{self.url}/generate", body=body)
        return answer.status, [int(line) for line in answer.data.split()] if answer.status == 200 else []

    def ask_and_leave(self) -> None:
        """A client that reads one token of many and goes."""
        host, port = self.url.removeprefix("http://").split(":")
        body = json.dumps({"prompt_ids": [1, 2, 3], "max_tokens": 400}).encode()
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            client.recv(1)

    def did(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.did_path.read_text().splitlines()] if self.did_path.exists() else []

    def did_all(self, requests: int) -> list[dict[str, Any]]:
        eventually(lambda: len(self.did()) == requests)
        return self.did()


@contextlib.contextmanager
def serving(tmp_path: Path, endpoint: str) -> Iterator[Server]:
    server = Server(tmp_path, endpoint)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


class Draining:
    """A receiver that is read all the time, as an agent reads: a Unix socket holds ten packets."""

    def __init__(self, path: Path) -> None:
        self.receiver = UnixReceiver(path)
        self.receiver.socket.setblocking(True)
        self.packets: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.packets.append(self.receiver.socket.recv(65536))

    def samples(self) -> list[Sample]:
        return decode(list(self.packets))


def _load(server: Server) -> list[tuple[list[int], list[int]]]:
    """Requests of four clients at once: (prompt, answer) of those that are answered."""
    prompts = [[(7 * index + step) % VOCABULARY for step in range(3 + index % 5)] for index in range(20)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda prompt: server.ask(prompt, 1 + sum(prompt) % 9), prompts))
    assert {status for status, _ in answers} == {200}
    return [(prompt, answer) for prompt, (_, answer) in zip(prompts, answers, strict=True)]


def _oracle(served: list[tuple[list[int], list[int]]]) -> dict[str, list[float]]:
    """The same answers by transformers' own `generate`, and their numbers by torch.distributions in float64."""
    model = tiny_model()
    found: dict[str, list[float]] = {"output_entropy_nats": [], "output_surprisal_nats": [], "first_token_logsumexp_nats": []}
    for prompt, answer in served:
        made = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=len(answer),
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        assert made.sequences[0, len(prompt) :].tolist() == answer
        logits = torch.cat(made.logits).double()
        distribution = Categorical(logits=logits)
        found["output_entropy_nats"].append(float(distribution.entropy().mean()))
        found["output_surprisal_nats"].append(-float(distribution.log_prob(torch.tensor(answer)).mean()))
        found["first_token_logsumexp_nats"].append(float(logits[0].logsumexp(-1)))
    return found


def test_ten_lines() -> None:
    assert len([line for line in PLAIN.splitlines() if "# aie" in line]) == 10


def test_what_arrives_is_what_the_server_did(tmp_path: Path) -> None:
    draining = Draining(tmp_path / "statsd.sock")
    with serving(tmp_path, f"unix://{tmp_path}/statsd.sock") as server:
        served = _load(server)
        status, _ = server.ask([VOCABULARY], 3)
        assert status == 500
        server.ask_and_leave()
        did = server.did_all(len(served) + 2)
        ended = Counter(row["outcome"] for row in did)
        assert ended == {"ok": len(served), "error": 1, "cancelled": 1}
        tokens = sum(row["tokens"] for row in did)

        def arrived() -> bool:
            samples = draining.samples()
            return (
                total(samples, "aie_engine_requests_total") == len(did)
                and levels(samples).get(next(key for key in levels(samples) if key[0] == "aie_engine_requests_running")) == 0
                and len(observations(samples, "aie_engine_request_duration_seconds")) == len(did)
                and len(observations(samples, "aie_engine_request_generation_tokens")) == len([row for row in did if row["tokens"]])
            )

        eventually(arrived)
    samples = draining.samples()
    by_outcome = {dict(tags)["outcome"]: n for (name, tags), n in totals(samples).items() if name == "aie_engine_requests_total"}
    assert by_outcome == {outcome: float(ended.get(outcome, 0)) for outcome in OUTCOMES}
    assert total(samples, "aie_hooks_dropped_total") == 0
    assert total(samples, "aie_engine_requests_received_total") == len(did)
    assert total(samples, "aie_engine_generation_tokens_total") == tokens
    assert total(samples, "aie_engine_prompt_tokens_total") == sum(row["prompt"] for row in did if row["tokens"])
    assert sorted(observations(samples, "aie_engine_request_generation_tokens")) == sorted(
        row["tokens"] for row in did if row["tokens"]
    )
    answered = [row for row in did if row["tokens"]]
    assert len(observations(samples, "aie_engine_time_to_first_token_seconds")) == len(answered)
    assert len(observations(samples, "aie_engine_inter_token_seconds")) == tokens - len(answered)
    assert draining.receiver.pids == [] or set(draining.receiver.pids) == {server.process.pid}
    for name, values in _oracle(served).items():
        seen = observations(samples, f"aie_engine_{name}")
        # The answer to the client that left was cut off: it says nothing of the model.
        assert len(seen) == len(served)
        left_over = list(seen)
        for value in values:
            nearest = min(left_over, key=lambda other: abs(other - value))
            assert nearest == pytest.approx(value, rel=1e-3, abs=1e-4)
            left_over.remove(nearest)


def test_a_real_agent_shows_it(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
    )
    agent = start("aie-agent", "run", "--no-bpf", "--config", str(config))
    agent_url = agent.url()
    with serving(tmp_path, f"unix://{tmp_path}/statsd.sock") as server:
        view = eventually(lambda: (v := engine_view(agent_url, "plain")) and v.processes and v, alive=agent)
        assert [process.tgid for process in view.processes] == [server.process.pid]
        served = _load(server)
        tokens = sum(len(answer) for _, answer in served)

        def value(name: str, **labels: str) -> float:
            return _page_value(agent, agent_url, name, engine="plain", model="tiny", **labels)

        eventually(lambda: value("aie_engine_requests_total", outcome="ok") == len(served), alive=agent)
        eventually(lambda: value("aie_engine_output_entropy_nats_count") == len(served), alive=agent)
        assert value("aie_engine_generation_tokens_total") == tokens
        assert value("aie_engine_inter_token_seconds_count") == tokens - len(served)
        eventually(lambda: value("aie_engine_requests_running") == 0, alive=agent)
        expected = sum(_oracle(served)["output_entropy_nats"])
        assert value("aie_engine_output_entropy_nats_sum") == pytest.approx(expected, rel=1e-3)


def _page_value(agent: Program, url: str, name: str, **labels: str) -> float:
    _, page = get(f"{url}/metrics")
    wanted = set(labels.items())
    return sum(s.value for s in PageParser().parse(page.decode()).samples if s.name == name and wanted <= set(s.tags))


def test_every_name_in_the_document_exists() -> None:
    text = DOCUMENT.read_text()
    table = "".join(line for line in text.splitlines() if line.startswith("| "))
    named = set(re.findall(r"\b([A-Z]\w+Hooks?|AllocatorStats|\w+_stats|oom_forensics|span_tracer|annotate)\(?", table))
    assert {"ModuleHooks", "AllocatorHook", "AllocatorStats", "torch_cuda_stats", "span_tracer", "oom_forensics"} <= named
    assert named <= set(dir(aie_hooks))


def test_the_probe_block_answers_the_agents_file(tmp_path: Path) -> None:
    receiver = UnixReceiver(tmp_path / "statsd.sock")
    with contextlib.closing(receiver), contextlib.closing(aie_hooks.Emitter("plain", f"unix://{tmp_path}/statsd.sock")) as emitter:
        names = {"emitter": emitter, "held": lambda: aie_hooks.AllocatorStats("cpu", 1, 2), "running_requests": list}
        exec(compile(PROBE, "instrument-your-engine.md", "exec"), names)
        (tmp_path / REQUESTS_NAME).write_bytes(
            encode_requests([ProbeRequest(engine="plain", ask="memory_probe", id="1", expires_s=1e12)])
        )
        (tmp_path / REQUESTS_NAME).chmod(0o644)
        exec("answered = probe.look()", names)
    assert names["answered"]


def test_the_memory_block_reports_without_anybody_calling(tmp_path: Path) -> None:
    receiver = UnixReceiver(tmp_path / "statsd.sock")
    model, pool = tiny_model(), torch.zeros(1000)
    with contextlib.closing(receiver), contextlib.closing(aie_hooks.Emitter("plain", f"unix://{tmp_path}/statsd.sock")) as emitter:
        names = {"model": model, "kv_pool": pool, "kv_used_bytes": lambda: 400, "emitter": emitter}
        exec(compile(MEMORY, "instrument-your-engine.md", "exec"), names)
        samples: list[Sample] = []
        reserved = "aie_engine_allocator_reserved_bytes"
        eventually(lambda: samples.extend(receiver.samples()) or any(name == reserved for name, _ in levels(samples)))
    found = {name: value for (name, tags), value in levels(samples).items() if ("device", "cpu") in tags}
    storages = [each.untyped_storage() for each in (*model.parameters(), *model.buffers())]
    weights = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    assert found["aie_engine_allocator_allocated_bytes"] == weights + 400
    assert found["aie_engine_allocator_reserved_bytes"] == weights + 4000


def test_the_plugins_entry_point_is_the_class_of_the_block() -> None:
    (project,) = blocks("toml")
    module, _, name = tomllib.loads(project)["project"]["entry-points"]["vllm.stat_logger_plugins"]["aie"].partition(":")
    assert module == tomllib.loads(project)["project"]["name"].replace("-", "_")
    assert f"class {name}(StatLoggerBase):" in VLLM


# vLLM, as far as a stat logger sees it. Its shapes are those of vllm/v1/metrics/{loggers,stats}.py.


class _Reason:
    """As vLLM's FinishReason: an enum whose text is the reason."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def _finished(reason: str, tokens: int) -> SimpleNamespace:
    return SimpleNamespace(
        finish_reason=_Reason(reason),
        e2e_latency=1.5,
        num_prompt_tokens=12,
        num_generation_tokens=tokens,
        queued_time=0.25,
        prefill_time=0.5,
        inference_time=1.25,
        decode_time=0.75 if tokens > 1 else 0.0,
        mean_time_per_output_token=0.125 if tokens > 1 else 0.0,
    )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type:
    """`vllm.v1.metrics.loggers` with its base class."""

    class StatLoggerBase:
        def log(self) -> None: ...

    for name in ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.metrics.loggers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.metrics.loggers"].StatLoggerBase = StatLoggerBase  # type: ignore[attr-defined]
    return StatLoggerBase


def test_the_vllm_plugin(vllm: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIE_STATSD", f"unix://{tmp_path}/statsd.sock")
    receiver = UnixReceiver(tmp_path / "statsd.sock")
    names: dict[str, Any] = {}
    exec(compile(VLLM, "instrument-your-engine.md", "exec"), names)
    plugin = names["AieStatLogger"]
    assert issubclass(plugin, vllm)
    config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="Qwen/Qwen2-7B"))
    VllmStats.of_process.cache_clear()
    other, logger = plugin(config), plugin(config, 1)  # two data-parallel engine cores
    assert other.stats is logger.stats
    logger.log_engine_initialized()
    scheduler = SimpleNamespace(
        num_running_reqs=3,
        num_waiting_reqs=2,
        kv_cache_usage=0.5,
        prefix_cache_stats=SimpleNamespace(reset=False, requests=1, queries=64, hits=48),
    )
    iteration = SimpleNamespace(
        num_prompt_tokens=30,
        prompt_token_stats=SimpleNamespace(computed=18, local_cache_hit=12, external_kv_transfer=0, total=30),
        num_generation_tokens=5,
        num_preempted_reqs=1,
        finished_requests=[
            _finished("stop", 7),
            _finished("length", 1),
            _finished("abort", 3),
            _finished("mystery", 2),
            _finished("abort", 0),
        ],
        time_to_first_tokens_iter=[0.75],
        inter_token_latencies_iter=[0.004] * 4,
    )
    stats = logger.stats
    # The whole distribution, so that it can be compared; in service it is a sample.
    stats._histograms = {name: stats._emitter.histogram(name, 1.0, model="Qwen/Qwen2-7B") for name in stats._histograms}
    other.record(SimpleNamespace(num_running_reqs=4, num_waiting_reqs=1, kv_cache_usage=0.75), None, None, engine_idx=0)
    logger.record(scheduler, iteration, None, engine_idx=1)
    logger.record(scheduler, None, mm_cache_stats=None, engine_idx=1)
    logger.record(None, SimpleNamespace(num_generation_tokens="many"), None, 1)
    stats._emitter.close()
    samples = decode(receiver.packets())
    receiver.close()
    assert {dict(sample.tags)["engine"] for sample in samples} == {"vllm"}
    gauges = {name.removeprefix("aie_engine_"): level for (name, _), level in levels(samples).items()}
    assert (gauges["requests_running"], gauges["requests_waiting"], gauges["kv_usage_ratio"]) == (7.0, 3.0, 0.75)
    sums = {name: total(samples, f"aie_engine_{name}_total") for name in ("prompt_tokens", "generation_tokens", "preemptions")}
    assert sums == {"prompt_tokens": 18, "generation_tokens": 5, "preemptions": 1}
    assert total(samples, "aie_engine_prefix_cache_queries_total") == 128
    assert total(samples, "aie_engine_prefix_cache_hits_total") == 96
    by_outcome = {dict(tags)["outcome"]: n for (name, tags), n in totals(samples).items() if name == "aie_engine_requests_total"}
    assert by_outcome == {"ok": 2.0, "cancelled": 2.0, "error": 0.0}
    assert observations(samples, "aie_engine_inter_token_seconds") == [0.004] * 4
    assert observations(samples, "aie_engine_time_to_first_token_seconds") == [0.75]
    assert observations(samples, "aie_engine_queue_seconds") == [0.25] * 5
    assert observations(samples, "aie_engine_time_per_output_token_seconds") == [0.125] * 3
    assert observations(samples, "aie_engine_request_generation_tokens") == [7.0, 1.0, 3.0, 2.0]
    # The reason that nobody knows, and the step that could not be read.
    assert stats._emitter.stats().dropped["invalid"] == 2
