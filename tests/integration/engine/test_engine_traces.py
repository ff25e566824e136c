"""Spans of the engine's requests as a collector gets them: OTLP over HTTP, decoded by OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from engine_process import engine_process
from fakes.fake_engine import WAIT_S, FakeEngine, fake_engine
from http_client import CHAT, TEXT, chat, post, text
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from aie_engine.config import ConfigError, EngineConfig
from aie_engine.tracing import LAST_BATCHES_S, RateTracer, otlp_tracing, request_tracer, shut_down
from aie_hooks.tracing import Trace

STAGES = ["received", "tokenised", "queued", "prefill", "first token", "done"]
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
UNTRACED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}


class Collector:
    """A collector on a port of its own. `spans` are all that came."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        return Handler

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        """One export."""
        self.paths.append(path)
        for resource in request.resource_spans:
            self.resources.append({item.key: item.value.string_value for item in resource.resource.attributes})
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Polls until it holds."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, self.spans
            time.sleep(0.01)

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@contextmanager
def traced_engine(collector: Collector, rate: float = 0.0, **settings: Any) -> Iterator[tuple[FakeEngine, Callable[[], list[Any]]]]:
    """An engine that sends its spans to `collector`, and a function that returns all of them so far."""
    config = EngineConfig(model="fake", name="chat-1", otlp_endpoint=collector.url, trace_rate=rate)
    provider = otlp_tracing(config).provider

    def spans() -> list[Any]:
        engine.settle()
        assert provider.force_flush(int(WAIT_S * 1000))
        return collector.spans

    with fake_engine(tracer=request_tracer(config, provider), hook_rate=1e-6, **settings) as engine:
        yield engine, spans
    provider.shutdown()


def attributes(span: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        values[item.key] = [part.string_value for part in value.values] if kind == "array_value" else value
    return values


@pytest.mark.parametrize("stream", [False, True])
def test_a_traced_request_is_one_span_of_its_callers_trace(collector: Collector, stream: bool) -> None:
    with traced_engine(collector) as (engine, spans):
        before_ns = time.time_ns()
        assert post(engine.url, CHAT, chat(stream=stream, max_tokens=5), TRACED).status == 200
        (span,) = spans()
        after_ns = time.time_ns()
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.name) == (TRACE_ID, SPAN_ID, "chat fake")
    assert [event.name for event in span.events] == STAGES
    times = [event.time_unix_nano for event in span.events]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (span.start_time_unix_nano, span.end_time_unix_nano)
    slack_ns = 1_000_000_000  # between two clocks
    assert before_ns - slack_ns < times[0] <= times[-1] < after_ns + slack_ns
    facts = attributes(span)
    assert facts["gen_ai.usage.input_tokens"] == len(b"user: Hello\nassistant: ")
    assert facts["gen_ai.usage.output_tokens"] == 5
    assert facts["gen_ai.response.finish_reasons"] == ["length"]
    assert facts["gen_ai.request.model"] == "fake"
    assert facts["aie.outcome"] == "ok"
    assert collector.paths == ["/v1/traces"]
    assert collector.resources[0]["service.name"] == "chat-1"


def test_the_other_route_is_another_operation(collector: Collector) -> None:
    with traced_engine(collector) as (engine, spans):
        post(engine.url, TEXT, text(), TRACED)
        (span,) = spans()
    assert span.name == "text_completion fake"
    assert attributes(span)["gen_ai.operation.name"] == "text_completion"


def test_what_was_refused_says_why(collector: Collector) -> None:
    with traced_engine(collector, kv_tokens=300) as (engine, spans):
        post(engine.url, CHAT, chat("x" * 5_000), TRACED)
        post(engine.url, CHAT, b"{", TRACED)
        engine.runner.failures.append(RuntimeError("broken"))
        post(engine.url, CHAT, chat(), TRACED)
        long, junk, broken = spans()
    assert [event.name for event in long.events] == ["received", "done"]
    assert attributes(long)["error.type"] == "context_length_exceeded"
    assert attributes(junk)["aie.outcome"] == "rejected"
    assert (attributes(broken)["aie.outcome"], broken.status.code) == ("error", broken.status.STATUS_CODE_ERROR)
    assert [event.name for event in broken.events] == ["received", "tokenised", "queued", "prefill", "done"]


