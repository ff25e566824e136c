"""The agent and a collector: a real one that decodes protobuf, over HTTP and gRPC, and ones that are unwell in each way."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc

from aie_agent.agent import Agent
from aie_agent.commands.check_otlp import otlp_rows
from aie_agent.config import OtlpSection, parse
from aie_agent.config_values import Duration, HttpUrl
from aie_agent.outputs.otlp import push
from aie_agent.outputs.otlp.build import build, build_or_say_why
from aie_agent.outputs.otlp.push import CLOSE_TIMEOUT_S
from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.store import Store
from aie_telemetry.catalogue import Kind
from aie_telemetry.exemplars import Exemplar
from tests.fakes.collector import (
    TRICKLES,
    Answer,
    MetricsCollector,
    endless,
    garbage,
    points_of,
    redirecting,
    refusing,
    silent,
    taking_all_but,
    wait_until,
    web_page,
    well,
)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TIMEOUT = "OTEL_EXPORTER_OTLP_TIMEOUT"
PATIENT_S, QUICK_S = 60, 2
"""How long a push may take: where each is answered, however slow the host is; and where one ends only by that."""


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own settings counts."""
    monkeypatch.setenv(TIMEOUT, str(PATIENT_S))
    for name in (ENDPOINT, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector() -> Iterator[MetricsCollector]:
    served = MetricsCollector()
    yield served
    served.close()


def _store(value: float = 1.0, time_s: float = 100.0) -> Store:
    store = Store(max_series=1000, retention_s=300.0)
    store.apply(Batch("host", time_s, [Point("aie_host_load1", Kind.GAUGE, (), value)]))
    return store


class _Pushing:
    """An output whose clock is turned by hand."""

    def __init__(self, url: str) -> None:
        self.output = build(OtlpSection(endpoint=HttpUrl(url), interval=Duration(10.0)), "host")
        self.store = _store()
        self._now_s = 100.0
        self._tick()

    def _tick(self) -> None:
        self.output.tick(self.store.everything, self._now_s)

    def push(self) -> None:
        """Lets the interval pass."""
        self._now_s += 10.0
        self.store.apply(Batch("host", self._now_s, [Point("aie_host_load1", Kind.GAUGE, (), self._now_s)]))
        self._tick()

    def gets_through(self) -> bool:
        """Whether one did, however many take too long on a host that pauses."""
        self.push()
        return self.exports("ok") >= 1

    def count(self, name: str, result: str) -> float:
        """One of its own counters."""
        return next(value for metric, labels, value in self.output.counts() if (metric, labels) == (name, (result,)))

    def exports(self, result: str) -> float:
        """Pushes that ended so."""
        return self.count("aie_agent_otlp_exports_total", result)


@pytest.fixture
def pushing(request: pytest.FixtureRequest, collector: MetricsCollector, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Pushing]:
    """Patient; by its parameter less so."""
    monkeypatch.setenv(TIMEOUT, str(getattr(request, "param", PATIENT_S)))
    made = _Pushing(collector.url)
    yield made
    made.output.close()


def test_what_the_store_holds_arrives(pushing: _Pushing, collector: MetricsCollector) -> None:
    pushing.push()
    request = collector.wait(1)
    assert [point.as_double for point in points_of(request)["aie.host.load1"]] == [110.0]
    assert collector.paths == ["/v1/metrics"]
    resource = {each.key: each.value.string_value for each in request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["host.name"]) == ("aie-agent", "host")
    wait_until(lambda: pushing.exports("ok") == 1)
    assert pushing.count("aie_agent_otlp_points_total", "ok") == 1


def test_standard_variables_say_where_and_as_whom(collector: MetricsCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=inference")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,rack=7")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "2000")
    output = build(OtlpSection(), "host")
    try:
        store = _store()
        for now_s in (100.0, 101.0, 103.0):
            output.tick(store.everything, now_s)
        request = collector.wait(1)
    finally:
        output.close()
    headers = {name.lower(): value for name, value in collector.headers[0].items()}
    assert (headers["x-team"], headers["content-encoding"]) == ("inference", "gzip")
    resource = {each.key: each.value.string_value for each in request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["rack"]) == ("mine", "7")


UNWELL: dict[str, tuple[int, Answer]] = {
    "refused": (PATIENT_S, refusing(400)),
    "unavailable": (QUICK_S, refusing(503)),
    "garbage": (QUICK_S, garbage),
    "redirection": (PATIENT_S, redirecting),
    "web page": (PATIENT_S, web_page),
    **{name: (QUICK_S, answer) for name, answer in TRICKLES.items()},
}


@pytest.mark.parametrize(("pushing", "answer"), UNWELL.values(), ids=UNWELL, indirect=["pushing"])
def test_what_does_not_get_through_is_counted_and_the_next_push_works(
    pushing: _Pushing, collector: MetricsCollector, answer: Answer
) -> None:
    collector.answer = answer
    pushing.push()
    wait_until(lambda: pushing.exports("failed") == 1)
    assert pushing.count("aie_agent_otlp_points_total", "failed") == 1
    collector.answer = well
    wait_until(pushing.gets_through)


