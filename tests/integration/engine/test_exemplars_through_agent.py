"""From a request's span to Prometheus, by the agent: Prometheus scrapes agents, so what an engine shows must pass through one."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer
from fakes.collector import MetricsCollector, points_of
from fakes.fake_engine import FakeEngine, fake_engine
from http_client import CHAT, chat, post
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from aie_agent.sources.scrape import ScrapeSource
from aie_engine.config import EngineConfig
from aie_engine.exemplars import Exemplars
from aie_engine.tracing import otlp_tracing, request_tracer
from aie_telemetry.exemplars import OPENMETRICS_CONTENT_TYPE, wants_openmetrics
from aie_telemetry.exposition import CONTENT_TYPE
from aie_telemetry.instruments import Registry
from demo.monitoring import Job, prometheus
from tests.e2e.programs import Start, eventually, start

__all__ = ["start"]

LATENCIES = {
    "aie_engine_queue_seconds",
    "aie_engine_time_to_first_token_seconds",
    "aie_engine_time_per_output_token_seconds",
    "aie_engine_request_duration_seconds",
}
CALLER = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
"""The trace and the span of who asks."""
Ids = tuple[str, str]
FOREIGN = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name='m'} 1\n".replace("'", '"')


@contextmanager
def traced() -> Iterator[tuple[FakeEngine, set[str]]]:
    """An engine that served a few requests, and the ids of their traces."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    exemplars = Exemplars()
    tracer = request_tracer(EngineConfig(model="fake", name="chat-1", trace_rate=1.0), provider, exemplars.note)
    with fake_engine(tracer=tracer, exemplars=exemplars) as engine:
        for _ in range(3):
            post(engine.url, CHAT, chat(max_tokens=5))
        engine.settle()
        yield engine, {f"{each.context.trace_id:032x}" for each in spans.get_finished_spans()}


async def test_they_come_once_a_page_said_whose_it_is() -> None:
    with traced() as (engine, traces):
        source = ScrapeSource("chat", f"{engine.url}/metrics", timeout_s=60.0)
        first, second = await source.collect(1.0), await source.collect(2.0)
        await source.close()
    assert {each.exemplars for each in first.histograms} == {()}
    found = {each.name: {exemplar.trace_id for _, exemplar in each.exemplars} for each in second.histograms if each.exemplars}
    assert found.keys() == LATENCIES
    assert set().union(*found.values()) <= traces
    # All else is as on the classic page, in which counters are called otherwise, and nothing is wrong with it.
    assert {point[:3] for point in first.points} == {point[:3] for point in second.points}
    assert not source.refused
    assert source.lint == []


