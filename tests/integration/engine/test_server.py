"""The HTTP side on a real socket with a model that costs nothing: shapes of answers, errors, health, and the phases of life."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fakes.fake_engine import FakeEngine, fake_engine
from fakes.fake_model import continuation, text_of
from http_client import CHAT, TEXT, chat, get, post, receive, send, text

from aie_engine.request import Outcome
from aie_engine.serving import Phase
from aie_telemetry.exposition import CONTENT_TYPE


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine(stall_s=0.05) as engine:
        yield engine


CHAT_PROMPT = b"user: Hello\nassistant: "  # what the fake model's template makes of it


def answer(prompt: bytes, tokens: int) -> str:
    return text_of(continuation(list(prompt), tokens))


def test_a_chat(engine: FakeEngine) -> None:
    reply = post(engine.url, CHAT, chat())
    assert reply.status == 200
    body = reply.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": answer(CHAT_PROMPT, 8)},
                "finish_reason": "length",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": len(CHAT_PROMPT), "completion_tokens": 8, "total_tokens": len(CHAT_PROMPT) + 8},
    }
    assert engine.outcomes() == {"ok": 1}


def test_a_streamed_chat(engine: FakeEngine) -> None:
    reply = post(engine.url, CHAT, chat(stream=True, stream_options={"include_usage": True}))
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    first, *middle, last, usage = reply.events()
    assert {event["id"] for event in (first, *middle, last, usage)} == {first["id"]}
    assert {event["object"] for event in (first, *middle, last, usage)} == {"chat.completion.chunk"}
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [event["choices"][0]["delta"] for event in middle]
    assert all(set(delta) == {"content"} for delta in deltas)
    assert "".join(delta["content"] for delta in deltas) == answer(CHAT_PROMPT, 8)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert all(event["choices"][0]["finish_reason"] is None for event in (first, *middle))
    assert [event["usage"] for event in (first, *middle, last)] == [None] * (len(middle) + 2)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 8


def test_usage_is_streamed_only_on_request(engine: FakeEngine) -> None:
    events = post(engine.url, CHAT, chat(stream=True)).events()
    assert all("usage" not in event for event in events)
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["Hello", ["Hello"], list(b"Hello"), [list(b"Hello")]])
def test_a_completion(engine: FakeEngine, prompt: Any) -> None:
    body = post(engine.url, TEXT, text(prompt)).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": answer(b"Hello", 8), "finish_reason": "length", "logprobs": None}]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}


def test_a_streamed_completion(engine: FakeEngine) -> None:
    events = post(engine.url, TEXT, text(stream=True)).events()
    assert {event["object"] for event in events} == {"text_completion"}
    assert "".join(event["choices"][0]["text"] for event in events) == answer(b"Hello", 8)
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_cuts_the_answer_and_ends_the_request(engine: FakeEngine, stream: bool) -> None:
    full = answer(b"Hello", 3000)
    stop = full[4:7]
    assert stop not in full[:6]
    reply = post(engine.url, TEXT, text(max_tokens=3000, stop=["never", stop], stream=stream, **_usage(stream)))
    events = reply.events() if stream else [reply.json()]
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == full[:4]
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1] == "stop"
    assert events[-1]["usage"]["completion_tokens"] == 7
    engine.wait_for_outcome(Outcome.OK)


def _usage(stream: bool) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if stream else {}


def test_the_end_of_sequence_ends_and_is_not_shown(engine: FakeEngine) -> None:
    body = post(engine.url, TEXT, text("Hello!")).json()
    assert body["choices"][0] == {"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}
    assert body["usage"]["completion_tokens"] == 1


def test_lengths_that_nobody_asked_for(engine: FakeEngine) -> None:
    no_length = {name: value for name, value in text().items() if name != "max_tokens"}
    assert post(engine.url, TEXT, no_length).json()["usage"]["completion_tokens"] == 16
    no_length = {name: value for name, value in chat().items() if name != "max_tokens"}
    assert post(engine.url, CHAT, no_length).json()["usage"]["completion_tokens"] == 512
    long_prompt = no_length | {"messages": [{"role": "user", "content": "x" * 3900}]}
    assert post(engine.url, CHAT, long_prompt).json()["usage"]["total_tokens"] == 4000


def test_models(engine: FakeEngine) -> None:
    (model,) = get(engine.url, "/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("fake", "model")
    assert get(engine.url, "/v1/models/fake").json() == model
    reply = get(engine.url, "/v1/models/other")
    assert (reply.status, reply.error()["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param", "code"),
    [
        ("POST", CHAT, chat(temperature=3), 400, "temperature", None),
        ("POST", CHAT, chat(n=2), 400, "n", "unsupported_parameter"),
        ("POST", CHAT, b"{", 400, None, None),
        ("POST", CHAT, b"\xff", 400, None, None),
        ("POST", CHAT, chat(max_tokens=4000), 400, "messages", "context_length_exceeded"),
        ("POST", CHAT, chat(max_tokens=10**30), 400, "max_tokens", None),
        ("POST", TEXT, text("x" * 4000, max_tokens=None), 400, "prompt", "context_length_exceeded"),
        ("POST", TEXT, text(""), 400, "prompt", None),
        ("POST", TEXT, text([257]), 400, "prompt", None),
        ("POST", TEXT, text([-1]), 400, "prompt", None),
        ("POST", CHAT, chat(model="gpt-4"), 404, "model", "model_not_found"),
        ("GET", "/v1/nothing", None, 404, None, None),
        ("GET", CHAT, None, 405, None, None),
        ("POST", "/health", {}, 405, None, None),
    ],
)
def test_errors_have_openais_form(
    engine: FakeEngine, method: str, path: str, body: Any, status: int, param: str | None, code: str | None
) -> None:
    reply = receive(send(engine.url, method, path, body))
    error = reply.error()
    assert (reply.status, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    if status == 405:
        assert reply.headers["Allow"]
    counted = path in (CHAT, TEXT) and method == "POST"
    assert engine.outcomes() == ({"rejected": 1} if counted else {})


def test_a_body_that_is_not_what_its_headers_say(engine: FakeEngine) -> None:
    reply = post(engine.url, CHAT, b"no gzip at all", {"Content-Encoding": "gzip"})
    assert reply.status == 400
    assert get(engine.url, "/health").status == 200


def test_a_failing_engine_is_a_500_and_the_next_request_is_served(engine: FakeEngine) -> None:
    engine.runner.failures.append(RuntimeError("broken"))
    reply = post(engine.url, CHAT, chat())
    assert (reply.status, reply.error()["type"], reply.error()["code"]) == (500, "server_error", "engine_error")
    assert post(engine.url, CHAT, chat()).status == 200
    assert engine.outcomes() == {"error": 1, "ok": 1}


def test_a_failure_in_the_middle_of_a_stream_is_an_event(engine: FakeEngine) -> None:
    engine.runner.hold(after_steps=3)
    connection = send(engine.url, "POST", TEXT, text(stream=True))
    response = connection.getresponse()  # the headers come with the first token
    engine.runner.wait_until_held()
    engine.runner.failures.append(RuntimeError("broken"))
    engine.runner.release()
    assert response.status == 200
    body = response.read().decode()
    assert '"code":"engine_error"' in body
    assert body.endswith("data: [DONE]\n\n")
    connection.close()
    assert engine.outcomes() == {"error": 1}


def test_before_the_model_is_loaded() -> None:
    engine = FakeEngine()
    engine.start()
    try:
        assert get(engine.url, "/health").status == 200
        ready = get(engine.url, "/health/ready")
        assert (ready.status, ready.json()["reason"]) == (503, "loading")
        reply = post(engine.url, CHAT, chat())
        assert (reply.status, reply.error()["code"]) == (503, "loading")
        assert int(reply.headers["Retry-After"]) > 0
        assert get(engine.url, "/v1/models").status == 503
        assert 'outcome="rejected"} 1' in get(engine.url, "/metrics").body.decode()
        engine.load()
        assert get(engine.url, "/health/ready").status == 200
        assert post(engine.url, CHAT, chat()).status == 200
    finally:
        engine.close()


def test_once_the_process_stops(engine: FakeEngine) -> None:
    engine.runner.hold()
    running = send(engine.url, "POST", CHAT, chat())
    engine.runner.wait_until_held()

    def stop() -> None:
        engine.serving.phase = Phase.STOPPING

    engine.call(stop)
    reply = post(engine.url, CHAT, chat())
    assert (reply.status, reply.error()["code"]) == (503, "shutting_down")
    assert get(engine.url, "/health/ready").json()["reason"] == "stopping"
    engine.runner.release()
    assert receive(running).status == 200


def test_not_ready_while_requests_run_and_no_token_comes(engine: FakeEngine) -> None:
    assert get(engine.url, "/health/ready").status == 200
    engine.runner.hold()
    running = send(engine.url, "POST", CHAT, chat())
    engine.runner.wait_until_held()
    engine.wait_for(lambda: get(engine.url, "/health/ready").status == 503)
    assert "no token has come" in get(engine.url, "/health/ready").json()["reason"]
    assert get(engine.url, "/health").status == 200  # alive: a restart by the orchestrator is not liveness' business
    engine.runner.release()
    assert receive(running).status == 200
    assert get(engine.url, "/health/ready").status == 200


def test_the_metrics_page(engine: FakeEngine) -> None:
    post(engine.url, CHAT, chat())
    reply = get(engine.url, "/metrics")
    assert reply.headers["Content-Type"] == CONTENT_TYPE
    assert b'aie_engine_requests_total{engine="aie-engine"' not in reply.body
    assert b'aie_engine_requests_total{engine="fake",model="fake",outcome="ok"} 1\n' in reply.body
    assert b'aie_engine_generation_tokens_total{engine="fake",model="fake"} 8\n' in reply.body
