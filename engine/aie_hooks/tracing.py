"""One OpenTelemetry span a request, through the SDK that the engine's process has set up, by the GenAI semantic conventions.

    provider = TracerProvider(...)                       # the SDK, with an exporter of your choice, set up before
    hooks = RequestHooks(emitter, model="m", tracer=span_tracer("chat", model="m"))

While the request runs only its stages' times are noted; the span is made after it ended, with explicit times and on a thread of its
own (`aie_hooks.span_thread`), so that no token waits for it. Without the package, or without an SDK set up, `span_tracer` returns a
shared object that does nothing.

Which requests: those whose caller sends a `traceparent` with the sampled flag, never those whose flag is not set, and of the
others those that are sampled for the histograms. The SDK's own sampler then has its say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

_NS_PER_S: Final = 1_000_000_000
# What a span calls its outcome. Of a client that left, nothing is wrong with the server: an error type, and no error status.
_ERROR_STATUS: Final = frozenset({"error", "timeout", "rejected"})


class Stages(NamedTuple):
    """When a request went through its stages, in seconds of the caller's clock; None for a stage that it did not reach, or that the
    engine does not tell of. `now_s` is the same clock's time now. `cached` says that the answer came from a cache of answers."""

    received_s: float
    tokenized_s: float | None
    queued_s: float | None
    prefill_s: float | None
    first_token_s: float | None
    done_s: float
    now_s: float
    prompt_tokens: int | None
    generated_tokens: int
    cached: bool = False


class SpanIds(NamedTuple):
    """A span that was made and is sampled, in W3C's hexadecimal."""

    trace_id: str
    span_id: str


class Trace(Protocol):
    """A request that shall become a span."""

    def end(self, stages: Stages, outcome: str, finish_reason: str | None, error_type: str | None) -> None:
        """Makes the span, on the hooks' thread for that. May take its time, and raise what the SDK raises."""


class Tracer(Protocol):
    """Decides which requests become spans."""

    def begin(self, headers: Mapping[str, str] | None, operation: str | None, *, sampled: bool) -> Trace | None:
        """The trace of a request that arrived with these headers; None for one that shall have no span."""


class NoTracer:
    """Does nothing: no SDK is here."""

    __slots__ = ()

    def begin(self, headers: Mapping[str, str] | None, operation: str | None, *, sampled: bool) -> None:
        return None


NO_TRACER: Final = NoTracer()


def span_tracer(
    engine: str,
    *,
    model: str,
    operation: str = "chat",
    provider: Any = None,
    wall_clock_ns: Callable[[], int] = time.time_ns,
    on_span: Callable[[SpanIds, Stages], None] | None = None,
) -> Tracer:
    """A tracer on `provider`, an OpenTelemetry TracerProvider; None means the process's own, which must be set up before this call.

    `engine` becomes `gen_ai.provider.name`, `model` `gen_ai.request.model`, `operation` `gen_ai.operation.name`. `on_span` is
    told of each span that the SDK's sampler takes, on the hooks' thread: for exemplars. Returns
    `NO_TRACER` where opentelemetry is not installed or no provider was set up.
    """
    try:
        from opentelemetry import trace  # here, because most engines run without it
    except ImportError:
        return NO_TRACER
    if provider is None:
        provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return NO_TRACER
    attributes = {"gen_ai.provider.name": engine, "gen_ai.request.model": model}
    return SpanTracer(provider.get_tracer("aie_hooks"), model, operation, attributes, wall_clock_ns, on_span)


class SpanTracer:
    """Makes spans with an OpenTelemetry `Tracer`."""

    __slots__ = ("_attributes", "_model", "_on_span", "_operation", "_propagator", "_tracer", "_wall_clock_ns")

    def __init__(
        self,
        tracer: Any,
        model: str,
        operation: str,
        attributes: dict[str, str],
        wall_clock_ns: Callable[[], int],
        on_span: Callable[[SpanIds, Stages], None] | None = None,
    ) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._model = model
        self._operation = operation
        self._attributes = attributes
        self._wall_clock_ns = wall_clock_ns
        self._on_span = on_span
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, headers: Mapping[str, str] | None, operation: str | None, *, sampled: bool) -> Trace | None:
        """As `Tracer` says. A `traceparent` that is malformed counts as none, which is what W3C's recommendation asks for."""
        context = self._parent(headers) if headers else None
        if context is None:
            if not sampled:
                return None
        else:
            from opentelemetry.trace import get_current_span

            if not get_current_span(context).get_span_context().trace_flags.sampled:
                return None
        return _SpanTrace(self, context, operation or self._operation)

    def _parent(self, headers: Mapping[str, str]) -> Any | None:
        """The OpenTelemetry context of the caller's span, if there is one."""
        carrier = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
        if "traceparent" not in carrier:
            # Names of headers know no case, but a plain dict does.
            carrier = {key.lower(): value for key, value in headers.items() if key.lower() in ("traceparent", "tracestate")}
        if "traceparent" not in carrier:
            return None
        from opentelemetry.trace import get_current_span

        context = self._propagator.extract(carrier, {})  # type: ignore[arg-type]  # an empty context, not the thread's current one
        return context if get_current_span(context).get_span_context().is_valid else None

    def emit(
        self, context: Any, operation: str, stages: Stages, outcome: str, finish_reason: str | None, error_type: str | None
    ) -> None:
        """Makes the span and ends it."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode, format_span_id, format_trace_id

        # From one look at both clocks, so that a step of the wall clock cannot turn stages around.
        wall_ns = self._wall_clock_ns()

        def at_ns(moment_s: float) -> int:
            return wall_ns - round((stages.now_s - moment_s) * _NS_PER_S)

        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=Context() if context is None else context,
            kind=SpanKind.SERVER,
            attributes=self._attributes | _attributes(operation, stages, outcome, finish_reason, error_type),
            start_time=at_ns(stages.received_s),
        )
        for name, moment_s in _events(stages):
            span.add_event(name, timestamp=at_ns(moment_s))
        if outcome in _ERROR_STATUS:
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(end_time=at_ns(stages.done_s))
        made = span.get_span_context()
        if self._on_span is not None and made.trace_flags.sampled:
            self._on_span(SpanIds(format_trace_id(made.trace_id), format_span_id(made.span_id)), stages)


class _SpanTrace:
    __slots__ = ("_context", "_operation", "_tracer")

    def __init__(self, tracer: SpanTracer, context: Any, operation: str) -> None:
        self._tracer = tracer
        self._context = context
        self._operation = operation

    def end(self, stages: Stages, outcome: str, finish_reason: str | None, error_type: str | None) -> None:
        self._tracer.emit(self._context, self._operation, stages, outcome, finish_reason, error_type)


def _events(stages: Stages) -> list[tuple[str, float]]:
    """The stages that were reached, by the names of the issue's and the document's table."""
    every = (
        ("received", stages.received_s),
        ("tokenised", stages.tokenized_s),
        ("queued", stages.queued_s),
        ("prefill", stages.prefill_s),
        ("first token", stages.first_token_s),
        ("done", stages.done_s),
    )
    return [(name, moment_s) for name, moment_s in every if moment_s is not None]


def _attributes(operation: str, stages: Stages, outcome: str, finish_reason: str | None, error_type: str | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.usage.output_tokens": stages.generated_tokens,
        "aie.outcome": outcome,
    }
    if stages.cached:
        attributes["aie.response_cache.hit"] = True
    if stages.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = stages.prompt_tokens
    if finish_reason is not None:
        attributes["gen_ai.response.finish_reasons"] = [finish_reason]
    if outcome != "ok":
        attributes["error.type"] = error_type or outcome
    return attributes
