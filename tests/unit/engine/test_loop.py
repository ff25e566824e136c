"""The model loop: one hand-out a step, requests that end from outside, steps that fail, and the end of the loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from engine_fixtures import new_metrics, new_request
from fakes.fake_model import EOS, FakeRunner, continuation

from aie_engine.kv_arena import KvArena
from aie_engine.loop import Delivery, ModelLoop, StoppedError
from aie_engine.metrics import EngineMetrics
from aie_engine.request import FinishReason, Outcome, Request, Update
from aie_engine.scheduler import Limits, Scheduler
from aie_hooks.requests import RequestHook, RequestHooks

WAIT_S = 60  # a bound for what should come at once; never waited for in a test that passes


class Rig:
    """A model loop on a thread of its own, and what it handed out."""

    def __init__(self) -> None:
        self.metrics: EngineMetrics = new_metrics()
        self.arena = KvArena(200)
        self.runner = FakeRunner(200, 16)
        limits = Limits(max_running=4, max_waiting=4, max_step_tokens=16, context_tokens=200, eos_ids=frozenset({EOS}))
        self.handed_out: list[list[Delivery]] = []
        self._ended = threading.Condition()
        scheduler = Scheduler(limits, self.arena)
        self.loop = ModelLoop(self.runner, scheduler, self.arena, self.metrics, self._take)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def _take(self, news: list[Delivery]) -> None:
        with self._ended:
            self.handed_out.append(news)
            for request, update in news:
                request.deliver(update)
            self._ended.notify_all()

    def submit(self, prompt: bytes, max_tokens: int, **more: float) -> tuple[Request, list[Update]]:
        updates: list[Update] = []
        request = new_request(prompt, max_tokens, ticket=self.metrics.enter(0.0), deliver=updates.append, **more)
        self.loop.submit(request)
        return request, updates

    def wait(self, updates: list[Update]) -> Update:
        """The last update, once it says that the request has ended."""
        with self._ended:
            assert self._ended.wait_for(lambda: updates and updates[-1].outcome is not None, WAIT_S)
        return updates[-1]

    def outcomes(self) -> dict[Outcome, int]:
        return {outcome: count for outcome, count in self.metrics.ledger.counts().ended.items() if count}

    def close(self) -> None:
        self.runner.release()
        self.loop.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_tokens_of_a_step_leave_together(rig: Rig) -> None:
    rig.runner.hold()
    rig.submit(b"x", 1)
    rig.runner.wait_until_held()  # the others now wait for the same step
    waiting = [rig.submit(bytes([letter]), 3) for letter in b"ABC"]
    rig.runner.release()
    for request, updates in waiting:
        assert rig.wait(updates) == Update(request.last_token, Outcome.OK, FinishReason.LENGTH)
        assert [update.token and update.token.id for update in updates] == continuation(request.prompt_ids, 3)
    assert [len(news) for news in rig.handed_out] == [1, 3, 3, 3]
    assert rig.outcomes() == {Outcome.OK: 4}


def test_a_failed_step_ends_its_requests_and_the_loop_goes_on(rig: Rig) -> None:
    rig.runner.failures.append(RuntimeError("the device is on fire"))
    _, updates = rig.submit(b"x", 5)
    failure = rig.wait(updates)
    assert failure.outcome is Outcome.ERROR
    assert "fire" not in failure.detail  # what broke is for the log, not for the client
    _, updates = rig.submit(b"y", 5)
    assert rig.wait(updates).outcome is Outcome.OK
    assert rig.outcomes() == {Outcome.ERROR: 1, Outcome.OK: 1}
    assert rig.loop.kv_usage() == (200, 0, 200, 0, 200)


def test_results_that_do_not_fit_their_step_fail_it_and_the_loop_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rig.runner, "execute", lambda chunks: [])
        _, updates = rig.submit(b"x", 5)
        assert rig.wait(updates).outcome is Outcome.ERROR
    _, updates = rig.submit(b"y", 5)
    assert rig.wait(updates).outcome is Outcome.OK
    assert rig.outcomes() == {Outcome.ERROR: 1, Outcome.OK: 1}


@pytest.mark.parametrize("method", ["step", "ended", "admitted", "step_failed"])
def test_metrics_that_fail_end_neither_a_request_nor_the_loop(
    rig: Rig, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no room for numbers")

    monkeypatch.setattr(rig.metrics, method, broken)
    for _ in range(3):
        request, updates = rig.submit(b"x", 5)
        assert rig.wait(updates) == Update(request.last_token, Outcome.OK, FinishReason.LENGTH)
        assert [update.token and update.token.id for update in updates] == continuation(b"x", 5)
    rig.runner.failures.append(RuntimeError("the device is on fire"))
    _, updates = rig.submit(b"x", 5)
    assert rig.wait(updates).outcome is Outcome.ERROR
    request, updates = rig.submit(b"x", 50)
    rig.loop.end(request, Outcome.CANCELLED)
    rig.wait(rig.submit(b"x", 1)[1])
    assert rig.loop.kv_usage().used == 0
    assert sum("no room for numbers" in record.getMessage() for record in caplog.records) == 1  # not at every step


def test_a_hook_that_fails_costs_no_request_and_no_count(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the hook tears")

    for method in ("queued", "admitted", "one_of_many", "end"):
        monkeypatch.setattr(RequestHook, method, broken)
    for _ in range(3):
        assert rig.wait(rig.submit(b"x", 5)[1]).outcome is Outcome.OK
    assert rig.outcomes() == {Outcome.OK: 3}
    assert rig.metrics.last_token_at is not None
    page = rig.metrics.page()
    assert 'aie_engine_generation_tokens_total{engine="e",model="m"} 15' in page


@pytest.mark.parametrize(("owner", "method"), [(RequestHooks, "step"), (RequestHook, "end")])
def test_a_hook_that_hangs_holds_up_neither_tokens_nor_the_page(
    rig: Rig, owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, let_go = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        hanging.set()
        assert let_go.wait(WAIT_S)

    monkeypatch.setattr(owner, method, hang)
    try:
        both = [rig.submit(letter, 1) for letter in (b"x", b"y")]
        assert hanging.wait(WAIT_S)
        request, updates = both[0]
        assert rig.wait(updates) == Update(request.last_token, Outcome.OK, FinishReason.LENGTH)
        assert 'aie_engine_requests_total{engine="e",model="m",outcome="ok"}' in rig.metrics.page()
        assert rig.outcomes()[Outcome.OK] >= 1
        assert rig.loop.kv_usage().capacity == 200  # the loop's lock is free
    finally:
        let_go.set()
    rig.wait(both[1][1])


def test_a_request_that_is_ended_during_a_step_frees_its_memory_at_once(rig: Rig) -> None:
    rig.runner.hold()
    request, updates = rig.submit(b"x", 50)
    rig.runner.wait_until_held()
    assert rig.loop.kv_usage().used == 51
    rig.loop.end(request, Outcome.CANCELLED)
    assert rig.loop.kv_usage().used == 0
    assert rig.outcomes() == {Outcome.CANCELLED: 1}
    rig.runner.release()
    _, others = rig.submit(b"y", 1)
    rig.wait(others)
    assert updates == []  # its token came too late


def test_a_deadline_is_kept_and_told(rig: Rig) -> None:
    _, updates = rig.submit(b"x", 50, deadline=0.0)
    assert rig.wait(updates) == Update(outcome=Outcome.TIMEOUT)
    assert rig.outcomes() == {Outcome.TIMEOUT: 1}


def test_stopping_ends_everybody_and_takes_nobody(rig: Rig) -> None:
    rig.runner.hold()
    _, first = rig.submit(b"x", 50)
    rig.runner.wait_until_held()
    _, second = rig.submit(b"y", 50)
    rig.loop.stop()
    with pytest.raises(StoppedError):
        rig.submit(b"z", 1)
    rig.runner.release()
    for updates in (first, second):
        end = rig.wait(updates)
        assert end.outcome is Outcome.ERROR
        assert "shutting down" in end.detail
    rig.thread.join(WAIT_S)
    assert rig.loop.kv_usage().used == 0
