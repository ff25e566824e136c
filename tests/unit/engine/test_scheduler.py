"""The scheduler's invariants, driven step by step with a runner that notices every wrong slot. No clock, no threads."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from engine_fixtures import new_request
from fakes.fake_model import EOS, FakeRunner, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_engine.kv_arena import KvArena
from aie_engine.request import FinishReason, Outcome, Request
from aie_engine.scheduler import Limits, QueueFullError, RequestTooLongError, Scheduler

CAPACITY = 64
STEP_S = 0.01


def new_scheduler(capacity: int = CAPACITY, **limits: object) -> tuple[Scheduler, KvArena, FakeRunner]:
    chosen = {"max_running": 4, "max_waiting": 100, "max_step_tokens": 12, "context_tokens": 1000, "overtake_s": 0.1} | limits
    arena = KvArena(capacity)
    scheduler = Scheduler(Limits(eos_ids=frozenset({EOS}), **chosen), arena)  # type: ignore[arg-type]
    return scheduler, arena, FakeRunner(capacity, chosen["max_step_tokens"])  # type: ignore[arg-type]


def step(scheduler: Scheduler, runner: FakeRunner, now: float) -> list[Request]:
    """Plans, computes and takes in one step of STEP_S; returns who was admitted for it."""
    plan = scheduler.plan(now)
    if plan.chunks:
        scheduler.step_done(runner.execute(plan.chunks), STEP_S, now + STEP_S)
    return plan.admitted


def run_out(scheduler: Scheduler, runner: FakeRunner, now: float = 0.0, steps: int = 5000) -> float:
    """Steps until nothing is left to do; the bound is what "no starvation" means."""
    for _ in range(steps):
        if not scheduler.has_requests:
            return now
        step(scheduler, runner, now)
        now += STEP_S
    raise AssertionError(f"{scheduler.running} running and {scheduler.waiting} waiting after {steps} steps")


@dataclass(frozen=True)
class Arrival:
    """A request of the simulation; times in steps."""

    prompt: list[int]
    max_tokens: int
    at: int
    leaves_after: int | None
    deadline_after: int | None


_arrivals = st.builds(
    Arrival,
    prompt=st.lists(st.integers(32, 122), min_size=1, max_size=40),
    max_tokens=st.integers(1, 30),
    at=st.integers(0, 40),
    leaves_after=st.none() | st.integers(0, 40),
    deadline_after=st.none() | st.integers(0, 60),
)


@settings(max_examples=300, deadline=None)
@given(arrivals=st.lists(_arrivals, max_size=14), failing_steps=st.sets(st.integers(0, 60), max_size=3))
def test_every_request_ends_once_and_the_arena_is_whole(arrivals: list[Arrival], failing_steps: set[int]) -> None:
    scheduler, arena, runner = new_scheduler(max_waiting=4)
    requests: list[tuple[Arrival, Request]] = []
    ended: list[Request] = []
    for at in range(2000):
        now = at * STEP_S
        for arrival in arrivals:
            if arrival.at == at:
                deadline = float("inf") if arrival.deadline_after is None else now + arrival.deadline_after * STEP_S
                request = new_request(arrival.prompt, arrival.max_tokens, deadline=deadline)
                try:
                    scheduler.submit(request)
                except QueueFullError:
                    assert scheduler.running + scheduler.waiting == 8
                except RequestTooLongError:
                    assert request.total_tokens > CAPACITY
                else:
                    requests.append((arrival, request))
        plan = scheduler.plan(now)
        ended += plan.expired
        for arrival, request in requests:  # clients leave while the step runs
            left = arrival.leaves_after is not None and arrival.at + arrival.leaves_after == at
            if left and scheduler.end(request, Outcome.CANCELLED, now):
                ended.append(request)
        if plan.chunks and at in failing_steps:
            ended += scheduler.step_failed(now)
        elif plan.chunks:
            ended += scheduler.step_done(runner.execute(plan.chunks), STEP_S, now).ended
        owned = sum(request.total_tokens for request in scheduler.requests() if request.kv_start is not None)
        assert arena.used == owned
        if at > 40 and not scheduler.has_requests:
            break
    assert not scheduler.has_requests, "starved"
    assert arena.used == 0
    assert sorted(map(id, ended)) == sorted(id(request) for _, request in requests)
    for arrival, request in requests:
        expected = continuation(arrival.prompt, arrival.max_tokens)
        # Whatever shared its batch: the tokens are those that it gets alone.
        assert request.output_ids == expected[: len(request.output_ids)]
        assert (request.outcome is Outcome.OK) == (request.output_ids == expected)
        if request.outcome is Outcome.OK:
            reason = FinishReason.STOP if expected[-1] == EOS else FinishReason.LENGTH
            assert request.finish_reason is reason
        else:
            assert request.outcome in (Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.ERROR)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=10))
def test_steps_stay_within_their_size_and_compute_each_token_once(sizes: list[tuple[int, int]]) -> None:
    scheduler, _, runner = new_scheduler()
    requests = [new_request(list(range(40, 40 + prompt)), answer) for prompt, answer in sizes]
    for request in requests:
        scheduler.submit(request)
    run_out(scheduler, runner)
    assert all(sum(len(chunk.token_ids) for chunk in chunks) <= 12 for chunks in runner.steps)
    assert all(len({chunk.kv_start for chunk in chunks}) == len(chunks) for chunks in runner.steps)
    computed = sum(len(chunk.token_ids) for chunks in runner.steps for chunk in chunks)
    # The last token of an answer is sampled but never computed.
    assert computed == sum(len(request.prompt_ids) + len(request.output_ids) - 1 for request in requests)


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    scheduler, _, runner = new_scheduler(capacity=1000, max_step_tokens=64)
    short = new_request([65], 100)
    scheduler.submit(short)
    step(scheduler, runner, 0.0)
    scheduler.submit(new_request(list(range(32, 122)) * 5, 10))
    for index in range(1, 20):
        before = len(short.output_ids)
        step(scheduler, runner, index * STEP_S)
        assert len(short.output_ids) == before + 1


def test_a_large_request_is_overtaken_for_a_while_only() -> None:
    scheduler, _, runner = new_scheduler(max_running=8)
    scheduler.submit(new_request([65] * 10, 20))  # 30 of 64 slots
    step(scheduler, runner, 0.0)
    large = new_request([66] * 30, 20)  # needs 50
    scheduler.submit(large)
    now = STEP_S
    overtook_at: list[float] = []
    while large.admitted_at is None:
        assert now < 2.0, "starved"
        small = new_request([67] * 5, 5)  # an endless stream of what would always fit
        scheduler.submit(small)
        if step(scheduler, runner, now) and large.admitted_at is None:
            overtook_at.append(now)
        now += STEP_S
    assert overtook_at, "small requests may use the memory meanwhile"
    assert large.blocked_since is not None
    assert max(overtook_at) < large.blocked_since + 0.1
    # From then on it waits for those that ran already: 20 tokens at most here.
    assert large.admitted_at <= large.blocked_since + 0.1 + 25 * STEP_S


def test_places_to_run_are_given_in_order_of_arrival() -> None:
    scheduler, _, runner = new_scheduler(max_running=2)
    requests = [new_request([65 + index], 3) for index in range(6)]
    for request in requests:
        scheduler.submit(request)
    run_out(scheduler, runner)
    admitted = [request.admitted_at for request in requests]
    assert admitted == sorted(admitted, key=lambda at: at or 0.0)


def test_a_full_engine_refuses() -> None:
    scheduler, _, runner = new_scheduler(max_running=1, max_waiting=2)
    for _ in range(3):
        scheduler.submit(new_request())
    with pytest.raises(QueueFullError, match="3 requests"):
        scheduler.submit(new_request())
    run_out(scheduler, runner)
    scheduler.submit(new_request())


@pytest.mark.parametrize(("capacity", "context", "longest"), [(64, 1000, 64), (64, 40, 40)])
def test_what_can_never_fit_is_refused_at_once(capacity: int, context: int, longest: int) -> None:
    scheduler, _, runner = new_scheduler(capacity, context_tokens=context)
    assert scheduler.longest == longest
    with pytest.raises(RequestTooLongError, match=rf"at most {longest} tokens; {longest + 1} were requested \(5 in the prompt"):
        scheduler.submit(new_request([65] * 5, longest - 4))
    scheduler.submit(new_request([65] * 5, longest - 5))
    run_out(scheduler, runner)


def test_a_deadline_ends_those_who_wait_and_those_who_run() -> None:
    scheduler, arena, runner = new_scheduler(max_running=1)
    running, waiting = new_request([65], 50, deadline=0.05), new_request([66], 50, deadline=0.03)
    scheduler.submit(running)
    scheduler.submit(waiting)
    run_out(scheduler, runner)
    assert (running.outcome, waiting.outcome) == (Outcome.TIMEOUT, Outcome.TIMEOUT)
    assert running.ended_at == pytest.approx(0.05)
    assert waiting.admitted_at is None
    assert arena.used == 0


def test_a_failed_step_spares_those_who_were_not_in_it() -> None:
    scheduler, arena, runner = new_scheduler(max_running=1)
    first, second = new_request([65], 5), new_request([66], 5)
    scheduler.submit(first)
    scheduler.submit(second)
    scheduler.plan(0.0)
    assert scheduler.step_failed(0.0) == [first]
    run_out(scheduler, runner)
    assert (first.outcome, second.outcome) == (Outcome.ERROR, Outcome.OK)
    assert arena.used == 0


def test_answers_that_do_not_match_the_plan_leave_it_to_be_failed() -> None:
    scheduler, _, _ = new_scheduler()
    request = new_request()
    scheduler.submit(request)
    scheduler.plan(0.0)
    with pytest.raises(ValueError, match="0 results for 1 chunks"):
        scheduler.step_done([], STEP_S, 0.0)
    assert scheduler.step_failed(0.0) == [request]
    with pytest.raises(RuntimeError, match="no step"):
        scheduler.step_failed(0.0)


def test_gaps_between_tokens_are_grouped() -> None:
    scheduler, _, runner = new_scheduler()
    for letter in b"ABC":
        scheduler.submit(new_request([letter], 3))
    step(scheduler, runner, 1.0)
    plan = scheduler.plan(2.0)
    result = scheduler.step_done(runner.execute(plan.chunks), STEP_S, 2.5)
    assert result.gaps == {2.5 - 1.01: 3}
    assert not result.first
    assert result.prompt_tokens == 0


def test_the_queue_drains_at_the_pace_of_those_served() -> None:
    scheduler, _, runner = new_scheduler(max_running=2)
    assert scheduler.drain_s() is None
    scheduler.submit(new_request([65], 10))
    run_out(scheduler, runner)  # ten steps: 0.1 s of service
    for _ in range(6):
        scheduler.submit(new_request([65], 10))
    assert scheduler.drain_s() == pytest.approx(6 * 0.1 / 2)


@pytest.mark.parametrize("wrong", [{"max_running": 0}, {"max_waiting": 0}, {"context_tokens": 0}, {"max_step_tokens": 4}])
def test_limits_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        new_scheduler(**wrong)
