"""Everything that is bounded: the queue, time, size; and bodies that mean no good."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from fakes.fake_engine import WAIT_S, FakeEngine, fake_engine
from http_client import CHAT, TEXT, chat, get, post, receive, send, text
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_engine.protocol import ChatRequest, CompletionRequest
from aie_engine.request import Outcome
from aie_telemetry.exposition import PageParser


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine(max_running=1, max_waiting=2, max_body_bytes=10_000) as engine:
        yield engine


def test_a_full_engine_answers_429_and_says_when_to_retry(engine: FakeEngine) -> None:
    engine.runner.hold()
    accepted = [send(engine.url, "POST", CHAT, chat()) for _ in range(3)]
    engine.wait_for(lambda: engine.metrics.ledger.counts().received == 3)
    reply = post(engine.url, CHAT, chat())
    error = reply.error()
    assert (reply.status, error["type"], error["code"]) == (429, "rate_limit_error", "queue_full")
    assert 1 <= int(reply.headers["Retry-After"]) <= 60
    assert engine.outcomes() == {"rejected": 1}
    engine.runner.release()
    assert [receive(connection).status for connection in accepted] == [200] * 3
    assert post(engine.url, CHAT, chat()).status == 200
    assert engine.outcomes() == {"rejected": 1, "ok": 4}
    assert post(engine.url, CHAT, b"{").status == 400
    page = {name: value for name, _, value, *_ in PageParser().parse(engine.metrics.page()).samples}
    assert page["aie_engine_requests_refused_full_total"] == 1, "one of the two that were rejected"


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_in_the_queue_is_a_504(engine: FakeEngine, stream: bool) -> None:
    engine.runner.hold()
    running = send(engine.url, "POST", CHAT, chat())
    engine.runner.wait_until_held()
    reply = post(engine.url, CHAT, chat(stream=stream), {"X-Request-Timeout-Seconds": "0.1"})
    error = reply.error()
    assert (reply.status, error["type"], error["code"]) == (504, "timeout_error", "deadline_exceeded")
    assert "0.1 s" in error["message"]
    assert engine.outcomes() == {"timeout": 1}
    engine.runner.release()
    assert receive(running).status == 200


def test_a_deadline_holds_even_while_a_step_hangs(engine: FakeEngine) -> None:
    engine.runner.hold()
    reply = post(engine.url, CHAT, chat(), {"X-Request-Timeout-Seconds": "0.1"})
    assert reply.status == 504
    engine.wait_for_outcome(Outcome.TIMEOUT)


def test_a_deadline_in_the_middle_of_a_stream_is_an_event(engine: FakeEngine) -> None:
    for timeout_s in (0.3, 1, 4, 16):
        engine.runner.hold(after_steps=3)
        reply = post(engine.url, TEXT, text(stream=True), {"X-Request-Timeout-Seconds": str(timeout_s)})
        engine.runner.release()
        if reply.status == 200:
            break  # else this machine was too slow for a first token in that time, and 504 was right
    events = reply.events()
    assert events[0]["choices"][0]["text"]
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert set(engine.outcomes()) == {"timeout"}


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", ""])
def test_a_timeout_that_is_no_time_is_refused(engine: FakeEngine, value: str) -> None:
    reply = post(engine.url, CHAT, chat(), {"X-Request-Timeout-Seconds": value})
    assert (reply.status, reply.error()["param"]) == (400, "X-Request-Timeout-Seconds")


@pytest.mark.parametrize("value", ["1e999", "1000000"])
def test_a_client_cannot_stretch_the_operators_deadline(value: str) -> None:
    with fake_engine(deadline_s=0.1) as engine:
        engine.runner.hold()
        assert post(engine.url, CHAT, chat(), {"X-Request-Timeout-Seconds": value}).status == 504


def test_a_body_that_does_not_come_runs_into_the_deadline(engine: FakeEngine) -> None:
    connection = send(engine.url, "POST", CHAT, b"{", {"Content-Length": "100", "X-Request-Timeout-Seconds": "0.1"})
    assert receive(connection).status == 504
    assert engine.outcomes() == {"timeout": 1}


def test_a_body_that_does_not_come_in_its_own_time_is_a_408() -> None:
    with fake_engine(body_timeout_s=0.1) as engine:
        reply = receive(send(engine.url, "POST", CHAT, b"{", {"Content-Length": "100"}))
        error = reply.error()
        assert (reply.status, error["type"], error["code"]) == (408, "invalid_request_error", "body_timeout")
        assert reply.headers["Connection"] == "close"
        assert_adds_up(engine, {"rejected": 1})
        engine.wait_for(lambda: post(engine.url, CHAT, chat()).status == 200)  # where head and body come within that time


def test_slow_clients_take_no_places(engine: FakeEngine) -> None:
    slow = [send(engine.url, "POST", CHAT, b"{", {"Content-Length": "100"}) for _ in range(30)]
    engine.wait_for(lambda: engine.serving.uploads.arriving == 30)
    assert_adds_up(engine, {})
    assert post(engine.url, CHAT, chat()).status == 200
    engine.runner.hold()
    accepted = [send(engine.url, "POST", CHAT, chat()) for _ in range(3)]
    engine.wait_for(lambda: engine.metrics.ledger.counts().received == 4)
    assert_adds_up(engine, {"ok": 1})
    assert post(engine.url, CHAT, chat()).status == 429  # full of requests, as it may be
    engine.runner.release()
    assert [receive(connection).status for connection in accepted] == [200] * 3
    for connection in slow:
        connection.close()
    engine.wait_for(lambda: engine.outcomes() == {"ok": 4, "rejected": 1, "cancelled": 30})
    assert engine.serving.uploads.arriving == 0
    assert_adds_up(engine, engine.outcomes())


def test_bodies_that_become_complete_together_still_meet_the_limit(engine: FakeEngine) -> None:
    engine.runner.hold()
    body = json.dumps(chat()).encode()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    address = urlsplit(engine.url)
    clients = [socket.create_connection((address.hostname, address.port), timeout=WAIT_S) for _ in range(10)]
    for client in clients:
        client.sendall(head + body[:-1])
    engine.wait_for(lambda: engine.serving.uploads.arriving == 10)
    for client in clients:
        client.sendall(body[-1:])
    engine.wait_for(lambda: engine.outcomes() == {"rejected": 7})
    assert_adds_up(engine, {"rejected": 7})
    engine.runner.release()
    statuses = sorted(client.recv(12) for client in clients)
    assert statuses == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 429"] * 7
    for client in clients:
        client.close()
    engine.wait_for(lambda: sum(engine.outcomes().values()) == 10)


def test_bodies_on_their_way_have_bounded_memory_and_the_oldest_gives_way(engine: FakeEngine) -> None:
    # Three places and bodies of up to 10 000 bytes: 30 000 bytes may be on their way.
    slow = []
    for index in range(5):
        slow.append(send(engine.url, "POST", CHAT, b" " * 9_000, {"Content-Length": "9500"}))
        engine.wait_for(lambda done=index + 1: engine.serving.uploads.arriving + ended(engine) == done)  # type: ignore[misc]
    for connection in slow[:2]:
        reply = receive(connection)
        assert (reply.status, reply.error()["code"]) == (503, "overloaded")
    assert engine.serving.uploads.arriving == 3
    assert_adds_up(engine, {"rejected": 2})
    assert post(engine.url, CHAT, b" " * 9_000 + json.dumps(chat()).encode()).status == 200  # it needs the room of another
    assert receive(slow[2]).status == 503
    for connection in slow[3:]:
        connection.close()
    engine.wait_for(lambda: engine.outcomes() == {"rejected": 3, "ok": 1, "cancelled": 2})
    assert engine.serving.uploads.arriving == 0


def ended(engine: FakeEngine) -> int:
    return sum(engine.outcomes().values())


def assert_adds_up(engine: FakeEngine, outcomes: dict[str, int]) -> None:
    """The page's totals, while nothing moves."""
    page = {(name, dict(tags).get("outcome")): value for name, tags, value, *_ in PageParser().parse(engine.metrics.page()).samples}
    assert {outcome: value for (name, outcome), value in page.items() if name == _ENDED and value} == outcomes
    in_work = page["aie_engine_requests_running", None] + page["aie_engine_requests_waiting", None]
    assert page["aie_engine_requests_received_total", None] == sum(outcomes.values()) + in_work