def test_a_hit_of_the_cache_is_a_span_that_says_so(collector: Collector) -> None:
    with traced_engine(collector, response_cache_bytes=10_000) as (engine, spans):
        for _ in range(2):
            post(engine.url, CHAT, chat(temperature=0), TRACED)
        computed, hit = spans()
    assert [event.name for event in hit.events] == ["received", "tokenised", "done"]
    assert "aie.response_cache.hit" not in attributes(computed)
    assert attributes(hit) == attributes(computed) | {"aie.response_cache.hit": True}
    assert attributes(hit)["gen_ai.usage.output_tokens"] > 0
    assert attributes(hit)["aie.outcome"] == "ok"


@pytest.mark.parametrize(("rate", "headers", "count"), [(0.0, {}, 0), (1.0, {}, 3), (1.0, UNTRACED, 0), (0.0, TRACED, 3)])
def test_who_decides_whether_there_is_a_span(collector: Collector, rate: float, headers: dict[str, str], count: int) -> None:
    with traced_engine(collector, rate) as (engine, spans):
        for _ in range(3):
            assert post(engine.url, TEXT, text(), headers).status == 200
        assert len(spans()) == count


def test_the_rate_is_its_own() -> None:
    asked = []

    class Inner:
        def begin(self, headers: object, operation: object, *, sampled: bool) -> Trace | None:
            asked.append(sampled)
            return None

    draws = iter([0.0, 0.24, 0.25, 0.9])
    tracer = RateTracer(Inner(), 0.25, lambda: next(draws))
    for sampled in (False, True, False, True):
        tracer.begin(None, None, sampled=sampled)
    assert asked == [True, True, False, False]


def test_without_the_package_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"--otlp-endpoint needs OpenTelemetry: pip install .*\[otel\]"):
        otlp_tracing(EngineConfig(model="fake", otlp_endpoint="http://c"))


@pytest.mark.model
def test_the_command_line(collector: Collector) -> None:
    with engine_process("--otlp-endpoint", collector.url, "--trace-rate", "0", "--name", "chat-1", "--kv-tokens", "256") as engine:
        url = engine.wait_until_ready()
        assert post(url, TEXT, text("The capital of France is", model="smollm2", temperature=0), TRACED).status == 200
        assert post(url, TEXT, text("x", model="smollm2")).status == 200  # not traced
        engine.stop(15)  # what is still in the batch leaves at the end
    (span,) = collector.spans
    assert [event.name for event in span.events] == STAGES
    assert span.trace_id.hex() == TRACE_ID


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several batches each would take its own time."""
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "50")
    listener = socket.create_server(("127.0.0.1", 0))  # it accepts nothing, and its queue takes the connections
    try:
        config = EngineConfig(
            model="fake", name="chat-1", otlp_endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}", trace_rate=1.0
        )
        provider = otlp_tracing(config).provider
        tracer = provider.get_tracer("test")
        for _ in range(2000):
            tracer.start_span("s").end()
        began = time.monotonic()
        shut_down(provider)
        assert time.monotonic() - began < 20 * LAST_BATCHES_S, "far from the 200 s that forty batches may take"
    finally:
        _take_all(listener)


def _take_all(listener: socket.socket) -> None:
    """Answers what waits there, so that no thread is left that complains of it during later tests."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer(listener.getsockname(), Taking, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        for last in [thread for thread in threading.enumerate() if thread.name == "last spans"]:
            last.join(60)
            assert not last.is_alive()
        server.shutdown()
        serving.join()
