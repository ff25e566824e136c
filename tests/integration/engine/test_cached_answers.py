"""Answers from the response cache: the same as computed ones in all but their time, and counted as what they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.fake_engine import FakeEngine, fake_engine
from http_client import CHAT, TEXT, Reply, chat, post, receive, send, text

from aie_engine.request import Outcome
from aie_telemetry.exposition import PageParser


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine(response_cache_bytes=100_000, max_running=4) as engine:
        yield engine


def greedy(**fields: Any) -> dict[str, Any]:
    return chat(temperature=0, **fields)


def page(engine: FakeEngine) -> dict[str, float]:
    """Sums of the page's samples by name; buckets left out."""
    sums: dict[str, float] = {}
    for name, _, value, *_ in PageParser().parse(engine.metrics.page()).samples:
        sums[name] = sums.get(name, 0.0) + value
    return sums


def looked_up(engine: FakeEngine) -> tuple[float, float]:
    """Queries and hits."""
    now = page(engine)
    return now["aie_engine_response_cache_queries_total"], now["aie_engine_response_cache_hits_total"]


def said(reply: Reply) -> Any:
    """What a reply says, without what differs from one reply to the next."""
    assert reply.status == 200
    parts = reply.events() if reply.headers["Content-Type"].startswith("text/event-stream") else [reply.json()]
    return [{key: value for key, value in part.items() if key not in ("id", "created")} for part in parts]


def streamed(reply: Reply) -> tuple[str, list[Any], Any, str]:
    """Text, log-probabilities, usage and finish reason of a streamed chat."""
    parts = said(reply)
    choices = [part["choices"][0] for part in parts if part["choices"]]
    scores = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]
    return (
        "".join(choice["delta"].get("content", "") for choice in choices),
        scores,
        parts[-1]["usage"],
        choices[-1]["finish_reason"],
    )


@pytest.mark.parametrize("more", [{}, {"stop": ["a", "e", "o"]}, {"logprobs": True, "top_logprobs": 3}, {"max_tokens": 1}])
def test_a_second_request_is_answered_without_the_model(engine: FakeEngine, more: dict[str, Any]) -> None:
    first = post(engine.url, CHAT, greedy(**more))
    assert "X-Aie-Cache" not in first.headers
    steps = len(engine.runner.steps)
    second = post(engine.url, CHAT, greedy(**more))
    assert second.headers["X-Aie-Cache"] == "hit"
    assert said(second) == said(first)
    assert len(engine.runner.steps) == steps
    assert looked_up(engine) == (2, 1)
    assert engine.outcomes() == {"ok": 2}


def test_an_answer_whose_last_token_ends_it(engine: FakeEngine) -> None:
    replies = [post(engine.url, TEXT, text("Hello!", temperature=0, logprobs=1)) for _ in range(2)]
    assert said(replies[0]) == said(replies[1])
    assert said(replies[1])[0]["usage"]["completion_tokens"] == 1


def test_whole_and_streamed_answers_come_from_the_same_entry(engine: FakeEngine) -> None:
    more: dict[str, Any] = {"stop": ["q", "zz"], "logprobs": True, "top_logprobs": 1, "max_tokens": 30}
    whole = said(post(engine.url, CHAT, greedy(**more)))[0]
    live = post(engine.url, CHAT, greedy(stream=True, stream_options={"include_usage": True}, **more))
    assert live.headers["X-Aie-Cache"] == "hit"
    choice = whole["choices"][0]
    expected = (choice["message"]["content"], choice["logprobs"]["content"], whole["usage"], choice["finish_reason"])
    assert streamed(live) == expected


def test_an_answer_that_was_streamed_is_kept_as_well(engine: FakeEngine) -> None:
    live = [post(engine.url, CHAT, greedy(stream=True, stream_options={"include_usage": True})) for _ in range(2)]
    assert [reply.headers.get("X-Aie-Cache") for reply in live] == [None, "hit"]
    assert streamed(live[0]) == streamed(live[1])


