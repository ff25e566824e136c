"""Spans of requests, made by the real SDK and read back from its own in-memory exporter."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hook_receivers import Clock, UnixReceiver, manual_emitter, observations
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aie_hooks import RequestHooks, span_tracer
from aie_hooks.span_thread import MAX_WAITING
from aie_hooks.tracing import NO_TRACER, SpanTracer

WAIT_S = 60.0
WALL_NS = 1_700_000_000_000_000_000
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = (f"00-{TRACE_ID}-{SPAN_ID}-{flags}" for flags in ("01", "00"))


class _Traced:
    """Hooks whose spans lie in memory. The wall clock stands still, `clock` is the engine's."""

    def __init__(self, path: Path, rate: float = 1.0, **provider: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**provider)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.clock = Clock()
        self.emitter = manual_emitter(f"unix://{path}", rng=random.Random(3))
        tracer = span_tracer("chat", model="m", provider=self.provider, wall_clock_ns=lambda: WALL_NS)
        self.hooks = RequestHooks(self.emitter, model="m", rate=rate, tracer=tracer, clock=self.clock)

    def spans(self) -> tuple[ReadableSpan, ...]:
        assert self.hooks.wait_for_spans(WAIT_S)
        return self.exporter.get_finished_spans()


@pytest.fixture
def traced(receiver: UnixReceiver, socket_path: Path) -> _Traced:
    return _Traced(socket_path)


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_every_stage_is_an_event_with_its_time(traced: _Traced) -> None:
    request = traced.hooks.enter(operation="text_completion")
    for wait_s, step in (
        (0.25, lambda: request.tokenized(17)),
        (0.25, request.queued),
        (0.5, request.admitted),
        (1.0, request.token),
        (0.5, lambda: request.token(4)),
        (0.5, lambda: request.end("ok", finish_reason="stop")),
    ):
        traced.clock.now_s += wait_s
        step()
    (span,) = traced.spans()
    assert (span.name, span.kind, span.parent) == ("text_completion m", SpanKind.SERVER, None)
    assert _attributes(span) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 17,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("stop",),
        "aie.outcome": "ok",
    }
    assert (span.start_time, span.end_time) == (WALL_NS - 3 * 10**9, WALL_NS)
    assert {event.name: (event.timestamp - WALL_NS) / 1e9 for event in span.events} == {
        "received": -3.0,
        "tokenised": -2.75,
        "queued": -2.5,
        "prefill": -2.0,
        "first token": -1.0,
        "done": 0.0,
    }
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("outcome", "error_type", "said", "status"),
    [
        ("error", "OutOfMemoryError", "OutOfMemoryError", StatusCode.ERROR),
        ("timeout", None, "timeout", StatusCode.ERROR),
        ("rejected", None, "rejected", StatusCode.ERROR),
        ("cancelled", None, "cancelled", StatusCode.UNSET),
    ],
)
def test_what_went_wrong(traced: _Traced, outcome: str, error_type: str | None, said: str, status: StatusCode) -> None:
    traced.hooks.enter().end(outcome, error_type=error_type)
    (span,) = traced.spans()
    assert _attributes(span)["error.type"] == said
    assert "gen_ai.usage.input_tokens" not in _attributes(span)
    assert [event.name for event in span.events] == ["received", "done"]
    assert span.status.status_code is status


@pytest.mark.parametrize("key", ["traceparent", "Traceparent"])
def test_the_callers_trace_goes_on(receiver: UnixReceiver, socket_path: Path, key: str) -> None:
    traced = _Traced(socket_path, rate=1e-6)
    traced.hooks.enter({key: SAMPLED, "tracestate": "vendor=1", "host": "x"}).end("ok")
    (span,) = traced.spans()
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert span.context.trace_id == span.parent.trace_id
    assert span.context.trace_state.get("vendor") == "1"
    traced.emitter.flush()
    # Traced, but not in the sample of the histograms: a caller who traces everything must not bend them.
    assert observations(receiver.samples(), "aie_engine_request_duration_seconds") == []


def test_the_sdks_own_propagator_agrees(traced: _Traced) -> None:
    headers: dict[str, str] = {}
    with traced.provider.get_tracer("caller").start_as_current_span("caller") as caller:
        TraceContextTextMapPropagator().inject(headers)
        traced.hooks.enter(headers).end("ok")
    ours = next(span for span in traced.spans() if span.name == "chat m")
    assert ours.parent is not None
    assert ours.parent.span_id == caller.get_span_context().span_id


def test_who_does_not_want_a_span_gets_none(traced: _Traced) -> None:
    traced.hooks.enter({"traceparent": UNSAMPLED}).end("ok")
    assert traced.spans() == ()


@pytest.mark.parametrize("value", ["", "00-zz", f"00-{'0' * 32}-{SPAN_ID}-01", f"ff-{TRACE_ID}-{SPAN_ID}-01", "\x00" * 9000])
def test_a_malformed_traceparent_counts_as_none(traced: _Traced, value: str) -> None:
    traced.hooks.enter({"traceparent": value}).end("ok")
    (span,) = traced.spans()
    assert span.parent is None


