"""The life of a request, as an engine tells it: entered, admitted, first token, tokens, end.

    hooks = RequestHooks(emitter, model="m")
    request = hooks.enter()            # it arrived
    request.admitted()                 # it has a place in the batch
    request.token()                    # once per token, or token(n) for n of them at once
    request.end("ok")                  # or error, cancelled, timeout, rejected

Counters are exact. Latencies are those of a sample of the requests: chosen at arrival, so that all values of one belong together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aie_hooks.emitter import Emitter
from aie_telemetry.catalogue import OUTCOMES


class RequestHooks:
    """For one engine and model; make one at start and call `enter` for each request."""

    def __init__(self, emitter: Emitter, *, model: str, rate: float = 0.1, clock: Callable[[], float] = time.perf_counter) -> None:
        """`rate` is the share of requests whose latencies are sent. `clock` gives seconds. Raises ValueError as handles do."""
        self.clock = clock
        self.received = emitter.counter("aie_engine_requests_received_total", model=model)
        self.ended = {outcome: emitter.counter("aie_engine_requests_total", model=model, outcome=outcome) for outcome in OUTCOMES}
        self.tokens = emitter.counter("aie_engine_generation_tokens_total", model=model)
        self.time_to_first_token = emitter.histogram("aie_engine_time_to_first_token_seconds", rate, model=model)
        self.inter_token = emitter.histogram("aie_engine_inter_token_seconds", rate, model=model)
        self.queue = emitter.histogram("aie_engine_queue_seconds", rate, model=model)
        self.duration = emitter.histogram("aie_engine_request_duration_seconds", rate, model=model)
        self._rate = rate
        self._emitter = emitter

    def enter(self) -> RequestHook:
        """A request arrived."""
        self.received.add()
        return RequestHook(self, sampled=self._emitter.sampled(self._rate))


class RequestHook:
    """One request. To be called by one thread at a time; calls after the end do nothing."""

    __slots__ = ("_admitted", "_ended", "_entered_s", "_hooks", "_last_token_s", "_sampled")

    def __init__(self, hooks: RequestHooks, *, sampled: bool) -> None:
        self._hooks = hooks
        self._sampled = sampled
        self._admitted = False
        self._ended = False
        self._entered_s = hooks.clock() if sampled else 0.0
        self._last_token_s: float | None = None

    def admitted(self) -> None:
        """The request has a place in the batch. Only the first call counts: who is preempted does not arrive again."""
        if self._admitted or self._ended:
            return
        self._admitted = True
        if self._sampled:
            self._hooks.queue.record(self._hooks.clock() - self._entered_s)

    def token(self, n: int = 1) -> None:
        """`n` tokens came out at once, at least one. Time since the tokens before is shared among them."""
        if self._ended:
            return
        hooks = self._hooks
        hooks.tokens.add(n)
        if not self._sampled or n < 1:
            return
        now_s = hooks.clock()
        if self._last_token_s is None:
            hooks.time_to_first_token.record(now_s - self._entered_s)
        else:
            hooks.inter_token.record((now_s - self._last_token_s) / n, n)
        self._last_token_s = now_s

    def end(self, outcome: str) -> None:
        """The request ended; a second end is ignored. Raises ValueError for what is none of `aie_telemetry.catalogue.OUTCOMES`."""
        if outcome not in self._hooks.ended:
            raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
        if self._ended:
            return
        self._ended = True
        self._hooks.ended[outcome].add()
        if self._sampled and self._admitted:
            self._hooks.duration.record(self._hooks.clock() - self._entered_s)