@pytest.mark.parametrize("other", [{"max_tokens": 9}, {"stop": "x"}, {"logprobs": True}])
def test_a_request_that_differs_is_computed(engine: FakeEngine, other: dict[str, Any]) -> None:
    post(engine.url, CHAT, greedy())
    assert "X-Aie-Cache" not in post(engine.url, CHAT, greedy(**other)).headers
    assert looked_up(engine) == (2, 0)


def test_what_is_drawn_at_random_is_not_looked_up(engine: FakeEngine) -> None:
    for _ in range(2):
        assert "X-Aie-Cache" not in post(engine.url, CHAT, chat(seed=1)).headers
    assert looked_up(engine) == (0, 0)


def test_what_went_wrong_is_not_kept(engine: FakeEngine) -> None:
    engine.runner.failures.append(RuntimeError("broken"))
    assert post(engine.url, CHAT, greedy()).status == 500
    engine.runner.hold(after_steps=2)
    assert post(engine.url, CHAT, greedy(), {"X-Request-Timeout-Seconds": "0.2"}).status == 504
    engine.runner.release()
    engine.runner.hold(after_steps=4)
    leaving = send(engine.url, "POST", CHAT, greedy(stream=True))
    assert leaving.getresponse().read(10)
    leaving.close()
    engine.wait_for_outcome(Outcome.CANCELLED)
    engine.runner.release()
    assert page(engine)["aie_engine_response_cache_bytes"] == 0
    assert "X-Aie-Cache" not in post(engine.url, CHAT, greedy()).headers
    assert post(engine.url, CHAT, greedy()).headers["X-Aie-Cache"] == "hit"


def test_an_answer_that_nobody_read_to_its_end_is_whole_in_the_cache(engine: FakeEngine) -> None:
    """Two at once both compute, and whichever is stored last is the answer; nothing waits."""
    engine.runner.hold()
    both = [send(engine.url, "POST", CHAT, greedy()) for _ in range(2)]
    engine.wait_for(lambda: engine.metrics.ledger.counts().received == 2)
    engine.runner.release()
    replies = [receive(connection) for connection in both]
    assert said(replies[0]) == said(replies[1])
    assert looked_up(engine) == (2, 0)


def test_hits_are_requests_that_never_ran(engine: FakeEngine) -> None:
    post(engine.url, CHAT, greedy())
    before = page(engine)
    for _ in range(3):
        post(engine.url, CHAT, greedy())
    after = page(engine)
    grown = {name: after[name] - before[name] for name in after}
    assert {name: grown[f"aie_engine_{name}"] for name in _EXPECTED} == _EXPECTED


_EXPECTED = {
    "requests_received_total": 3,
    "requests_total": 3,
    "request_duration_seconds_count": 3,
    "tokenize_seconds_count": 3,
    "detokenize_seconds_count": 3,
    "request_prompt_tokens_count": 3,
    "request_generation_tokens_count": 3,
    # Nothing was computed.
    "generation_tokens_total": 0,
    "prompt_tokens_total": 0,
    "time_to_first_token_seconds_count": 0,
    "queue_seconds_count": 0,
    "prefill_seconds_count": 0,
    "decode_seconds_count": 0,
    "inter_token_seconds_count": 0,
    "time_per_output_token_seconds_count": 0,
    "step_seconds_count": 0,
    "requests_running": 0,
    "requests_waiting": 0,
}


def test_many_at_once_stay_within_the_bound(engine: FakeEngine) -> None:
    def ask(worker: int) -> None:
        for index in range(20):
            assert post(engine.url, CHAT, greedy(max_tokens=1 + (worker + index) % 25)).status == 200

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queries, hits = looked_up(engine)
    assert queries == 80
    assert 80 - 4 * 23 <= hits <= 80 - 23  # 23 lengths are asked for, each at most by all four at once
    assert 0 < page(engine)["aie_engine_response_cache_bytes"] <= 100_000


def test_by_default_there_is_none() -> None:
    with fake_engine() as engine:
        for _ in range(2):
            assert "X-Aie-Cache" not in post(engine.url, CHAT, greedy()).headers
        assert not [name for name in page(engine) if "response_cache" in name]
