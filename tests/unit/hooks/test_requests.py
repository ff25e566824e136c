"""The life of a request, in counters that are exact and latencies that belong together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hook_receivers import Clock, UnixReceiver, levels, manual_emitter, observations, total, totals

from aie_hooks import RequestHooks
from aie_telemetry.catalogue import OUTCOMES
from aie_telemetry.statsd import Sample

TTFT = "aie_engine_time_to_first_token_seconds"
ITL = "aie_engine_inter_token_seconds"
QUEUE = "aie_engine_queue_seconds"
DURATION = "aie_engine_request_duration_seconds"
STAGES = (
    "tokenize_seconds",
    "queue_seconds",
    "time_to_first_token_seconds",
    "prefill_seconds",
    "decode_seconds",
    "time_per_output_token_seconds",
    "request_duration_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
)


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


class _MuteText(str):
    """Raises at every look."""

    __slots__ = ()

    def __repr__(self) -> str:
        raise KeyError("no words")

    __str__ = __repr__

    def __hash__(self) -> int:
        raise KeyError("no hash")

    def __format__(self, how: str) -> str:
        raise KeyError("no form")


class _Mute:
    def __repr__(self) -> str:
        raise KeyError("no words")


@pytest.mark.parametrize(
    "outcome", ["success", "", None, 7, ["ok"], _MuteText("x"), _Mute()], ids=lambda value: type(value).__name__
)
def test_an_unknown_outcome_is_an_error(engine: _Engine, caplog: pytest.LogCaptureFixture, outcome: Any) -> None:
    for _ in range(2):
        request = engine.hooks.enter()
        request.end(outcome)
        request.end("ok")
    assert {name: counter.total for name, counter in engine.hooks.ended.items() if counter.total} == {"error": 2}
    assert engine.emitter.stats().dropped["invalid"] == 2
    assert len(caplog.records) == 1
    assert "is none of ok, error" in caplog.text


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


def _gauges(samples: list[Sample]) -> dict[str, float]:
    return {name.removeprefix("aie_engine_"): value for (name, _), value in levels(samples).items()}


def test_stages_of_a_sampled_request(engine: _Engine) -> None:
    request = engine.hooks.enter()
    for wait_s, step in (
        (0.25, lambda: request.tokenized(17)),
        (0.25, request.queued),
        (0.5, request.admitted),
        (2.0, request.token),
        (0.5, lambda: request.token(2)),
        (0.25, request.token),
        (0.125, lambda: request.end("ok")),
    ):
        engine.clock.now_s += wait_s
        step()
    samples = engine.samples()
    stages = {name: observations(samples, f"aie_engine_{name}") for name in STAGES}
    assert stages == {
        "tokenize_seconds": [0.25],
        "queue_seconds": [0.5],
        "time_to_first_token_seconds": [3.0],
        "prefill_seconds": [2.0],
        "decode_seconds": [0.75],
        "time_per_output_token_seconds": [0.25],
        "request_duration_seconds": [3.875],
        "request_prompt_tokens": [17.0],
        "request_generation_tokens": [4.0],
    }
    assert total(samples, "aie_engine_prompt_tokens_total") == 17


def test_who_ends_in_the_queue_has_waited_in_it(engine: _Engine) -> None:
    for outcome in ("timeout", "cancelled"):
        request = engine.hooks.enter()
        engine.clock.now_s += 0.25
        request.tokenized(5)
        request.queued()
        engine.clock.now_s += 0.5
        request.end(outcome)
    samples = engine.samples()
    stages = {name: observations(samples, f"aie_engine_{name}") for name in STAGES}
    assert {name: found for name, found in stages.items() if found} == {
        "tokenize_seconds": [0.25] * 2,
        "queue_seconds": [0.5] * 2,
    }


@pytest.mark.parametrize(("tells", "waited_s"), [((), 1.75), (("tokenized",), 1.5), (("tokenized", "queued"), 1.0)])
def test_the_queue_begins_with_the_last_that_is_told_before_it(engine: _Engine, tells: tuple[str, ...], waited_s: float) -> None:
    request = engine.hooks.enter()
    engine.clock.now_s += 0.25
    if "tokenized" in tells:
        request.tokenized(5)
    engine.clock.now_s += 0.5
    if "queued" in tells:
        request.queued()
    engine.clock.now_s += 1.0
    request.admitted()
    assert observations(engine.samples(), QUEUE) == [waited_s]


def test_an_answer_from_a_cache_has_a_duration_and_lengths_and_no_stages_of_a_model(engine: _Engine) -> None:
    request = engine.hooks.enter()
    engine.clock.now_s += 0.25
    request.tokenized(5)
    request.cached(12)
    engine.clock.now_s += 0.5
    request.end("ok")
    samples = engine.samples()
    stages = {name: observations(samples, f"aie_engine_{name}") for name in STAGES}
    assert {name: found for name, found in stages.items() if found} == {
        "tokenize_seconds": [0.25],
        "request_duration_seconds": [0.75],
        "request_prompt_tokens": [5.0],
        "request_generation_tokens": [12.0],
    }
    assert total(samples, "aie_engine_generation_tokens_total") == total(samples, "aie_engine_prompt_tokens_total") == 0


def test_a_step_is_a_token_of_each(receiver: UnixReceiver, socket_path: Path) -> None:
    engine = _Engine(receiver, socket_path, 0.5)
    batch = [engine.hooks.enter() for _ in range(40)]
    for request in batch:
        request.tokenized(3)
    batch[0].end("ok")
    for _ in range(3):
        engine.clock.now_s += 0.25
        engine.hooks.step(batch)
    samples = engine.samples()
    assert total(samples, "aie_engine_generation_tokens_total") == 39 * 3
    assert total(samples, "aie_engine_prompt_tokens_total") == 39 * 3
    sampled = sum(request._sampled for request in batch[1:])
    assert observations(samples, TTFT) == [0.25] * sampled
    assert observations(samples, ITL) == [0.25] * (2 * sampled)
    assert 0 < sampled < 39


def test_a_step_of_what_are_no_requests(engine: _Engine) -> None:
    request = engine.hooks.enter()
    engine.hooks.step([request, None])  # type: ignore[list-item]
    engine.hooks.step(7)  # type: ignore[arg-type]
    assert total(engine.samples(), "aie_engine_generation_tokens_total") == 1
    assert engine.emitter.stats().dropped["invalid"] == 2


def test_moments_that_the_engine_knows_better(engine: _Engine) -> None:
    request = engine.hooks.enter(at_s=10.0)
    request.tokenized(5, at_s=11.0)
    request.queued(at_s=11.5)
    request.admitted(at_s=13.5)
    request.token(at_s=14.5)
    request.token(at_s=17.5)
    request.end("ok", at_s=18.5)
    samples = engine.samples()
    stages = {name: observations(samples, f"aie_engine_{name}") for name in STAGES}
    assert stages == {
        "tokenize_seconds": [1.0],
        "queue_seconds": [2.0],
        "time_to_first_token_seconds": [4.5],
        "prefill_seconds": [1.0],
        "decode_seconds": [3.0],
        "time_per_output_token_seconds": [3.0],
        "request_duration_seconds": [8.5],
        "request_prompt_tokens": [5.0],
        "request_generation_tokens": [2.0],
    }


def test_one_token_has_no_time_between_tokens(engine: _Engine) -> None:
    request = engine.hooks.enter()
    request.token()
    request.end("ok")
    samples = engine.samples()
    assert observations(samples, "aie_engine_request_generation_tokens") == [1.0]
    assert observations(samples, "aie_engine_decode_seconds") == []
    assert observations(samples, "aie_engine_time_per_output_token_seconds") == []
    # It was never admitted, so nobody knows how long its prefill took.
    assert observations(samples, "aie_engine_prefill_seconds") == []


def test_prompt_tokens_count_when_they_are_computed(receiver: UnixReceiver, socket_path: Path) -> None:
    engine = _Engine(receiver, socket_path, 1e-6)
    cancelled, served = engine.hooks.enter(), engine.hooks.enter()
    cancelled.tokenized(1000)
    served.tokenized(10)
    cancelled.end("cancelled")
    for _ in range(3):
        served.token()
    assert total(engine.samples(), "aie_engine_prompt_tokens_total") == 10


def test_running_and_waiting_follow_every_request(receiver: UnixReceiver, socket_path: Path) -> None:
    engine = _Engine(receiver, socket_path, 1e-6)
    seen = []
    first, second, third = (engine.hooks.enter() for _ in range(3))
    for step in (
        lambda: None,
        first.admitted,
        first.admitted,
        second.admitted,
        lambda: third.end("rejected"),
        lambda: first.end("ok"),
        lambda: first.end("ok"),
        first.admitted,
        lambda: second.end("error"),
    ):
        step()
        engine.emitter.flush()
        gauges = _gauges(receiver.samples())
        seen.append((gauges.get("requests_waiting", seen[-1][0] if seen else None), gauges.get("requests_running", 0.0)))
    assert [waiting for waiting, _ in seen] == [3, 2, 2, 1, 0, 0, 0, 0, 0]
    assert [running for _, running in seen if running] == [1, 2, 2, 1]


def test_an_idle_engine_says_that_nothing_runs(engine: _Engine) -> None:
    gauges = _gauges(engine.samples())
    assert (gauges["requests_running"], gauges["requests_waiting"]) == (0.0, 0.0)


def test_the_time_of_the_last_token_is_that_of_the_flush_after_it(receiver: UnixReceiver, socket_path: Path) -> None:
    wall = Clock()
    emitter = manual_emitter(f"unix://{socket_path}")
    request = RequestHooks(emitter, model="m", rate=1e-6, wall_clock=wall).enter()
    seen = []
    for tokens in (0, 2, 0, 1):
        if tokens:
            request.token(tokens)
        wall.now_s += 1.0
        emitter.flush()
        seen.append(_gauges(receiver.samples()).get("last_token_timestamp_seconds"))
    assert seen == [None, 1002.0, None, 1004.0]


def test_a_forked_child_counts_its_own_requests(receiver: UnixReceiver, socket_path: Path) -> None:
    engine = _Engine(receiver, socket_path, 1e-6)
    inherited = engine.hooks.enter()
    engine.samples()
    child = os.fork()
    if not child:
        try:
            inherited.end("ok")
            own = engine.hooks.enter()
            own.admitted()
            engine.emitter.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    gauges = _gauges(receiver.samples())
    assert (gauges["requests_running"], gauges["requests_waiting"]) == (1.0, 0.0)
    engine.hooks.enter()
    assert _gauges(engine.samples())["requests_waiting"] == 2.0


def test_requests_of_many_threads_add_up(receiver: UnixReceiver, socket_path: Path) -> None:
    engine = _Engine(receiver, socket_path, 0.5)
    per_thread = 300

    def serve() -> None:
        for number in range(per_thread):
            request = engine.hooks.enter()
            request.tokenized(3)
            request.admitted()
            request.token()
            request.end("ok" if number % 2 else "error")

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    samples = engine.samples()
    assert total(samples, "aie_engine_requests_received_total") == 4 * per_thread
    assert total(samples, "aie_engine_prompt_tokens_total") == 12 * per_thread
    assert _gauges(samples)["requests_running"] == 0.0
    assert _gauges(samples)["requests_waiting"] == 0.0


class _MyTimeoutError(TimeoutError):
    pass


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (GeneratorExit, "cancelled"),
        (asyncio.CancelledError, "cancelled"),
        (BrokenPipeError, "cancelled"),
        (_MyTimeoutError, "timeout"),
        (KeyError, "error"),
        (KeyboardInterrupt, "error"),
    ],
)
def test_a_request_ends_by_how_its_with_is_left(engine: _Engine, error: type[BaseException] | None, outcome: str) -> None:
    with contextlib.suppress(error or ()), engine.hooks.enter():
        if error is not None:
            raise error
    sums = {
        dict(tags)["outcome"]: value for (name, tags), value in totals(engine.samples()).items() if name.endswith("requests_total")
    }
    assert {name: value for name, value in sums.items() if value} == {outcome: 1.0}


def test_who_ends_a_request_within_the_with_has_ended_it(engine: _Engine) -> None:
    with engine.hooks.enter() as request:
        request.end("rejected")
    assert engine.hooks.ended["rejected"].total == 1
    assert engine.hooks.ended["ok"].total == 0
