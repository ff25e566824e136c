"""The one thread that owns the model: it asks the scheduler for a step, runs it, and hands out what came of it.

The other threads talk to the scheduler through here, under one lock that is never held while the model computes, nor while hooks
are told. So a full queue is known at once, a client that leaves frees its memory at once, and no message can overtake another.
What came of a step is on the page first, then with the clients, and only then with the hooks.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from aie_engine.complaints import Complaints
from aie_engine.kv_arena import KvArena
from aie_engine.metrics import EngineMetrics, KvUsage
from aie_engine.plan import Chunk, Token
from aie_engine.request import FinishReason, Outcome, Request, Update
from aie_engine.scheduler import Plan, Scheduler, StepResult
from aie_hooks.nvtx import annotate

_log = logging.getLogger(__name__)

Delivery = tuple[Request, Update]


class StepRunner(Protocol):
    """What computes a step: `Runner`, or a stand-in without a model."""

    def execute(self, chunks: Sequence[Chunk]) -> list[Token | None]:
        """One token for each chunk that asks for one, else None, in the order of the chunks."""
        ...


class Aside(Protocol):
    """What the loop computes beside requests, when it is due and there is a place: `Canary`. It must not raise."""

    def due_in_s(self, now: float) -> float:
        """Seconds until it is due, 0 when it is."""
        ...

    def passed_over(self, now: float) -> None:
        """It is due, and there is no place."""
        ...

    def run(self, now: float) -> None:
        """Computes it; it is not due then for a while."""
        ...


class StoppedError(Exception):
    """The model loop takes no more requests."""


class ModelLoop:
    """Runs steps while there are requests and sleeps while there are none.

    `hand_out` gets all news of a step in one call, on the loop's thread: it must pass them to where the clients are served
    and return at once.

    For a profiler every stage is an NVTX range: "plan"; then "step" around "prefill", "decode" or "mixed" (by what the step
    computes; the runner's "forward" and "sample" lie within) and "deliver".
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        arena: KvArena,
        metrics: EngineMetrics,
        hand_out: Callable[[list[Delivery]], None],
        forensics: AbstractContextManager[object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        aside: Aside | None = None,
    ) -> None:
        """`forensics` is entered around every step, and sees the errors of those that fail. `aside` is computed between steps."""
        self._runner = runner
        self._scheduler = scheduler
        self._arena = arena
        self._metrics = metrics
        self._hand_out = hand_out
        self._forensics = nullcontext() if forensics is None else forensics
        self._clock = clock
        self._aside = aside
        self._wake = threading.Condition()
        self._stopping = False
        self._tell = Complaints(_log).call  # whatever metrics raise must not end what they tell of

    def submit(self, request: Request) -> None:
        """Queues a request. Raises the scheduler's errors, and StoppedError after `stop`."""
        with self._wake:
            if self._stopping:
                raise StoppedError
            self._scheduler.submit(request)
            self._tell(self._metrics.queued, request.ticket, self._clock())
            self._wake.notify()
        self._tell_hooks()

    def end(self, request: Request, outcome: Outcome, finish_reason: FinishReason | None = None) -> None:
        """Ends a request from outside: its client left, or its text is complete. Nothing happens if it has ended."""
        with self._wake:
            now = self._clock()
            if self._scheduler.end(request, outcome, now, finish_reason):
                self._ended(request, outcome, now)
        self._tell_hooks()

    def drain_s(self) -> float | None:
        """Seconds until those who wait now will probably run; None before anybody has been served."""
        with self._wake:
            return self._scheduler.drain_s()

    def kv_usage(self) -> KvUsage:
        """The KV cache's token slots at this moment."""
        with self._wake:
            arena = self._arena
            return KvUsage(arena.capacity, arena.used, arena.free, self._scheduler.written, arena.largest_free)

    def stop(self) -> None:
        """Makes `run` return after the step under way. Whoever has not ended by then ends with an error."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self) -> None:
        """The thread's body; returns after `stop`."""
        # What was loaded lives as long as the process: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        while (plan := self._next_plan()) is not None:
            self._run_step(plan)

    def _next_plan(self) -> Plan | None:
        """Sleeps until there is a step to run; None when the loop shall stop."""
        while True:
            self._run_aside()
            with self._wake:
                while not self._stopping and not self._scheduler.has_requests and (idle_s := self._idle_s()) != 0.0:
                    self._wake.wait(idle_s)
                if self._stopping:
                    news = self._end_all("The engine is shutting down.")
                    plan = None
                else:
                    with annotate("plan"):
                        plan = self._plan()
                    news = [(request, Update(outcome=Outcome.TIMEOUT)) for request in plan.expired]
            if news:
                self._hand_out(news)
            self._tell_hooks()
            if plan is None or plan.chunks:
                return plan

    def _idle_s(self) -> float | None:
        """For how long there is nothing to do where there are no requests; None: until there are."""
        return None if self._aside is None else self._aside.due_in_s(self._clock())

    def _run_aside(self) -> None:
        """Between two steps, and without the lock: newcomers wait for it as they wait for a step."""
        if self._aside is None or self._aside.due_in_s(now := self._clock()) > 0.0:
            return
        with self._wake:
            has_place = self._scheduler.has_place and not self._stopping
        if has_place:
            with annotate("aside"):
                self._aside.run(now)
        else:
            self._aside.passed_over(now)

    def _plan(self) -> Plan:
        now = self._clock()
        plan = self._scheduler.plan(now)
        for request in plan.expired:
            self._ended(request, Outcome.TIMEOUT, now)
        for request in plan.admitted:
            self._tell(self._metrics.admitted, request.ticket, now)
        return plan

    def _run_step(self, plan: Plan) -> None:
        with annotate("step"):
            started = self._clock()
            sampled = self._compute(plan)
            with annotate("deliver"):
                self._hand_out(self._step_over(plan, sampled, started))
        self._tell_hooks()

    def _compute(self, plan: Plan) -> Sequence[Token | None] | None:
        """The step's tokens; None when it failed."""
        try:
            with annotate(plan.kind), self._forensics:
                return self._runner.execute(plan.chunks)
        except Exception:  # noqa: BLE001 - whatever broke this step, the requests to come deserve their chance
            _log.exception("a step of %d chunks failed", len(plan.chunks))
            return None

    def _step_over(self, plan: Plan, sampled: Sequence[Token | None] | None, started: float) -> list[Delivery]:
        now = self._clock()
        with self._wake:
            result = None if sampled is None else self._take_in(sampled, now - started, now)
            if result is None:
                return self._step_failed(plan, now - started, now)
            self._tell(self._metrics.step, result, now - started, now, time.time())
            for request in result.ended:
                self._ended(request, Outcome.OK, now)
        return _news(result)

    def _take_in(self, sampled: Sequence[Token | None], duration_s: float, now: float) -> StepResult | None:
        """Enters the tokens in the scheduler's books; None when they do not fit, and the step has failed after all."""
        try:
            return self._scheduler.step_done(sampled, duration_s, now)
        except Exception:  # noqa: BLE001 - as for the step itself
            _log.exception("the results of a step cannot be used")
            return None

    def _step_failed(self, plan: Plan, duration_s: float, now: float) -> list[Delivery]:
        failed = self._scheduler.step_failed(now)
        self._tell(self._metrics.step_failed, duration_s, len(plan.chunks), sum(len(chunk.token_ids) for chunk in plan.chunks))
        for request in failed:
            self._ended(request, Outcome.ERROR, now)
        return [(request, Update(outcome=Outcome.ERROR, detail="The engine failed to compute.")) for request in failed]

    def _ended(self, request: Request, outcome: Outcome, now: float) -> None:
        """Tells the metrics of a request that the scheduler has just ended."""
        self._tell(self._metrics.ended, request.ticket, outcome, now, request.finish_reason)
        self._tell(self._metrics.stages.generated, request)

    def _tell_hooks(self) -> None:
        """To be called without the lock."""
        self._tell(self._metrics.tell_hooks)

    def _end_all(self, detail: str) -> list[Delivery]:
        now = self._clock()
        requests = self._scheduler.requests()
        for request in requests:
            self._scheduler.end(request, Outcome.ERROR, now)
            self._ended(request, Outcome.ERROR, now)
        return [(request, Update(outcome=Outcome.ERROR, detail=detail)) for request in requests]


def _news(result: StepResult) -> list[Delivery]:
    return [(request, Update(request.last_token, request.outcome, request.finish_reason)) for request in result.sampled]
