"""What the engine tells through its hooks, on a real socket; and hooks that fail, which the engine must not notice."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_engine import FakeEngine, fake_engine
from fakes.fake_model import continuation
from http_client import CHAT, TEXT, chat, get, post, text

from aie_hooks.logits import LogitsHook, LogitsHooks
from aie_hooks.requests import RequestHook, RequestHooks
from aie_telemetry.api import Event
from aie_telemetry.events import decode_event


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "agent.sock"))
        receiver.settimeout(0.0)
        yield receiver


def address(receiver: socket.socket) -> str:
    return f"unix://{receiver.getsockname()}"


def packets(receiver: socket.socket) -> str:
    """All that has come."""
    found = []
    while True:
        try:
            found.append(receiver.recv(65_536).decode())
        except BlockingIOError:
            return "\n".join(found)


def values(lines: str, name: str) -> list[float]:
    """Values of a metric's lines."""
    return [
        float(value) for line in re.findall(rf"^{name}[,:].*$", lines, re.MULTILINE) for value in re.findall(r":([-0-9.e+]+)", line)
    ]


def test_every_stage_and_every_distribution_is_told(receiver: socket.socket) -> None:
    with fake_engine(hook_rate=1.0, statsd=address(receiver)) as engine:
        assert post(engine.url, TEXT, text("Hello", max_tokens=6)).status == 200
    lines = packets(receiver)
    tokens = len(continuation(b"Hello", 6))
    for stage in ("tokenize", "queue", "prefill", "decode", "time_to_first_token", "request_duration"):
        assert len(values(lines, f"aie_engine_{stage}_seconds")) == 1, stage
    assert values(lines, "aie_engine_request_prompt_tokens") == [5]
    assert values(lines, "aie_engine_request_generation_tokens") == [tokens]
    # The fake model's figures: entropy 1, log-sum-exp 2, every choice of probability one half.
    assert values(lines, "aie_engine_output_entropy_nats") == [pytest.approx(1.0)]
    assert values(lines, "aie_engine_output_surprisal_nats") == [pytest.approx(math.log(2), rel=1e-4)]
    assert values(lines, "aie_engine_first_token_logsumexp_nats") == [pytest.approx(2.0)]
    assert values(lines, "aie_engine_output_log_length") == [pytest.approx(math.log(tokens), rel=1e-4)]


def test_only_sampled_requests_pay_for_their_distributions(receiver: socket.socket) -> None:
    with fake_engine(hook_rate=1e-6, statsd=address(receiver)) as engine:
        assert post(engine.url, TEXT, text()).status == 200
        assert all(chunk.sampling.detail is None for step in engine.runner.steps for chunk in step)
    with fake_engine(hook_rate=1.0, statsd=address(receiver)) as engine:
        assert post(engine.url, TEXT, text()).status == 200
        assert post(engine.url, TEXT, text(logprobs=3)).status == 200
        assert {chunk.sampling.detail for step in engine.runner.steps for chunk in step} == {0, 3}


def events(lines: str) -> list[Event]:
    found = [decode_event(title, body) for title, body in re.findall(r"^_e\{\d+,\d+\}:([^|]+)\|(.*)$", lines, re.MULTILINE)]
    return [event for event in found if event is not None]


def test_a_step_that_runs_out_of_memory_leaves_a_record(receiver: socket.socket) -> None:
    with fake_engine(statsd=address(receiver)) as engine:
        words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 123456 bytes. Error code 12"
        engine.runner.failures.append(RuntimeError(words))
        assert post(engine.url, TEXT, text("Hello", max_tokens=15)).status == 500
        (event,) = events(packets(receiver))  # at once
        assert post(engine.url, TEXT, text()).status == 200
        assert engine.outcomes() == {"error": 1, "ok": 1}
        engine.runner.failures.append(RuntimeError("something else"))
        assert post(engine.url, TEXT, text()).status == 500
    assert not events(packets(receiver))
    assert (event.kind, event.engine) == ("oom", "fake")
    facts = event.details
    assert facts["device"] == "cpu"
    assert facts["asked_bytes"] == 123_456
    # Of 4000 slots of a byte each the request held 20.
    assert facts["total_bytes"] == 4_000
    assert facts["free_bytes"] == facts["largest_free_bytes"] == 4_000 - 20
    assert facts["reserved_bytes"] - facts["allocated_bytes"] == facts["free_bytes"]  # type: ignore[operator]


class TornError(Exception):
    """What a hook throws."""


def torn(*_: Any, **__: Any) -> Any:
    raise TornError


_HOOKS = [
    (RequestHooks, "enter"),
    (RequestHooks, "step"),
    (RequestHook, "tokenized"),
    (RequestHook, "queued"),
    (RequestHook, "admitted"),
    (RequestHook, "one_of_many"),
    (RequestHook, "cached"),
    (RequestHook, "end"),
    (LogitsHooks, "enter"),
    (LogitsHook, "add"),
    (LogitsHook, "end"),
]


class TornTracer:
    begin = staticmethod(torn)


@pytest.fixture(params=[*_HOOKS, (None, "all"), (TornTracer, "begin")], ids=lambda hook: hook[1])
def broken_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, receiver: socket.socket) -> Iterator[FakeEngine]:
    owner, method = request.param
    for torn_owner, torn_method in _HOOKS if owner is None else [(owner, method)]:
        monkeypatch.setattr(torn_owner, torn_method, torn)
    tracer = TornTracer() if owner is TornTracer else None
    with fake_engine(hook_rate=1.0, statsd=address(receiver), tracer=tracer, response_cache_bytes=10_000) as engine:
        yield engine


def test_a_hook_that_throws_changes_no_answer_and_no_count(broken_engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    url = broken_engine.url
    expected = continuation(b"Hello", 8)
    for _ in range(2):
        reply = post(url, TEXT, text("Hello", temperature=0))  # the second comes from the cache
        assert reply.json()["choices"][0]["text"] == "".join(map(chr, expected))
    assert post(url, CHAT, chat(stream=True)).events()[-1]["choices"][0]["finish_reason"]
    assert post(url, CHAT, b"{").status == 400
    broken_engine.runner.failures.append(MemoryError())
    assert post(url, CHAT, chat()).status == 500
    assert broken_engine.outcomes() == {"ok": 3, "rejected": 1, "error": 1}
    assert broken_engine.serving.model().loop.kv_usage().used == 0
    page = get(url, "/metrics").body.decode()
    assert 'aie_engine_generation_tokens_total{engine="fake",model="fake"} 16' in page
    assert 'aie_engine_request_duration_seconds_count{engine="fake",model="fake"} 4' in page
    assert (
        1 <= len([record for record in caplog.records if record.exc_info and record.exc_info[0] is TornError]) <= len(_HOOKS)
    )  # each once
