"""The life of a request, as an engine tells it: entered, tokenised, queued, admitted, first token, tokens, end.

    hooks = RequestHooks(emitter, model="m")
    request = hooks.enter()            # it arrived; enter(headers) continues the caller's trace
    request.tokenized(17)              # its prompt has 17 tokens
    request.queued()                   # it waits for a place in the batch
    request.admitted()                 # it has one
    request.token()                    # once per token, or token(n) for n at once, or hooks.step(requests) for a whole batch
    request.end("ok")                  # or error, cancelled, timeout, rejected

or, where one function serves a request from start to end, `with hooks.enter() as request:`, which ends it by how it is left.

Counters and the numbers of requests running and waiting are exact. Latencies are those of a sample of the requests: chosen at
arrival, so that all values of one belong together. What each of them means is written in the catalogue, once for pages and hooks.
Leave out what your engine does not have: `tokenized` and `queued`, above all.

Each call takes the moment of what it tells as `at_s`, in seconds of `clock`, from engines that know it better than "now".
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, ParamSpec

from aie_hooks.emitter import Emitter
from aie_hooks.reentrant import Tally
from aie_hooks.series import Gauge
from aie_hooks.span_thread import SpanThread
from aie_hooks.tracing import NO_TRACER, Stages, Trace, Tracer
from aie_telemetry.catalogue import OUTCOMES

_P = ParamSpec("_P")

# How a `with` is left, and what that says of the request; by name, because asyncio need not be loaded for it. A client that leaves
# ends a generator with GeneratorExit, a handler with CancelledError, and a write to it with a ConnectionError.
_OUTCOME_OF_ERROR: Final = {
    "GeneratorExit": "cancelled",
    "CancelledError": "cancelled",
    "ConnectionError": "cancelled",
    "TimeoutError": "timeout",
}


class RequestHooks:
    """For one engine and model; make one at start and call `enter` for each request."""

    def __init__(
        self,
        emitter: Emitter,
        *,
        model: str,
        rate: float = 0.1,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`rate` is the share of requests whose latencies are sent. `tracer`, from `aie_hooks.span_tracer`, makes spans of the
        same requests, and of those that a caller traces. `clock` gives seconds, `wall_clock` seconds since the epoch. Raises
        ValueError as handles do."""
        self.clock = clock
        self.emitter = emitter
        self.received = emitter.counter("aie_engine_requests_received_total", model=model)
        self.ended = {outcome: emitter.counter("aie_engine_requests_total", model=model, outcome=outcome) for outcome in OUTCOMES}
        self.tokens = emitter.counter("aie_engine_generation_tokens_total", model=model)
        self.prompt_tokens = emitter.counter("aie_engine_prompt_tokens_total", model=model)
        self.time_to_first_token = emitter.histogram("aie_engine_time_to_first_token_seconds", rate, model=model)
        self.inter_token = emitter.histogram("aie_engine_inter_token_seconds", rate, model=model)
        self.queue = emitter.histogram("aie_engine_queue_seconds", rate, model=model)
        self.duration = emitter.histogram("aie_engine_request_duration_seconds", rate, model=model)
        self.tokenize = emitter.histogram("aie_engine_tokenize_seconds", rate, model=model)
        self.prefill = emitter.histogram("aie_engine_prefill_seconds", rate, model=model)
        self.decode = emitter.histogram("aie_engine_decode_seconds", rate, model=model)
        self.per_output_token = emitter.histogram("aie_engine_time_per_output_token_seconds", rate, model=model)
        self.prompt_length = emitter.histogram("aie_engine_request_prompt_tokens", rate, model=model)
        self.generation_length = emitter.histogram("aie_engine_request_generation_tokens", rate, model=model)
        self.tracer: Tracer = NO_TRACER if tracer is None else tracer
        self.spans = SpanThread(emitter)
        self._running = emitter.gauge("aie_engine_requests_running", model=model)
        self._waiting = emitter.gauge("aie_engine_requests_waiting", model=model)
        self._last_token = emitter.gauge("aie_engine_last_token_timestamp_seconds", model=model)
        self._ticker = emitter.ticker
        self._wall_clock = wall_clock
        self._rate = rate
        self._waiting_level, self._running_level = _Level(self._waiting), _Level(self._running)
        self._tokens_then = 0.0
        self.life = object()
        """What a request remembers, so that a forked child does not count the parent's requests out that it never counted in."""
        self.moved(waiting=0, running=0)
        emitter.at_flush(self)

    def enter(
        self, headers: Mapping[str, str] | None = None, *, operation: str | None = None, at_s: float | None = None
    ) -> RequestHook:
        """A request arrived. `headers` are its HTTP headers, of which `traceparent` and `tracestate` are read; `operation` is what
        it asks for by OpenTelemetry's names ("chat", "text_completion"), where that differs from the tracer's."""
        self.received.add()
        self.moved(waiting=1, running=0)
        try:
            sampled = self.emitter.sampled(self._rate)
            return RequestHook(self, self._trace(headers, operation, sampled=sampled), sampled=sampled, at_s=at_s)
        except Exception as error:  # noqa: BLE001 - a clock of the caller's; the request goes on, and is counted
            self.emitter.failed("the clock, at a request's arrival,", error)
            return RequestHook(self, None, sampled=False)

    def step(self, requests: Iterable[RequestHook], at_s: float | None = None) -> None:
        """A token of each of these requests came out: as `token()` for each of them, but counted in one addition."""
        tokens = 0
        try:
            for request in requests:
                tokens += request.one_of_many(at_s)
        except Exception as error:  # noqa: BLE001 - what the caller hands in; those before it are counted
            self.emitter.failed("a step's requests", error)
        self.tokens.add(tokens)

    def wait_for_spans(self, timeout_s: float) -> bool:
        """Waits until the spans of all requests that ended are made; whether they are. To be called before the SDK is shut down."""
        return self.spans.drain(timeout_s)

    def _trace(self, headers: Mapping[str, str] | None, operation: str | None, *, sampled: bool) -> Trace | None:
        try:
            return self.tracer.begin(headers, operation, sampled=sampled)
        except Exception as error:  # noqa: BLE001 - a tracer of the caller's, or headers of a stranger's
            self.emitter.failed("the tracer, at a request's arrival,", error)
            return None

    def moved(self, *, waiting: int, running: int) -> None:
        """So many more requests wait and run. For `RequestHook`."""
        self._waiting_level.moves.add(waiting)
        self._running_level.moves.add(running)
        if self._ticker.asleep:
            self._ticker.ring()

    def collect(self) -> None:
        """At each flush: how many wait and run now; and a token came out at most one flush interval ago, if any did since the flush
        before."""
        self._waiting_level.tell()
        self._running_level.tell()
        total = self.tokens.total
        if total > self._tokens_then:
            self._tokens_then = total
            self._last_token.set(self._wall_clock())

    def forget(self) -> None:
        """In a forked child: no request is here, of which it says nothing before it has one."""
        self._waiting_level, self._running_level = _Level(self._waiting), _Level(self._running)
        self._tokens_then = 0.0
        self.life = object()
        self.spans.forget()