async def test_other_engines_are_asked_for_the_classic_page_for_ever() -> None:
    """Their counters go by other names in OpenMetrics. When ours takes such an engine's place, its second page has them."""
    asked: list[bool] = []
    ours = Registry()
    ours.value("aie_engine_requests_running", "e", "m").add(1)
    pages = iter([FOREIGN, FOREIGN, None, None, FOREIGN, FOREIGN])

    async def handler(request: web.Request) -> web.Response:
        openmetrics = wants_openmetrics(request.headers["Accept"])
        asked.append(openmetrics)
        text = next(pages) or ours.render(openmetrics=openmetrics)
        return web.Response(body=text.encode(), headers={"Content-Type": OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", handler)
    async with TestServer(app) as server:
        source = ScrapeSource("chat", str(server.make_url("/metrics")), timeout_s=60.0)
        kinds = []
        for now_s in range(6):
            await source.collect(float(now_s))
            kinds.append(source.kind)
        await source.close()
    assert kinds == ["vllm", "vllm", "aie", "aie", "vllm", "vllm"]
    assert asked == [False, False, False, True, True, False]


def test_a_real_prometheus_has_the_trace(start: Start, tmp_path: Path, promtool: str) -> None:
    with traced() as (engine, traces):
        config = tmp_path / "agent.toml"
        config.write_text('[statsd]\nunix = "off"\nudp = "off"\n')
        options = ("--config", str(config), "--listen=127.0.0.1:0", "--no-discovery", "--no-bpf")
        agent = start("aie-agent", "run", *options, "--engine", f"chat={engine.url}/metrics")
        job = Job("aie", (agent.url().removeprefix("http://"),))
        with prometheus(tmp_path / "prometheus", [job], interval_s=0.5) as server:
            until = time.monotonic() + 60
            data: list[dict[str, object]] = []
            while not data:
                assert time.monotonic() < until, agent.text()
                time.sleep(0.2)
                now = time.time()
                query = "aie_engine_time_to_first_token_seconds_bucket"
                data = server.get("/api/v1/query_exemplars", query=query, start=str(now - 300), end=str(now + 60))["data"]
            (counted,) = server.query("aie_engine_requests_received_total")
    found = {each["labels"]["trace_id"] for series in data for each in series["exemplars"]}  # type: ignore[attr-defined]
    assert found
    assert found <= traces
    assert all(series["seriesLabels"]["engine"] == "chat" for series in data)  # type: ignore[index]
    assert counted["value"][1] == "3"


def _exemplars_of_page(url: str) -> set[Ids]:
    """Trace and span of each exemplar of a page, as OpenMetrics."""
    request = urllib.request.Request(f"{url}/metrics", headers={"Accept": OPENMETRICS_CONTENT_TYPE})
    with urllib.request.urlopen(request, timeout=30) as answer:
        page = answer.read().decode()
    found = [each.exemplar.labels for family in openmetrics(page) for each in family.samples if each.exemplar]
    return {(labels["trace_id"], labels["span_id"]) for labels in found}


def _exemplars_of_push(collector: MetricsCollector) -> set[Ids]:
    """The same of all points that were pushed so far."""
    points = [point for request in list(collector.requests) for each in points_of(request).values() for point in each]
    return {(each.trace_id.hex(), each.span_id.hex()) for point in points for each in getattr(point, "exemplars", ())}


def _spans(collector: MetricsCollector) -> dict[Ids, str]:
    """Of each span that arrived its ids, and its parent's."""
    scopes = [scope for request in list(collector.requests) for each in request.resource_spans for scope in each.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    return {(span.trace_id.hex(), span.span_id.hex()): span.parent_span_id.hex() for span in spans}


def test_one_request_is_one_trace_on_every_way_to_the_collector(start: Start, tmp_path: Path) -> None:
    """Its caller's: a span from the engine, behind the engine's latencies and the agent's, and in what the agent pushes."""
    exemplars, spans, metrics = Exemplars(), MetricsCollector(kind=ExportTraceServiceRequest), MetricsCollector()
    config = EngineConfig(model="fake", name="chat-1", trace_rate=1.0, otlp_endpoint=spans.url)
    tracing = otlp_tracing(config)
    try:
        with fake_engine(tracer=request_tracer(config, tracing.provider, exemplars.note), exemplars=exemplars) as engine:
            (tmp_path / "agent.toml").write_text(
                f'[statsd]\nunix = "off"\nudp = "off"\n[otlp]\nendpoint = "{metrics.url}"\ninterval = "1s"\n'
            )
            options = ("--config", str(tmp_path / "agent.toml"), "--listen=127.0.0.1:0", "--no-discovery", "--no-bpf")
            agent = start("aie-agent", "run", *options, "--engine", f"chat={engine.url}/metrics")
            post(engine.url, CHAT, chat(max_tokens=5), headers={"traceparent": f"00-{CALLER[0]}-{CALLER[1]}-01"})
            engine.settle()
            assert tracing.provider.force_flush()
            sent = _spans(spans)
            of_engine = _exemplars_of_page(engine.url)
            of_agent = eventually(lambda: _exemplars_of_page(agent.url()), alive=agent)
            pushed = eventually(lambda: _exemplars_of_push(metrics), alive=agent)
    finally:
        tracing.provider.shutdown()
        spans.close()
        metrics.close()
    ((ids, parent),) = sent.items()
    assert (ids[0], parent) == CALLER
    assert of_engine == of_agent == pushed == {ids}
