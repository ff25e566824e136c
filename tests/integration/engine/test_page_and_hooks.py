"""One engine, two reporters: what the page says of its requests, the hooks say too, and neither waits for the other."""

from __future__ import annotations

import contextlib
import socket
import threading
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_engine import WAIT_S, FakeEngine, fake_engine
from fakes.fake_model import continuation
from http_client import CHAT, TEXT, chat, get, post, send, text

from aie_engine.request import Outcome
from aie_hooks.tracing import Stages
from aie_telemetry.catalogue import CATALOGUE
from aie_telemetry.exposition import PageParser
from aie_telemetry.statsd import Parser, Sample

DISTRIBUTIONS = (
    "time_to_first_token_seconds",
    "inter_token_seconds",
    "queue_seconds",
    "request_duration_seconds",
    "tokenize_seconds",
    "prefill_seconds",
    "decode_seconds",
    "time_per_output_token_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
)


class Receiver:
    """A Unix socket that is read all the time, as an agent reads it."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._packets: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while packet := self._socket.recv(65_536):
            self._packets.append(packet)

    def close(self) -> list[Sample]:
        """Ends the reading, after all that was sent; everything that came."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self._socket.getsockname())
        self._thread.join(WAIT_S)
        self._socket.close()
        parser = Parser(datadog=True)
        return [sample for packet in self._packets for parsed in parser.packet(packet) for sample in parsed.samples]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path / "agent.sock")
    yield receiver
    if receiver._thread.is_alive():
        receiver.close()


def leave(engine: FakeEngine, count: int, **fields: Any) -> None:
    """A client that reads the beginning of its answer and goes; it is the `count`-th who does."""
    engine.runner.hold(after_steps=3)
    leaving = send(engine.url, "POST", CHAT, chat(stream=True, max_tokens=50, **fields))
    assert leaving.getresponse().read(10)
    engine.runner.wait_until_held()  # who goes before the step has begun takes it along
    leaving.close()
    engine.wait_for_outcome(Outcome.CANCELLED, count)
    steps = len(engine.runner.steps)
    engine.runner.release()
    engine.wait_for(lambda: len(engine.runner.steps) > steps)  # the step that was held: its request is gone


def every_kind_of_request(engine: FakeEngine) -> None:
    """Answers of all lengths, hits, refusals, and requests that end in the queue, in prefill and while they generate."""
    for length in (1, 2, 8, 5, 5):
        assert post(engine.url, TEXT, text("Hello", max_tokens=length, temperature=0)).status == 200
    assert post(engine.url, CHAT, chat(stream=True, temperature=0)).status == 200
    assert post(engine.url, CHAT, chat(stream=True, temperature=0)).headers["X-Aie-Cache"] == "hit"
    first = chr(continuation(b"user: Hello\nassistant: ", 1)[0])
    assert post(engine.url, CHAT, chat(stop=first, max_tokens=50)).status == 200
    engine.wait_for(lambda: engine.metrics.ledger.counts().running == 0)
    assert post(engine.url, TEXT, text("x" * 150, max_tokens=100)).status == 400  # refused once it is encoded
    assert post(engine.url, CHAT, b"{").status == 400
    engine.runner.failures.append(RuntimeError("broken"))
    assert post(engine.url, TEXT, text()).status == 500  # in prefill
    leave(engine, 1)
    engine.runner.hold()
    running = send(engine.url, "POST", TEXT, text("Hello", max_tokens=3))
    engine.wait_for(lambda: engine.metrics.ledger.counts().running == 1)  # and the model stands still: who comes now waits
    queued = send(engine.url, "POST", TEXT, text("Hello"))
    engine.wait_for(lambda: engine.serving.model().loop._scheduler.waiting == 1)
    queued.close()
    engine.wait_for(lambda: engine.outcomes()["cancelled"] == 2)
    engine.runner.release()
    assert running.getresponse().status == 200
    engine.wait_for(lambda: engine.metrics.ledger.counts().running == 0)