def test_points_that_a_collector_refuses_are_not_counted_as_sent(pushing: _Pushing, collector: MetricsCollector) -> None:
    collector.answer = taking_all_but(1, "too old")
    pushing.push()
    wait_until(lambda: pushing.exports("ok") == 1)
    assert pushing.count("aie_agent_otlp_points_total", "refused") == 1
    assert pushing.count("aie_agent_otlp_points_total", "ok") == 0


def test_an_exemplar_arrives_with_its_trace_once(pushing: _Pushing, collector: MetricsCollector) -> None:
    """After a push that failed it is told again; after one that got there no more."""
    exemplar = Exemplar(0.75, 109.5, "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    labels = (("engine", "e"), ("model", "m"))
    observed = HistogramPoint("aie_engine_queue_seconds", labels, (1.0,), (1.0, 0.0), 0.75, exemplars=((0, exemplar),))
    pushing.store.apply(Batch("scrape:e", 110.0, [], [observed]))
    collector.answer = refusing(400)
    pushing.push()
    wait_until(lambda: pushing.exports("failed") == 1)
    collector.answer = well
    for number in (1, 2):
        pushing.store.apply(Batch("scrape:e", 110.0 + 10.0 * number, [], [observed]))
        pushing.push()
        wait_until(lambda number=number: pushing.exports("ok") == number)
    points = [points_of(request)["aie.engine.queue"][0] for request in collector.requests]
    told = [
        [(each.trace_id.hex(), each.span_id.hex(), each.as_double, each.time_unix_nano) for each in p.exemplars] for p in points
    ]
    assert told == [[(exemplar.trace_id, exemplar.span_id, 0.75, 109_500_000_000)]] * 2 + [[]]


@pytest.mark.parametrize("count", [1e30, -1.0])
def test_a_point_that_cannot_be_said_takes_no_other_along(pushing: _Pushing, collector: MetricsCollector, count: float) -> None:
    name = "aie_engine_queue_seconds"
    poisoned = HistogramPoint(name, (("engine", "e"), ("model", "m")), (1.0,), (count, 0.0), 1.0)
    pushing.store.apply(Batch("scrape:e", 110.0, [], [poisoned]))
    pushing.push()
    points = points_of(collector.wait(1))
    assert "aie.engine.queue" not in points
    assert points["aie.host.load1"]
    wait_until(lambda: pushing.exports("ok") == 1)
    assert pushing.count("aie_agent_otlp_points_total", "invalid") == 1


def test_nobody_there_and_then_somebody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT, str(QUICK_S))
    first = MetricsCollector()
    first.close()
    pushing = _Pushing(first.url)
    try:
        pushing.push()
        wait_until(lambda: pushing.exports("failed") == 1)
        second = MetricsCollector(first.port)
        try:
            wait_until(pushing.gets_through)
            second.wait(1)
        finally:
            second.close()
    finally:
        pushing.output.close()


def test_a_collector_that_is_silent_holds_up_nobody(pushing: _Pushing, collector: MetricsCollector) -> None:
    release = threading.Event()
    collector.answer = silent(release)
    pushing.push()
    collector.wait(1)
    began_s = time.thread_time()
    for _ in range(100):
        pushing.push()
    assert time.thread_time() - began_s < 1.0, "a tick only hands over"
    # One push is under way; those that came meanwhile are not kept.
    assert pushing.count("aie_agent_otlp_points_total", "skipped") + pushing.count("aie_agent_otlp_points_total", "failed") >= 90
    release.set()


