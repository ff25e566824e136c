"""From a request's span to Prometheus, by the agent: Prometheus scrapes agents, so what an engine shows must pass through one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer
from fakes.fake_engine import FakeEngine, fake_engine
from http_client import CHAT, chat, post
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aie_agent.sources.scrape import ScrapeSource
from aie_engine.config import EngineConfig
from aie_engine.exemplars import Exemplars
from aie_engine.tracing import request_tracer
from aie_telemetry.exemplars import OPENMETRICS_CONTENT_TYPE, wants_openmetrics
from aie_telemetry.exposition import CONTENT_TYPE
from aie_telemetry.instruments import Registry
from demo.monitoring import Job, prometheus
from tests.e2e.programs import Start, start

__all__ = ["start"]

LATENCIES = {
    "aie_engine_queue_seconds",
    "aie_engine_time_to_first_token_seconds",
    "aie_engine_time_per_output_token_seconds",
    "aie_engine_request_duration_seconds",
}
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