def test_a_span_around_the_call_is_not_the_requests_parent(traced: _Traced) -> None:
    with traced.provider.get_tracer("engine").start_as_current_span("startup"):
        traced.hooks.enter().end("ok")
    assert next(span for span in traced.spans() if span.name == "chat m").parent is None


def test_the_sample_of_spans_is_that_of_the_histograms(receiver: UnixReceiver, socket_path: Path) -> None:
    traced = _Traced(socket_path, rate=0.25)
    for number in range(100):
        request = traced.hooks.enter()
        request.admitted()
        traced.clock.now_s += 1 + number
        request.end("ok")
    traced.emitter.flush()
    durations = observations(receiver.samples(), "aie_engine_request_duration_seconds")
    assert 10 < len(durations) < 45
    assert [(span.end_time - span.start_time) / 1e9 for span in traced.spans() if span.end_time and span.start_time] == durations


def test_the_sdks_sampler_has_its_say(receiver: UnixReceiver, socket_path: Path) -> None:
    traced = _Traced(socket_path, sampler=ALWAYS_OFF)
    traced.hooks.enter().end("ok")
    assert traced.spans() == ()


class _Broken:
    def begin(self, *_: object, **__: object) -> Any:
        raise RuntimeError("no traces today")

    def end(self, *_: object) -> None:
        raise RuntimeError("the exporter is gone")


def test_a_tracer_that_raises_does_not_reach_the_engine(
    receiver: UnixReceiver, socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    hooks = RequestHooks(emitter, model="m", rate=1.0, tracer=_Broken())
    for _ in range(3):
        hooks.enter({"traceparent": SAMPLED}).end("ok")
    assert hooks.wait_for_spans(WAIT_S)
    assert emitter.stats().dropped["invalid"] == 3
    assert len(caplog.records) == 1
    assert "no traces today" in caplog.text


def test_a_span_that_cannot_be_made_does_not_reach_the_engine(
    receiver: UnixReceiver, socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")

    class Tracer:
        def begin(self, *_: object, **__: object) -> Any:
            return _Broken()

    hooks = RequestHooks(emitter, model="m", rate=1.0, tracer=Tracer())
    for _ in range(3):
        hooks.enter().end("ok")
    assert hooks.wait_for_spans(WAIT_S)
    assert emitter.stats().dropped["invalid"] == 3
    assert "the exporter is gone" in caplog.text
    assert hooks.ended["ok"].total == 3


class _Held:
    """A trace whose span is made once it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Event()
        self.made = 0

    def begin(self, *_: object, **__: object) -> Any:
        return self

    def end(self, *_: object) -> None:
        self.begun.set()
        assert self.let_go.wait(WAIT_S)
        self.made += 1


def test_an_exporter_that_hangs_holds_up_nobody_and_what_it_holds_up_is_bounded(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    held = _Held()
    hooks = RequestHooks(emitter, model="m", rate=1.0, tracer=held)
    hooks.enter().end("ok")
    assert held.begun.wait(WAIT_S)
    for _ in range(MAX_WAITING + 3):
        hooks.enter().end("ok")
    assert hooks.ended["ok"].total == MAX_WAITING + 4  # though no span is made yet
    assert held.made == 0
    assert not hooks.wait_for_spans(0.0)
    held.let_go.set()
    assert hooks.wait_for_spans(WAIT_S)
    assert held.made == MAX_WAITING + 1
    assert emitter.stats().dropped["budget"] == 3


def test_an_answer_from_a_cache_says_so(traced: _Traced) -> None:
    request = traced.hooks.enter()
    request.tokenized(17)
    request.cached(5)
    request.end("ok", finish_reason="stop")
    (span,) = traced.spans()
    attributes = _attributes(span)
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (17, 5)
    assert attributes["aie.response_cache.hit"] is True
    assert [event.name for event in span.events] == ["received", "tokenised", "done"]


_AT_EXIT = """
import sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
from aie_hooks import Emitter, RequestHooks, span_tracer
hooks = RequestHooks(Emitter("e", "off"), model="m", rate=1.0, tracer=span_tracer("e", model="m", provider=provider))
for _ in range(20):
    hooks.enter().end("ok")
"""


def test_spans_of_the_last_requests_leave_before_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _AT_EXIT], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("chat m\n" * 20, "")


_NOTHING_SET_UP = """
import sys
if sys.argv[1] == "absent":
    sys.modules["opentelemetry"] = None
import aie_hooks, aie_hooks.requests, aie_hooks.tracing
assert "opentelemetry.trace" not in sys.modules
print(aie_hooks.span_tracer("chat", model="m") is aie_hooks.tracing.NO_TRACER)
"""


@pytest.mark.parametrize("package", ["absent", "there, with no SDK set up"])
def test_without_an_sdk_one_object_does_nothing_for_all(package: str) -> None:
    done = subprocess.run([sys.executable, "-c", _NOTHING_SET_UP, package], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert NO_TRACER.begin({"traceparent": SAMPLED}, None, sampled=True) is None


_SET_UP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
import aie_hooks
print(type(aie_hooks.span_tracer("chat", model="m")).__name__)
"""


def test_the_processs_own_provider_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", _SET_UP], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"{SpanTracer.__name__}\n", "")
