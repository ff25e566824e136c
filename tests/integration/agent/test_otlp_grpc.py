"""The agent pushes by gRPC to a real server of it: one that takes all, one that takes a part, and ones that are unwell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

from aie_agent.config import OtlpSection
from aie_agent.config_values import Duration, HttpUrl
from aie_agent.outputs.otlp.build import build
from aie_agent.samples import Batch, Point
from aie_agent.store import Store
from aie_telemetry.catalogue import Kind
from tests.fakes.collector import wait_until

METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
PATIENT_S, QUICK_S = 60, 2
"""How long a push may take: where each is answered, however slow the host is; and where one ends only by that."""
NAMES = ("aie_host_load1", "aie_host_memory_total_bytes", "aie_host_memory_available_bytes")

Answering = Callable[[grpc.ServicerContext], bytes]


class Server(grpc.GenericRpcHandler):
    """Answers with bytes, which need not be OTLP."""

    def __init__(self) -> None:
        self.answering: Answering = well
        self.over = threading.Event()
        self.calls = 0
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """gRPC's question: who answers this."""
        if handler_call_details.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._export, request_deserializer=ExportMetricsServiceRequest.FromString, response_serializer=bytes
        )

    def _export(self, _request: ExportMetricsServiceRequest, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        return self.answering(context)

    def silent(self, _context: grpc.ServicerContext) -> bytes:
        """Says nothing until the test is over."""
        self.over.wait()
        return b""

    def close(self) -> None:
        """Ends it."""
        self.over.set()
        self._server.stop(0).wait()
        self._pool.shutdown()


def well(_context: grpc.ServicerContext) -> bytes:
    """Takes all."""
    return ExportMetricsServiceResponse().SerializeToString()


def partial(_context: grpc.ServicerContext) -> bytes:
    """Takes all but two."""
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 2
    answer.partial_success.error_message = "too old"
    return answer.SerializeToString()


def warning(_context: grpc.ServicerContext) -> bytes:
    """Takes all, and has something to say."""
    answer = ExportMetricsServiceResponse()
    answer.partial_success.error_message = "soon full"
    return answer.SerializeToString()


def garbage(_context: grpc.ServicerContext) -> bytes:
    """Answers what is no protobuf."""
    return b"\xff\xff\xff\xff"


def unavailable(context: grpc.ServicerContext) -> bytes:
    """Cannot, now."""
    context.abort(grpc.StatusCode.UNAVAILABLE, "full")


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Pushing:
    """An output whose clock is turned by hand, and which has three points to push."""

    def __init__(self, port: int) -> None:
        self.output = build(
            OtlpSection(endpoint=HttpUrl(f"http://127.0.0.1:{port}"), protocol="grpc", interval=Duration(10.0)), "h"
        )
        self._store = Store(max_series=10, retention_s=300.0)
        self._now_s = 100.0
        self.output.tick(self._store.everything, self._now_s)

    def push(self) -> None:
        """Lets the interval pass. Takes no time, whatever the collector does."""
        self._now_s += 10.0
        self._store.apply(Batch("host", self._now_s, [Point(name, Kind.GAUGE, (), 1.0) for name in NAMES]))
        self.output.tick(self._store.everything, self._now_s)

    def counted(self, name: str) -> dict[str, float]:
        """One of its own metrics by result, without those that are 0."""
        return {labels[0]: value for metric, labels, value in self.output.counts() if metric == name and labels and value}

    def exports(self) -> dict[str, float]:
        """Pushes that have ended, by how."""
        return self.counted("aie_agent_otlp_exports_total")

    def points(self) -> dict[str, float]:
        """Their points."""
        return self.counted("aie_agent_otlp_points_total")


@pytest.fixture
def pushing(request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pushing]:
    """Patient; by its parameter less so."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(getattr(request, "param", PATIENT_S)))
    made = Pushing(server.port)
    yield made
    made.output.close()


def test_points_that_a_collector_refuses_are_not_counted_as_sent(server: Server, pushing: Pushing) -> None:
    server.answering = partial
    pushing.push()
    wait_until(lambda: pushing.exports() == {"ok": 1})
    assert pushing.points() == {"refused": 2, "ok": 1}
    server.answering = warning
    pushing.push()
    wait_until(lambda: pushing.exports() == {"ok": 2})
    assert pushing.points() == {"refused": 2, "ok": 4}


UNWELL: dict[str, tuple[int, Answering | None]] = {
    "unavailable": (QUICK_S, unavailable),
    "garbage": (PATIENT_S, garbage),
    "silent": (QUICK_S, None),
}


@pytest.mark.parametrize(("pushing", "answering"), UNWELL.values(), ids=UNWELL, indirect=["pushing"])
def test_what_does_not_get_through_is_counted_and_refusals_are_seen_after_it(
    server: Server, pushing: Pushing, answering: Answering | None
) -> None:
    """The exporter makes itself another channel after UNAVAILABLE: what answers say is read on that, too."""
    server.answering = answering or server.silent
    pushing.push()
    wait_until(lambda: pushing.exports() == {"failed": 1})
    assert server.calls >= 1
    assert pushing.points() == {"failed": 3}
    server.answering = partial
    pushing.push()
    wait_until(lambda: pushing.exports() == {"failed": 1, "ok": 1})
    assert pushing.points() == {"failed": 3, "refused": 2, "ok": 1}


def test_a_silent_collector_holds_up_nothing_and_piles_up_nothing(server: Server, pushing: Pushing) -> None:
    server.answering = server.silent
    pushing.push()
    wait_until(lambda: server.calls == 1)
    pushing.push()
    pushing.push()
    assert pushing.points() == {"skipped": 6}
    server.over.set()


def test_the_end_does_not_wait_for_a_silent_collector(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    server.answering = server.silent
    pushing = Pushing(server.port)
    pushing.push()
    wait_until(lambda: server.calls == 1)
    began_s = time.monotonic()
    pushing.output.close()
    assert time.monotonic() - began_s < 30
    assert pushing.exports() in ({}, {"failed": 1})
