"""The life of a request, in counters that are exact and latencies that belong together."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hook_receivers import Clock, UnixReceiver, manual_emitter, observations, total, totals

from aie_hooks import RequestHooks
from aie_telemetry.catalogue import OUTCOMES
from aie_telemetry.statsd import Sample

TTFT = "aie_engine_time_to_first_token_seconds"
ITL = "aie_engine_inter_token_seconds"
QUEUE = "aie_engine_queue_seconds"
DURATION = "aie_engine_request_duration_seconds"


class _Engine:
    def __init__(self, receiver: UnixReceiver, path: Path, rate: float) -> None:
        self.receiver = receiver
        self.clock = Clock()
        self.emitter = manual_emitter(f"unix://{path}", rng=random.Random(5))
        self.hooks = RequestHooks(self.emitter, model="m", rate=rate, clock=self.clock)

    def samples(self) -> list[Sample]:
        self.emitter.flush()
        return self.receiver.samples()


@pytest.fixture
def engine(receiver: UnixReceiver, socket_path: Path) -> _Engine:
    return _Engine(receiver, socket_path, 1.0)


def test_a_request_from_arrival_to_end(engine: _Engine) -> None:
    request = engine.hooks.enter()
    for wait_s, step in (
        (0.25, request.admitted),
        (0.5, request.token),
        (0.125, request.token),
        (0.25, lambda: request.token(4)),
        (0.5, lambda: request.end("ok")),
    ):
        engine.clock.now_s += wait_s
        step()
    samples = engine.samples()
    assert observations(samples, QUEUE) == [0.25]
    assert observations(samples, TTFT) == [0.75]
    assert observations(samples, ITL) == [0.125, 0.0625, 0.0625, 0.0625, 0.0625]
    assert observations(samples, DURATION) == [1.625]
    assert total(samples, "aie_engine_requests_received_total") == 1
    assert total(samples, "aie_engine_requests_total") == 1
    assert total(samples, "aie_engine_generation_tokens_total") == 6
    assert {dict(sample.tags).get("model", "m") for sample in samples} == {"m"}


def test_every_request_ends_in_exactly_one_outcome(engine: _Engine) -> None:
    for outcome in OUTCOMES:
        request = engine.hooks.enter()
        request.end(outcome)
        request.end(outcome)
        request.end("ok")
        request.admitted()
        request.token(3)
    samples = engine.samples()
    sums = {dict(tags)["outcome"]: value for (name, tags), value in totals(samples).items() if name == "aie_engine_requests_total"}
    assert sums == dict.fromkeys(OUTCOMES, 1.0)
    assert total(samples, "aie_engine_generation_tokens_total") == 0
    assert not [sample for sample in samples if sample.type == "histogram"]


def test_an_unknown_outcome_raises_and_ends_nothing(engine: _Engine) -> None:
    request = engine.hooks.enter()
    with pytest.raises(ValueError, match="outcome 'success' is none of ok, error"):
        request.end("success")
    request.end("error")
    assert total(engine.samples(), "aie_engine_requests_total") == 1


def test_the_duration_is_that_of_admitted_requests(engine: _Engine) -> None:
    engine.hooks.enter().end("rejected")
    assert observations(engine.samples(), DURATION) == []


def test_a_request_that_is_admitted_again_waited_once(engine: _Engine) -> None:
    request = engine.hooks.enter()
    request.admitted()
    engine.clock.now_s += 1.0
    request.admitted()
    assert observations(engine.samples(), QUEUE) == [0.0]


@pytest.mark.parametrize("n", [0, -1])
def test_tokens_that_are_none(engine: _Engine, n: int) -> None:
    request = engine.hooks.enter()
    request.token(n)
    samples = engine.samples()
    assert observations(samples, TTFT) == []
    assert total(samples, "aie_engine_generation_tokens_total") == 0


def test_all_values_of_a_request_are_sampled_or_none(receiver: UnixReceiver, socket_path: Path) -> None:
    engine = _Engine(receiver, socket_path, 0.25)
    samples = []
    for number in range(200):
        request = engine.hooks.enter()
        # Each request has durations of its own, by which its values are known again.
        for step in (request.admitted, request.token, request.token):
            engine.clock.now_s += 1.0 + number
            step()
        request.end("ok")
        samples += engine.samples()
    queue = observations(samples, QUEUE)
    assert 20 < len(queue) < 90
    assert observations(samples, TTFT) == [2 * value for value in queue]
    assert observations(samples, ITL) == queue
    assert observations(samples, DURATION) == [3 * value for value in queue]
    assert {sample.rate for sample in samples if sample.type == "histogram"} == {0.25}
    assert total(samples, "aie_engine_requests_received_total") == 200
    assert total(samples, "aie_engine_requests_total") == 200
    assert total(samples, "aie_engine_generation_tokens_total") == 400
