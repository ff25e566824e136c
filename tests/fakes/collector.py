"""An OTLP collector that decodes what it gets by OpenTelemetry's own protobuf classes, and that can be in each way unwell."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

Answer = Callable[[BaseHTTPRequestHandler], None]


class MetricsCollector:
    """Listens on a port of its own. `answer` may be changed while it runs. `kind` is what it takes requests for; the answers to
    spans are written as those to metrics are."""

    def __init__(self, port: int = 0, kind: type[Any] = ExportMetricsServiceRequest) -> None:
        self._kind = kind
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answer: Answer = well
        self.came = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def wait(self, number: int, timeout_s: float = 60.0) -> Any:
        """The last of so many requests, once they came."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.requests) >= number, timeout_s), f"{len(self.requests)} requests came"
            return self.requests[number - 1]

    def close(self) -> None:
        """Listens no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = collector._kind.FromString(body)
                with collector.came:
                    collector.requests.append(request)
                    collector.headers.append(dict(self.headers.items()))
                    collector.paths.append(self.path)
                    collector.came.notify_all()
                try:
                    collector.answer(self)
                except OSError:
                    self.close_connection = True  # the other side has had enough

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        return Handler


def well(handler: BaseHTTPRequestHandler) -> None:
    """Takes everything."""
    _send(handler, 200, ExportMetricsServiceResponse().SerializeToString())


def refusing(status: int) -> Answer:
    """Takes nothing."""
    return lambda handler: _send(handler, status, b"no")


def garbage(handler: BaseHTTPRequestHandler) -> None:
    """What is no HTTP at all."""
    handler.wfile.write(b"\xff\x00\x1b[2J" * 1000)
    handler.close_connection = True


def endless(handler: BaseHTTPRequestHandler) -> None:
    """An answer that does not end, as fast as it is taken."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/x-protobuf")
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


def redirecting(handler: BaseHTTPRequestHandler) -> None:
    """Somewhere else, as a proxy does that wants TLS."""
    handler.send_response(307)
    handler.send_header("Location", "https://elsewhere/v1/metrics")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def web_page(handler: BaseHTTPRequestHandler) -> None:
    """Anybody's home page."""
    body = b"<html>welcome</html>"
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def taking_all_but(points: int, reason: str) -> Answer:
    """Takes the request, and refuses some of its points."""
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = points
    answer.partial_success.error_message = reason
    return lambda handler: _send(handler, 200, answer.SerializeToString())


def trickling(begin: bytes, forever: bytes) -> Answer:
    """Bytes now and then, each in time for whoever waits for the next."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(begin)
        while True:
            handler.wfile.write(forever)
            handler.wfile.flush()
            time.sleep(0.05)

    return answer


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
TRICKLES: dict[str, Answer] = {
    "status line": trickling(b"HTTP/1.1 200 ", b"O"),
    "head": trickling(HEAD + b"X-More: ", b"x"),
    "continue": trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": trickling(HEAD + b"Content-Length: 60000\r\n\r\n", b"x"),
    "chunk size": trickling(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailer": trickling(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
}
"""Where an answer can be slow for ever."""


def silent(release: threading.Event) -> Answer:
    """No answer, until it is let go."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        release.wait(60.0)
        well(handler)

    return answer


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/x-protobuf")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def points_of(request: ExportMetricsServiceRequest) -> dict[str, list[Any]]:
    """The data points of a request, by the metric's name."""
    found: dict[str, list[Any]] = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found.setdefault(metric.name, []).extend(getattr(metric, metric.WhichOneof("data")).data_points)
    return found


def attributes_of(point: Any) -> dict[str, str]:
    """A point's attributes."""
    return {each.key: each.value.string_value for each in point.attributes}


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Looks every 20 ms. Fails when it does not come true."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.02)
