"""What breaks inside a hook: the engine must not notice. Each hook has its own test of this beside its others; here are those that
the hooks of requests and the emitter owe to what callers hand in: clocks, numbers, collectors."""

from __future__ import annotations

from typing import Any

import pytest
from hook_receivers import UnixReceiver, levels, observations, total

from aie_hooks import Emitter, LogitsHooks, RequestHooks, oom_forensics


def _broken_clock() -> float:
    raise OSError("no time today")


def test_a_clock_that_raises_costs_the_times_and_nothing_else(
    receiver: UnixReceiver, emitter: Emitter, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = RequestHooks(emitter, model="m", rate=1.0, clock=_broken_clock)
    for _ in range(2):
        request = hooks.enter()
        request.tokenized(7)
        request.queued()
        request.admitted()
        request.token(3)
        request.end("ok")
    emitter.flush()
    samples = receiver.samples()
    assert total(samples, "aie_engine_requests_received_total") == 2
    assert total(samples, "aie_engine_requests_total") == 2
    assert total(samples, "aie_engine_generation_tokens_total") == 6
    assert total(samples, "aie_engine_prompt_tokens_total") == 14
    assert emitter.stats().dropped["invalid"] == 2
    assert len(caplog.records) == 1


def test_a_clock_that_breaks_half_way(receiver: UnixReceiver, emitter: Emitter, caplog: pytest.LogCaptureFixture) -> None:
    hooks = RequestHooks(emitter, model="m", rate=1.0)
    request = hooks.enter()
    hooks.clock = _broken_clock
    request.tokenized(7)
    request.queued()
    request.admitted()
    request.token()
    request.end("ok")
    emitter.flush()
    samples = receiver.samples()
    assert emitter.stats().dropped["invalid"] == 5
    assert {record.getMessage().split("(")[0] for record in caplog.records} == {
        f"a request's {name}" for name in ("tokenized", "queued", "admitted", "token", "_finish")
    }
    assert total(samples, "aie_engine_requests_total") == 1
    gauges = {name: value for (name, _), value in levels(samples).items()}
    assert gauges["aie_engine_requests_running"] == 0


@pytest.mark.parametrize("n", ["3", None, object(), float("nan")])
def test_tokens_that_are_no_number(emitter: Emitter, n: Any) -> None:
    for rate in (1.0, 1e-6):
        request = RequestHooks(emitter, model="m", rate=rate).enter()
        request.tokenized(n)
        request.token(n)
        request.token(2)
        request.end("ok")
    assert emitter.stats().dropped["invalid"] >= 2


@pytest.mark.parametrize("number", ["3", None, object()])
def test_numbers_of_an_answer_that_are_none(receiver: UnixReceiver, emitter: Emitter, number: Any) -> None:
    with LogitsHooks(emitter, model="m", rate=1.0).enter() as answer:
        answer.add(number, number, number)
        answer.add(-1.0, 2.0, 3.0)
    emitter.flush()
    assert observations(receiver.samples(), "aie_engine_output_entropy_nats") == [2.0]
    assert emitter.stats().dropped["invalid"] >= 1


def test_a_collector_that_raises_does_not_hold_up_the_others(
    receiver: UnixReceiver, emitter: Emitter, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_wall() -> float:
        raise OSError("no calendar today")

    hooks = RequestHooks(emitter, model="m", wall_clock=broken_wall)
    hooks.enter().token()
    for _ in range(3):
        emitter.flush()
        hooks.enter().token()
    assert total(receiver.samples(), "aie_engine_requests_received_total") == 3
    assert len(caplog.records) == 1
    assert "no calendar today" in caplog.text


def test_an_error_that_cannot_be_read_stays_the_engines_own(emitter: Emitter) -> None:
    class MuteError(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no words")

    error = MuteError()
    with pytest.raises(MuteError) as caught, oom_forensics(emitter, "cpu"):
        raise error
    assert caught.value is error
    assert emitter.stats().dropped["invalid"] == 1