_ENDED = "aie_engine_requests_total"


def test_a_large_body_is_a_413(engine: FakeEngine) -> None:
    reply = post(engine.url, CHAT, chat("x" * 20_000))
    assert reply.status == 413
    assert "10000 bytes" in reply.error()["message"]
    assert engine.outcomes() == {"rejected": 1}


@pytest.mark.parametrize(("path", "body", "param"), [(CHAT, chat, "messages"), (TEXT, text, "prompt")])
def test_a_prompt_far_too_long_is_refused_before_it_is_encoded(path: str, body: Any, param: str) -> None:
    with fake_engine(kv_tokens=300) as engine:
        encoded: list[int] = []
        tokenizer = engine.serving.model().tokenizer
        encode = tokenizer.encode

        def counting(text: str, *, allow_special: bool) -> list[int]:
            encoded.append(len(text))
            return encode(text, allow_special=allow_special)

        tokenizer.encode = counting  # type: ignore[method-assign]
        reply = post(engine.url, path, body("1" * 900_000))
        error = reply.error()
        assert (reply.status, error["param"], error["code"]) == (400, param, "context_length_exceeded")
        assert "at most 300 tokens" in error["message"]
        assert encoded == [600]
        assert engine.outcomes() == {"rejected": 1}


@pytest.fixture(scope="module")
def any_engine() -> Iterator[FakeEngine]:
    with fake_engine() as engine:
        yield engine


_scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text(max_size=5)
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
)
_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text(max_size=9)}), max_size=3
)
_FIELDS = sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__} - {"model"})


@settings(deadline=None, max_examples=150)
@given(
    path=st.sampled_from([CHAT, TEXT]),
    fields=st.dictionaries(st.sampled_from(_FIELDS), _json, max_size=5),
    sound=st.fixed_dictionaries({}, optional={"messages": _messages, "prompt": st.text(max_size=9)}),
)
def test_no_body_is_a_server_error(any_engine: FakeEngine, path: str, fields: dict[str, Any], sound: dict[str, Any]) -> None:
    reply = post(any_engine.url, path, {"model": "fake", "max_tokens": 3} | fields | sound)
    assert reply.status in (200, 400)
    if reply.status == 400:
        reply.error()


@settings(deadline=None, max_examples=100)
@given(body=st.binary(max_size=200) | st.text(max_size=50).map(lambda text: json.dumps(text).encode()))
def test_no_bytes_are_a_server_error(any_engine: FakeEngine, body: bytes) -> None:
    reply = post(any_engine.url, CHAT, body)
    assert reply.status == 400
    reply.error()


@pytest.mark.parametrize(
    "junk", [b"\x00" * 100, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + b"x" * 200 + b"\r\n\r\n"]
)
def test_junk_on_the_wire_hurts_nobody_else(any_engine: FakeEngine, junk: bytes) -> None:
    address = urlsplit(any_engine.url)
    with socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as client:
        client.sendall(junk)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4096):
            pass
    assert get(any_engine.url, "/health").status == 200


_NOT_HTTP = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 9_000 + b"\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    b"\x16\x03\x01\r\n\r\n",
]


@pytest.mark.parametrize("sent", _NOT_HTTP, ids=["version", "long header", "content-length", "tls"])
def test_bytes_that_are_no_http_are_one_line_for_debugging(
    any_engine: FakeEngine, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    address = urlsplit(any_engine.url)
    with caplog.at_level(logging.DEBUG), socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as client:
        client.sendall(sent)
        any_engine.wait_for(lambda: len(_client_errors(caplog)) == 1)
        assert client.recv(12) == b"HTTP/1.0 400"
    assert_quiet(caplog)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_not_encoded_as_announced(any_engine: FakeEngine, encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        reply = post(any_engine.url, CHAT, b"\xff" * 100, {"Content-Encoding": encoding})
        assert reply.status == 400
        assert "Content-Encoding" in reply.error()["message"]
        any_engine.wait_for(lambda: len(_client_errors(caplog)) == 1)
    assert_quiet(caplog)


def _client_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "aie_engine.client_errors"]


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that an operator would see, no traceback, and one line of bounded length."""
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG or record.exc_info]
    assert all("\n" not in line and len(line) < 300 for line in _client_errors(caplog))
