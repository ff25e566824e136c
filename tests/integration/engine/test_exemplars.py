"""The trace behind a latency: on the OpenMetrics page, as prometheus_client's parser and a real Prometheus read it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.fake_engine import FakeEngine, fake_engine
from http_client import CHAT, chat, post
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

from aie_engine.config import EngineConfig
from aie_engine.exemplars import Exemplars
from aie_engine.tracing import request_tracer
from aie_telemetry.exemplars import OPENMETRICS_CONTENT_TYPE, wants_openmetrics
from demo.monitoring import Job, prometheus

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
LATENCIES = {
    "aie_engine_queue_seconds",
    "aie_engine_time_to_first_token_seconds",
    "aie_engine_time_per_output_token_seconds",
    "aie_engine_request_duration_seconds",
}


@contextmanager
def _traced(**sdk: object) -> Iterator[tuple[FakeEngine, InMemorySpanExporter]]:
    spans = InMemorySpanExporter()
    provider = TracerProvider(**sdk)  # type: ignore[arg-type]
    provider.add_span_processor(SimpleSpanProcessor(spans))
    exemplars = Exemplars()
    tracer = request_tracer(EngineConfig(model="fake", name="chat-1", trace_rate=1.0), provider, exemplars.note)
    with fake_engine(tracer=tracer, exemplars=exemplars) as engine:
        yield engine, spans


def _page(engine: FakeEngine, accept: str | None = None) -> tuple[str, str]:
    request = urllib.request.Request(f"{engine.url}/metrics", headers={} if accept is None else {"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_each_latency_leads_to_the_span_of_a_request_that_took_so_long() -> None:
    with _traced() as (engine, spans):
        for _ in range(3):
            post(engine.url, CHAT, chat(max_tokens=5))
        engine.settle()
        kind, page = _page(engine, OPENMETRICS)
    assert kind == OPENMETRICS_CONTENT_TYPE
    durations = {f"{each.context.trace_id:032x}": (each.end_time - each.start_time) / 1e9 for each in spans.get_finished_spans()}
    found = {sample.name: sample.exemplar for family in openmetrics(page) for sample in family.samples if sample.exemplar}
    assert set(found) == {f"{name}_bucket" for name in LATENCIES}
    assert {exemplar.labels["trace_id"] for exemplar in found.values()} <= set(durations)
    longest = found["aie_engine_request_duration_seconds_bucket"]
    assert longest.value == pytest.approx(durations[longest.labels["trace_id"]], abs=1e-6)
    assert abs(float(longest.timestamp) - time.time()) < 60


def test_the_classic_page_has_none_and_the_same_numbers() -> None:
    with _traced() as (engine, _):
        post(engine.url, CHAT, chat(max_tokens=5))
        engine.settle()
        with_exemplars, without = _page(engine, OPENMETRICS)[1], _page(engine)[1]
    assert " # {" not in without

    def samples(families: object) -> dict[object, float]:
        timed = ("aie_engine_event_loop_lag", "aie_engine_gc_pause")  # they go on
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families  # type: ignore[attr-defined]
            for sample in family.samples
            if not sample.name.startswith(timed)
        }

    assert samples(openmetrics(with_exemplars)) == samples(classic(without))


def test_what_the_sampler_leaves_out_is_no_exemplar() -> None:
    with _traced(sampler=ALWAYS_OFF) as (engine, spans):
        post(engine.url, CHAT, chat(max_tokens=5))
        engine.settle()
        page = _page(engine, OPENMETRICS)[1]
    assert not spans.get_finished_spans()
    assert " # {" not in page


def test_a_real_prometheus_has_the_trace(tmp_path: Path, promtool: str) -> None:
    with _traced() as (engine, spans):
        post(engine.url, CHAT, chat(max_tokens=5))
        engine.settle()
        traces = {f"{each.context.trace_id:032x}" for each in spans.get_finished_spans()}
        with prometheus(tmp_path, [Job("engines", (engine.url.removeprefix("http://"),))], interval_s=0.5) as server:
            until = time.monotonic() + 60
            data: list[dict[str, object]] = []
            while not data:
                assert time.monotonic() < until, "no exemplar came"
                time.sleep(0.2)
                now = time.time()
                query = "aie_engine_time_to_first_token_seconds_bucket"
                data = server.get("/api/v1/query_exemplars", query=query, start=str(now - 300), end=str(now + 60))["data"]
    (series,) = data
    assert {each["labels"]["trace_id"] for each in series["exemplars"]} == traces  # type: ignore[index, attr-defined]


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text; version=1.0.0; q=0.8, text/plain", True),
        ("text/plain;q=0.1,Application/OpenMetrics-Text", True),
        ("application/openmetrics-text;q=0", False),
    ],
)
def test_who_gets_openmetrics(accept: str | None, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted
