"""Clients that leave, or stay and do not read: their requests end, and their memory is free at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from fakes.fake_engine import WAIT_S, FakeEngine, fake_engine
from http_client import CHAT, TEXT, chat, post, receive, send, text

from aie_engine.request import Outcome


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine(max_running=1) as engine:
        yield engine


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_its_answer_is_computed(engine: FakeEngine, stream: bool) -> None:
    engine.runner.hold(after_steps=3)
    connection = send(engine.url, "POST", CHAT, chat(stream=stream, max_tokens=2000))
    if stream:
        assert connection.getresponse().readline().startswith(b"data: ")
    engine.runner.wait_until_held()
    assert engine.serving.model().loop.kv_usage().used > 2000
    connection.close()
    engine.wait_for_outcome(Outcome.CANCELLED)  # although a step hangs
    engine.runner.release()
    assert post(engine.url, CHAT, chat()).status == 200
    assert engine.outcomes() == {"cancelled": 1, "ok": 1}


def test_a_client_that_leaves_the_queue(engine: FakeEngine) -> None:
    engine.runner.hold()
    running = send(engine.url, "POST", CHAT, chat())
    engine.runner.wait_until_held()
    queued = send(engine.url, "POST", CHAT, chat(stream=True))
    engine.wait_for(lambda: engine.metrics.ledger.counts().waiting == 1)
    queued.close()
    engine.wait_for(lambda: engine.outcomes() == {"cancelled": 1})
    assert engine.metrics.ledger.counts().waiting == 0
    engine.runner.release()
    assert receive(running).status == 200


def test_a_client_that_leaves_before_its_body_is_complete(engine: FakeEngine) -> None:
    connection = send(engine.url, "POST", CHAT, b'{"model": ', {"Content-Length": "1000"})
    engine.wait_for(lambda: engine.serving.uploads.arriving == 1)
    connection.close()
    engine.wait_for(lambda: engine.outcomes() == {"cancelled": 1})


def test_a_client_that_does_not_read_is_given_up() -> None:
    # Each token becomes 20 kB of text: soon no buffer between server and client has room for more.
    with fake_engine(width=20_000, write_timeout_s=0.2) as engine:
        engine.runner.hold(after_steps=1500)
        address = urlsplit(engine.url)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(WAIT_S)
            client.connect((address.hostname, address.port))
            body = b'{"model": "fake", "prompt": "Hello", "max_tokens": 3000, "stream": true}'
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            engine.wait_for_outcome(Outcome.CANCELLED)
        engine.runner.release()
        assert post(engine.url, TEXT, text()).status == 200
        assert engine.outcomes() == {"cancelled": 1, "ok": 1}


def test_many_clients_that_leave_at_random_moments_leave_nothing_behind() -> None:
    with fake_engine(max_running=4, max_waiting=64) as engine:
        for index in range(40):
            connection = send(engine.url, "POST", TEXT, text(max_tokens=300, stream=bool(index % 2)))
            if index % 3 == 0:
                connection.getresponse().read(50)
            connection.close()
        engine.wait_for(lambda: sum(engine.outcomes().values()) == 40)
        counts = engine.metrics.ledger.counts()
        assert (counts.received, counts.waiting, counts.running) == (40, 0, 0)
        assert set(engine.outcomes()) <= {"ok", "cancelled"}
        assert engine.serving.model().loop.kv_usage().used == 0