def on_the_page(page: str, name: str) -> tuple[list[float], float]:
    """Observations by bucket, the last above every bound, and their sum."""
    samples = PageParser().parse(page).samples
    counts = [sample.value for sample in samples if sample.name == f"{name}_bucket"]
    (total,) = [sample.value for sample in samples if sample.name == f"{name}_sum"]
    return [after - before for before, after in zip([0.0, *counts], counts, strict=False)], total


def from_the_hooks(samples: list[Sample], name: str) -> tuple[list[float], float]:
    bounds = CATALOGUE[name].buckets
    seen = [float(sample.value) for sample in samples if sample.name == name]
    counts = [0.0] * (len(bounds) + 1)
    for value in seen:
        counts[bisect_left(bounds, value)] += 1
    return counts, sum(seen)


def test_page_and_hooks_mean_the_same(receiver: Receiver) -> None:
    with fake_engine(max_running=2, kv_tokens=200, hook_rate=1.0, statsd=receiver.url, response_cache_bytes=100_000) as engine:
        every_kind_of_request(engine)
        engine.settle()
        page = engine.metrics.page()
        received = engine.metrics.ledger.counts().received
        outcomes = engine.outcomes()
    samples = receiver.close()
    assert outcomes == {"ok": 9, "rejected": 2, "error": 1, "cancelled": 2}
    for short in DISTRIBUTIONS:
        name = f"aie_engine_{short}"
        counts, total = on_the_page(page, name)
        told, told_total = from_the_hooks(samples, name)
        assert told == counts, name
        assert told_total == pytest.approx(total, rel=1e-5, abs=1e-9), name  # six digits are sent
        assert sum(counts) > 0, name
    for counter in ("requests_received_total", "requests_total", "generation_tokens_total"):
        name = f"aie_engine_{counter}"
        told_sum = sum(float(sample.value) for sample in samples if sample.name == name)
        assert told_sum == sum(sample.value for sample in PageParser().parse(page).samples if sample.name == name), name
    assert received == sum(outcomes.values())


class Stuck:
    """A tracer whose spans cannot be made until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.made: list[str] = []

    def begin(self, *_: object, **__: object) -> Stuck:
        return self

    def end(self, _: Stages, outcome: str, *__: object) -> None:
        assert self.let_go.wait(WAIT_S)
        self.made.append(outcome)


def test_an_exporter_that_hangs_delays_no_token_and_no_page() -> None:
    stuck = Stuck()
    with fake_engine(tracer=stuck) as engine:
        for _ in range(3):
            assert post(engine.url, TEXT, text()).status == 200
            assert post(engine.url, CHAT, b"{").status == 400
        assert 'aie_engine_requests_total{engine="fake",model="fake",outcome="ok"} 3' in get(engine.url, "/metrics").body.decode()
        assert stuck.made == []
        stuck.let_go.set()
        engine.settle()
    assert sorted(stuck.made) == ["ok"] * 3 + ["rejected"] * 3


def test_a_client_that_leaves_while_a_stored_answer_is_sent_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    stuck.let_go.set()
    with fake_engine(response_cache_bytes=100_000, tracer=stuck) as engine:
        body = chat(stream=True, temperature=0)
        assert post(engine.url, CHAT, body).status == 200

        async def gone(*_: object) -> None:
            raise ConnectionResetError

        monkeypatch.setattr("aie_engine.sse.SseResponse.send", gone)
        with contextlib.suppress(OSError):  # however its connection ends
            post(engine.url, CHAT, body)
        engine.wait_for(lambda: engine.outcomes() == {"ok": 1, "cancelled": 1})
        engine.settle()
        assert 'aie_engine_response_cache_hits_total{engine="fake",model="fake"} 1' in engine.metrics.page()
    assert stuck.made == ["ok", "cancelled"]