class _Level:
    """A number that goes up and down, told by a gauge at each flush in which it moved."""

    def __init__(self, gauge: Gauge) -> None:
        self.moves = Tally()
        self._gauge = gauge
        self._now = 0.0

    def tell(self) -> None:
        if self.moves:
            self._now += self.moves.take()
            self._gauge.set(self._now)


def _guarded(method: Callable[_P, None]) -> Callable[_P, None]:
    """`method` of a `RequestHook`, which shall not raise: its clock is the caller's, and so is what it is given."""

    @functools.wraps(method)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - see above; it is logged
            hook = args[0]
            assert isinstance(hook, RequestHook)
            hook.failed(method.__name__, error)

    return guarded


class RequestHook:
    """One request. To be called by one thread at a time; calls after the end do nothing."""

    __slots__ = (
        "_admitted_s",
        "_cached",
        "_ended",
        "_entered_s",
        "_first_token_s",
        "_generated",
        "_hooks",
        "_last_token_s",
        "_life",
        "_prompt_due",
        "_prompt_tokens",
        "_queued_s",
        "_running",
        "_sampled",
        "_tokenized_s",
        "_trace",
        "_watched",
    )

    def __init__(self, hooks: RequestHooks, trace: Trace | None, *, sampled: bool, at_s: float | None = None) -> None:
        self._hooks = hooks
        self._trace = trace
        self._sampled = sampled
        # Its times are wanted: for histograms, for a span, or for both.
        self._watched = sampled or trace is not None
        self._running = False
        self._ended = False
        self._life = hooks.life
        self._prompt_due = 0
        if self._watched:
            self._entered_s = hooks.clock() if at_s is None else at_s
            self._cached = False
            self._generated = 0
            self._prompt_tokens: int | None = None
            self._tokenized_s: float | None = None
            self._queued_s: float | None = None
            self._admitted_s: float | None = None
            self._first_token_s: float | None = None
            self._last_token_s: float | None = None

    def failed(self, name: str, error: Exception) -> None:
        """One of the calls below broke: it is counted, and logged once."""
        self._hooks.emitter.failed(f"a request's {name}()", error)

    def _moved(self, *, waiting: int, running: int) -> None:
        if self._life is self._hooks.life:
            self._hooks.moved(waiting=waiting, running=running)

    def _moment(self, at_s: float | None) -> float:
        return self._hooks.clock() if at_s is None else at_s

    @_guarded
    def tokenized(self, prompt_tokens: int, at_s: float | None = None) -> None:
        """The prompt is token ids now, so many. They are counted as computed when the first token comes out."""
        if self._ended:
            return
        self._prompt_due = prompt_tokens
        if self._watched:
            self._prompt_tokens = prompt_tokens
            self._tokenized_s = self._moment(at_s)
            if self._sampled:
                self._hooks.tokenize.record(self._tokenized_s - self._entered_s)

    @_guarded
    def cached(self, tokens: int) -> None:
        """The answer, of so many tokens, comes from a cache of answers: there is no call of `admitted` and `token`."""
        if self._watched and not self._ended:
            self._cached = True
            self._generated = tokens

    @_guarded
    def queued(self, at_s: float | None = None) -> None:
        """The request waits for a place in the batch. Engines that do not tell are taken to queue from `tokenized`, or from
        arrival; of their requests that end before they are admitted, nobody knows whether they waited."""
        if self._watched and not self._ended:
            self._queued_s = self._moment(at_s)

    @_guarded
    def admitted(self, at_s: float | None = None) -> None:
        """The request has a place in the batch. Only the first call counts: who is preempted does not arrive again."""
        if self._running or self._ended:
            return
        self._running = True
        self._moved(waiting=-1, running=1)
        if self._watched:
            self._admitted_s = self._moment(at_s)
            if self._sampled:
                self._hooks.queue.record(self._admitted_s - self._waits_since_s())

    def _waits_since_s(self) -> float:
        if self._queued_s is not None:
            return self._queued_s
        return self._entered_s if self._tokenized_s is None else self._tokenized_s

    def token(self, n: int = 1, at_s: float | None = None) -> None:
        """`n` tokens came out at once, at least one. Time since the tokens before is shared among them."""
        if self._ended:
            return
        hooks = self._hooks
        hooks.tokens.add(n)
        if self._watched or self._prompt_due:
            try:
                self._look_at(n, at_s)
            except Exception as error:  # noqa: BLE001 - as `_guarded`, of which this call is spared the price
                self.failed("token", error)

    def one_of_many(self, at_s: float | None) -> int:
        """As `token()`, except that the caller counts: how many. For `RequestHooks.step`."""
        if self._ended:
            return 0
        if self._watched or self._prompt_due:
            try:
                self._look_at(1, at_s)
            except Exception as error:  # noqa: BLE001 - as in `token`
                self.failed("token", error)
        return 1

    def _look_at(self, n: int, at_s: float | None) -> None:
        """The rest of `token`, for a request that is watched, and for the first token of every other."""
        hooks = self._hooks
        if n < 1:
            return
        if self._prompt_due:
            hooks.prompt_tokens.add(self._prompt_due)
            self._prompt_due = 0
        if not self._watched:
            return
        now_s = self._moment(at_s)
        self._generated += n
        if self._last_token_s is None:
            self._first_token(now_s)
        elif self._sampled:
            hooks.inter_token.record((now_s - self._last_token_s) / n, n)
        self._last_token_s = now_s

    def _first_token(self, now_s: float) -> None:
        self._first_token_s = now_s
        if self._sampled:
            self._hooks.time_to_first_token.record(now_s - self._entered_s)
            if self._admitted_s is not None:
                self._hooks.prefill.record(now_s - self._admitted_s)

    def end(
        self, outcome: str, *, finish_reason: str | None = None, error_type: str | None = None, at_s: float | None = None
    ) -> None:
        """The request ended; a second end is ignored. `outcome` is one of `aie_telemetry.catalogue.OUTCOMES`; whatever else it is
        counts as an error, as dropped (invalid), and is logged once.

        For the span: why it stopped ("stop", "length"), and the class of the error where `outcome` does not say enough.
        """
        hooks = self._hooks
        if self._ended:
            return
        self._ended = True
        # By its class alone, because anything else of what is no text is the caller's code, which may raise.
        plain = str.__str__(outcome) if isinstance(outcome, str) else f"(a {type(outcome).__name__})"
        if plain not in hooks.ended:
            self.failed("end", ValueError(f"outcome {plain!r:.50} is none of {', '.join(OUTCOMES)}"))
            plain = "error"
        hooks.ended[plain].add()
        self._moved(waiting=0 if self._running else -1, running=-1 if self._running else 0)
        if self._watched:
            self._finish(plain, finish_reason, error_type, at_s)

    @_guarded
    def _finish(self, outcome: str, finish_reason: str | None, error_type: str | None, at_s: float | None) -> None:
        now_s = self._moment(at_s)
        if self._sampled:
            self._record_whole(now_s)
        trace = self._trace
        if trace is not None:
            # The stages there, because a span's times are worked out from one look at two clocks.
            self._hooks.spans.put(lambda: trace.end(self._stages(now_s), outcome, finish_reason, error_type))

    def __enter__(self) -> RequestHook:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Ends the request as ok, or by the error that leaves: see `_OUTCOME_OF_ERROR`; every other is an error. Does nothing for
        one that has ended."""
        if kind is None:
            self.end("ok")
        else:
            outcomes = (_OUTCOME_OF_ERROR.get(base.__name__) for base in kind.__mro__)
            self.end(next(filter(None, outcomes), "error"), error_type=kind.__name__)

    def _record_whole(self, now_s: float) -> None:
        hooks = self._hooks
        if self._running or self._cached:
            hooks.duration.record(now_s - self._entered_s)
        elif self._queued_s is not None:
            hooks.queue.record(now_s - self._queued_s)
        if not self._generated:
            return
        if self._prompt_tokens is not None:
            hooks.prompt_length.record(self._prompt_tokens)
        hooks.generation_length.record(self._generated)
        if self._generated > 1 and self._first_token_s is not None and self._last_token_s is not None:
            decode_s = self._last_token_s - self._first_token_s
            hooks.decode.record(decode_s)
            hooks.per_output_token.record(decode_s / (self._generated - 1))

    def _stages(self, now_s: float) -> Stages:
        return Stages(
            received_s=self._entered_s,
            tokenized_s=self._tokenized_s,
            queued_s=self._queued_s,
            prefill_s=self._admitted_s,
            first_token_s=self._first_token_s,
            done_s=now_s,
            now_s=self._hooks.clock(),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            cached=self._cached,
        )
