"""Requests that mean no good, and too many of them: each has exactly one answer, nobody hangs, and the books add up."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from fakes.fake_engine import WAIT_S, FakeEngine, fake_engine
from fakes.fake_model import EOS
from http_client import CHAT, TEXT, chat, get, post, receive, send, text

CLIENTS = 500


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine() as engine:
        yield engine


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "ranges of more than"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
        ("{{ messages[0].absent.deeper }}", "absent"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{% for m in messages %}{{ m.content * 9000 }}{% endfor %}", "more than"),
    ],
)
def test_a_template_that_refuses_the_messages(template: str, reason: str) -> None:
    with fake_engine(template=template) as engine:
        for _ in range(3):
            reply = post(engine.url, CHAT, chat("x" * 1_000))
            error = reply.error()
            assert (reply.status, error["param"], error["type"]) == (400, "messages", "invalid_request_error")
            assert reason in error["message"]
        assert post(engine.url, TEXT, text()).status == 200  # no template there
        assert engine.outcomes() == {"rejected": 3, "ok": 1}


@pytest.mark.parametrize("prompt", [[1] * 100_000, "x" * 100_000, "1 " * 50_000], ids=["ids", "letters", "words"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_100_000_tokens_is_refused(engine: FakeEngine, prompt: Any, stream: bool) -> None:
    reply = post(engine.url, TEXT, text(prompt, stream=stream))
    error = reply.error()
    assert (reply.status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert "4000" in error["message"]
    assert not engine.runner.steps


def test_ids_that_no_vocabulary_has(engine: FakeEngine) -> None:
    for ids in ([-1], [EOS + 1], [1 << 40], [1, 2, -(1 << 62)]):
        assert post(engine.url, TEXT, text(ids)).error()["param"] == "prompt"


def test_nobody_waits_for_the_prompts_of_others(engine: FakeEngine) -> None:
    """Encoding blocks here until it is let go: what needs none goes on, and deadlines hold."""
    tokenizer = engine.serving.model().tokenizer
    encode = tokenizer.encode
    go = threading.Event()

    def slow(text: str, *, allow_special: bool) -> list[int]:
        assert go.wait(WAIT_S)
        return encode(text, allow_special=allow_special)

    tokenizer.encode = slow  # type: ignore[method-assign]
    try:
        stuck = [send(engine.url, "POST", CHAT, chat()) for _ in range(4)]
        engine.wait_for(lambda: engine.metrics.ledger.counts().received == 4)
        assert get(engine.url, "/health").status == 200
        assert get(engine.url, "/metrics").status == 200
        assert post(engine.url, CHAT, b"{").status == 400
        reply = post(engine.url, CHAT, chat(), {"X-Request-Timeout-Seconds": "0.1"})
        assert (reply.status, reply.error()["code"]) == (504, "deadline_exceeded")
    finally:
        go.set()
    assert [receive(connection).status for connection in stuck] == [200] * 4
    assert engine.outcomes() == {"ok": 4, "rejected": 1, "timeout": 1}


_NOT_TEXT = [
    b'{"model": "fake", "prompt": "\xff\xfe"}',
    b'{"model": "fake", "prompt": "a\xc3"}',
    b'{"model": "fake", "prompt": "\xc0\xaf"}',
    b'{"model": "fake", "prompt": "\xed\xa0\x80"}',
    b'{"model": "fake", "prompt": "\xf4\x90\x80\x80"}',
    b'{"model": "fake", "prompt": "\\ud800"}',
    b'{"model": "fake", "prompt": "\\udc00\\ud800"}',
    b'{"model": "\xff", "prompt": "x"}',
    b'{"model": "fake", "prompt": "x", "stop": "\xff"}',
    json.dumps({"model": "fake", "prompt": "x"}).encode("utf-16"),
    b"\xef\xbb\xbf" + b'{"model": "fake", "prompt": "x"}',
]


@pytest.mark.parametrize("body", _NOT_TEXT)
def test_bodies_that_are_no_utf8(engine: FakeEngine, body: bytes) -> None:
    reply = post(engine.url, TEXT, body)
    assert reply.status == 400
    assert reply.error()["type"] == "invalid_request_error"
    assert engine.outcomes() == {"rejected": 1}


def test_text_that_is_odd_and_valid(engine: FakeEngine) -> None:
    odd = "\x00 \u202e \ufeff \U0010ffff e\u0301 \r\n"
    assert post(engine.url, TEXT, text(odd)).status == 200
    assert post(engine.url, CHAT, chat(odd, stop=["\x00", "\U0010ffff"])).status == 200


async def ask(session: aiohttp.ClientSession, url: str, index: int) -> tuple[int, str]:
    """One client: its status, and how its answer ended."""
    streams = index % 2 == 1
    async with session.post(url + CHAT, json=chat(f"client {index}", stream=streams, max_tokens=1 + index % 20)) as reply:
        body = await reply.text()
        if reply.status == 429:
            assert 1 <= int(reply.headers["Retry-After"]) <= 60
            return reply.status, json.loads(body)["error"]["code"]
        assert body.count("data: [DONE]") == streams
        last = json.loads(body.split("\n\n")[-3].removeprefix("data: ")) if streams else json.loads(body)
        return reply.status, last["choices"][0]["finish_reason"]


async def test_500_clients_at_once() -> None:
    with fake_engine(max_running=8, max_waiting=40) as engine:
        engine.runner.hold()  # so that they are really there together
        timeout = aiohttp.ClientTimeout(total=WAIT_S * 4)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            clients = [asyncio.create_task(ask(session, engine.url, index)) for index in range(CLIENTS)]
            while sum(engine.outcomes().values()) < CLIENTS - 48:
                done, _ = await asyncio.wait(clients, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
                assert not [client for client in done if client.exception()]
            assert engine.outcomes() == {"rejected": CLIENTS - 48}
            engine.runner.release()
            answers = Counter(await asyncio.gather(*clients))
        assert answers == {(429, "queue_full"): CLIENTS - 48, (200, "length"): 48}
        counts = engine.metrics.ledger.counts()
        assert (counts.received, counts.waiting, counts.running) == (CLIENTS, 0, 0)
        assert engine.outcomes() == {"rejected": CLIENTS - 48, "ok": 48}
        assert engine.serving.model().loop.kv_usage().used == 0


async def test_500_clients_of_whom_many_leave() -> None:
    with fake_engine(max_running=8, max_waiting=1_000) as engine:
        engine.runner.hold()  # some in a step that hangs, the others in the queue
        timeout = aiohttp.ClientTimeout(total=WAIT_S * 4)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            clients = [asyncio.create_task(ask(session, engine.url, index)) for index in range(CLIENTS)]
            while engine.metrics.ledger.counts().received < CLIENTS:
                await asyncio.wait(clients, timeout=0.05)
            leaving = clients[::3]
            for client in leaving:
                client.cancel()
            while engine.outcomes() != {"cancelled": len(leaving)}:
                await asyncio.wait(clients, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
            engine.runner.release()
            answers = await asyncio.gather(*clients, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::3])
        assert {answer for answer in answers if isinstance(answer, tuple)} == {(200, "length")}
        engine.wait_for(lambda: sum(engine.outcomes().values()) == CLIENTS)
        assert engine.outcomes() == {"cancelled": len(leaving), "ok": CLIENTS - len(leaving)}
        assert engine.serving.model().loop.kv_usage().used == 0