def test_an_answer_without_an_end_is_not_kept(pushing: _Pushing, collector: MetricsCollector) -> None:
    collector.answer = endless
    tracemalloc.start()
    try:
        pushing.push()
        wait_until(lambda: pushing.exports("ok") + pushing.exports("failed") == 1)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    came: queue.Queue[metrics_service_pb2.ExportMetricsServiceRequest] = queue.Queue()

    class Service(metrics_service_pb2_grpc.MetricsServiceServicer):  # type: ignore[misc]
        def Export(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            came.put(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{port}")
    output = build(OtlpSection(), "host")
    try:
        store = _store()
        for now_s in (100.0, 102.0):
            output.tick(store.everything, now_s)
        assert points_of(came.get(timeout=60))["aie.host.load1"][0].as_double == 1.0
    finally:
        output.close()
        server.stop(0).wait()


async def test_a_real_agent_pushes_what_its_page_shows(collector: MetricsCollector, tmp_path: Path) -> None:
    config = parse(
        {
            "api": {"listen": "127.0.0.1:0"},
            "statsd": {"unix": str(tmp_path / "s"), "udp": "off"},
            "bpf": {"enabled": False},
            "discovery": {"enabled": False},
            "otlp": {"endpoint": collector.url, "interval": "1s"},
        },
        "test",
    )
    stop = asyncio.Event()
    running = asyncio.create_task(Agent(config).run(stop, lambda port: None))
    request = await asyncio.to_thread(collector.wait, 3)
    stop.set()
    await running
    points = points_of(request)
    modes = {each.value.string_value for point in points["system.cpu.time"] for each in point.attributes}
    assert {"user", "system", "idle"} <= modes
    assert points["system.memory.limit"][0].as_double > 0
    assert any(each.value.string_value == "ok" for point in points["aie.agent.otlp_exports"] for each in point.attributes)


async def test_a_real_agent_pushes_when_it_ends(collector: MetricsCollector, tmp_path: Path) -> None:
    """Of an hour's interval the first push comes within a second or two; the next is that of the end."""
    config = parse(
        {
            "api": {"listen": "127.0.0.1:0"},
            "statsd": {"unix": str(tmp_path / "s"), "udp": "off"},
            "bpf": {"enabled": False},
            "discovery": {"enabled": False},
            "otlp": {"endpoint": collector.url, "interval": "1h"},
        },
        "test",
    )
    stop = asyncio.Event()
    running = asyncio.create_task(Agent(config).run(stop, lambda port: None))
    await asyncio.to_thread(collector.wait, 1)
    stop.set()
    await running
    assert len(collector.requests) == 2
    assert points_of(collector.requests[1])["system.memory.limit"][0].as_double > 0


def test_without_the_packages_it_is_one_line(
    collector: MetricsCollector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.url)
    for module in ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.proto.http.metric_exporter"):
        monkeypatch.setitem(sys.modules, module, None)
    (row,) = otlp_rows(OtlpSection())
    assert not row.visible
    assert "pip install '.[otel]' in a checkout" in row.found
    output = build_or_say_why(OtlpSection(interval=Duration(30.0)), "host")
    (said,) = [record for record in caplog.records if record.name.startswith("aie_agent")]
    assert "needs a package" in said.getMessage()
    assert said.exc_info is None
    for now_s in range(100, 162):
        output.tick(tuple, float(now_s))
    output.close()
    assert set(output.counts()) == {
        ("aie_agent_otlp_exports_total", ("ok",), 0.0),
        ("aie_agent_otlp_exports_total", ("failed",), 3.0),  # those due at 100, 130 and 160 s
        ("aie_agent_otlp_interval_seconds", (), 30.0),
    }


def test_what_came_since_the_last_push_is_pushed_at_the_end(pushing: _Pushing, collector: MetricsCollector) -> None:
    pushing.push()
    collector.wait(1)
    pushing.store.apply(Batch("host", 115.0, [Point("aie_host_load1", Kind.GAUGE, (), 7.0)]))
    pushing.output.tick_last(pushing.store.everything, 115.0)
    pushing.output.close()
    assert [points_of(each)["aie.host.load1"][0].as_double for each in collector.requests] == [110.0, 7.0]
    assert pushing.exports("ok") == 2


def test_the_last_push_waits_for_what_is_under_way(pushing: _Pushing, collector: MetricsCollector) -> None:
    release = threading.Event()
    collector.answer = silent(release)
    pushing.push()
    collector.wait(1)
    pushing.output.tick_last(pushing.store.everything, 115.0)
    release.set()
    pushing.output.close()
    assert len(collector.requests) == 2


@pytest.mark.parametrize("answer", ["silent", "trickling", "unavailable", "nobody"])
def test_a_collector_that_is_unwell_holds_up_the_end_for_a_moment_at_most(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter would try for ten minutes."""
    monkeypatch.setenv(TIMEOUT, "600")
    monkeypatch.setattr(push, "CLOSE_TIMEOUT_S", 0.3)
    release = threading.Event()
    served = MetricsCollector()
    served.answer = {"silent": silent(release), "trickling": TRICKLES["head"], "unavailable": refusing(503)}.get(answer, well)
    if answer == "nobody":
        served.close()
    pushing = _Pushing(served.url)
    try:
        pushing.output.tick_last(pushing.store.everything, 100.0)
        began_s = time.monotonic()
        pushing.output.close()
        assert time.monotonic() - began_s < 60.0
        assert pushing.exports("ok") == 0
    finally:
        release.set()
        if answer != "nobody":
            served.close()


def test_the_end_leaves_room_in_what_a_supervisor_gives() -> None:
    """systemd 90 s, a pod 30, Docker 10."""
    assert CLOSE_TIMEOUT_S <= 5.0


def test_check_says_whether_a_collector_takes_what_is_pushed(collector: MetricsCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = otlp_rows(OtlpSection(endpoint=HttpUrl(collector.url)))
    assert (row.visible, row.needed) == (True, True)
    monkeypatch.setenv(TIMEOUT, str(QUICK_S))
    closed = MetricsCollector()
    closed.close()
    (row,) = otlp_rows(OtlpSection(endpoint=HttpUrl(closed.url)))
    assert not row.visible
    assert row.found
    collector.answer = web_page
    (row,) = otlp_rows(OtlpSection(endpoint=HttpUrl(collector.url)))
    assert not row.visible
    assert "text/html" in row.found
    assert list(otlp_rows(OtlpSection())) == []
