"""The agent's HTTP server over real sockets: pages, API, event stream, bad requests."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from functools import partial

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aie_agent.config_values import Address
from aie_agent.outputs import http
from aie_agent.outputs.http import HttpServer, ListenError
from aie_agent.outputs.prometheus import PrometheusPage
from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.store import Store
from aie_telemetry import api
from aie_telemetry.catalogue import CATALOGUE, Kind

NOW_S = 1000.0
OOM = api.Event(time_s=990.0, kind="oom", engine="e", summary="out of memory", details={"asked_bytes": 2e9})
ENGINE = (("engine", "e"), ("model", 'a "quoted" \\ name\nwith a newline'))


def snapshot(time_s: float = NOW_S) -> api.Snapshot:
    return api.Snapshot(
        version=api.VERSION,
        time_s=time_s,
        window_s=60.0,
        agent=api.Agent(version="test", uptime_s=1.0, series=3, series_limit=100),
        host=api.Host(hostname="host", kernel="kernel"),
    )


def filled_store() -> Store:
    store = Store(max_series=1000, retention_s=300)
    bounds = CATALOGUE["aie_engine_queue_seconds"].buckets
    store.apply(
        Batch(
            "statsd",
            NOW_S,
            [
                Point("aie_engine_requests_running", Kind.GAUGE, ENGINE, 3.0),
                Point("aie_engine_requests_total", Kind.COUNTER, (*ENGINE, ("outcome", "ok")), 7.0),
                Point("foreign_metric", Kind.GAUGE, (("k", "v"),), 1.5),
            ],
            [HistogramPoint("aie_engine_queue_seconds", ENGINE, bounds, (1.0, *[0.0] * 16, 2.0), 9.5)],
        )
    )
    return store


class Running:
    """A server that listens, with its base URL and a client."""

    def __init__(self, server: HttpServer, port: int, client: aiohttp.ClientSession) -> None:
        self.server = server
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = client

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self.client.get(self.url + path) as answer:
            return answer.status, await answer.read()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    store = filled_store()
    page = PrometheusPage(store)
    server = HttpServer(store, lambda: page.render(NOW_S), lambda: (OOM,))
    port = await server.start(Address("127.0.0.1:0"))
    async with aiohttp.ClientSession() as client:
        yield Running(server, port, client)
    await server.close()


async def test_before_the_first_collection(running: Running) -> None:
    assert await running.get("/healthz") == (200, b"ok\n")
    for path in ("/readyz", "/api/v1/snapshot", "/api/v1/findings", "/api/v1/events"):
        status, body = await running.get(path)
        assert status == 503
        assert "no collection" in msgspec.json.decode(body, type=api.Error).error


async def test_snapshot_and_findings(running: Running) -> None:
    await running.server.publish(snapshot)
    assert (await running.get("/readyz"))[0] == 200
    status, body = await running.get("/api/v1/snapshot")
    assert status == 200
    assert msgspec.json.decode(body, type=api.Snapshot) == snapshot()
    _, body = await running.get("/api/v1/findings")
    assert msgspec.json.decode(body, type=api.Findings).findings == ()


async def test_a_snapshot_is_built_once_and_only_when_somebody_asks(running: Running) -> None:
    built: list[float] = []

    def build(time_s: float) -> api.Snapshot:
        built.append(time_s)
        return snapshot(time_s)

    for time_s in (1.0, 2.0):
        await running.server.publish(partial(build, time_s))
    assert (await running.get("/readyz"))[0] == 200
    assert (await running.get("/metrics"))[0] == 200
    assert built == []
    for path in ("/api/v1/snapshot", "/api/v1/findings", "/api/v1/events", "/api/v1/snapshot"):
        assert (await running.get(path))[0] == 200
    assert built == [2.0]


async def test_a_snapshot_that_cannot_be_built_is_an_error_of_who_asks(running: Running) -> None:
    async def asked() -> int:
        return (await running.get("/api/v1/snapshot"))[0]

    await running.server.publish(lambda: snapshot(1 / 0))
    assert await asked() == 500
    await running.server.publish(snapshot)
    assert await asked() == 200


async def test_all_events_that_are_kept(running: Running) -> None:
    await running.server.publish(snapshot)
    status, body = await running.get("/api/v1/events")
    assert status == 200
    assert msgspec.json.decode(body, type=api.Events) == api.Events(version=api.VERSION, time_s=NOW_S, events=(OOM,))


async def test_page_is_read_alike_by_prometheus_client(running: Running) -> None:
    _, body = await running.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    running_now = families["aie_engine_requests_running"].samples[0]
    assert running_now.labels == dict(ENGINE)
    assert running_now.value == 3.0
    queue = {(s.name, s.labels.get("le")): s.value for s in families["aie_engine_queue_seconds"].samples}
    assert queue["aie_engine_queue_seconds_bucket", "0.001"] == 1.0
    assert queue["aie_engine_queue_seconds_bucket", "+Inf"] == 3.0
    assert queue["aie_engine_queue_seconds_count", None] == 3.0
    assert families["foreign_metric"].samples[0].value == 1.5


async def test_page_passes_promtool(running: Running, promtool: str) -> None:
    _, body = await running.get("/metrics")
    checked = await asyncio.to_thread(subprocess.run, [promtool, "check", "metrics"], input=body, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_series(running: Running) -> None:
    _, body = await running.get("/api/v1/series?name=aie_engine_requests_running&engine=e")
    page = msgspec.json.decode(body, type=api.SeriesPage)
    assert [series.points for series in page.series] == [((NOW_S, 3.0),)]
    _, body = await running.get("/api/v1/series")
    assert {series.name for series in msgspec.json.decode(body, type=api.SeriesPage).series} == set(filled_store().names())
    status, body = await running.get("/api/v1/series?name=nothing&engine=e")
    assert status == 404
    assert "nothing" in msgspec.json.decode(body, type=api.Error).error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("POST", "/metrics", 405), ("GET", "/api/v2/snapshot", 404)],
)
async def test_errors_have_the_form_of_the_api(running: Running, method: str, path: str, status: int) -> None:
    async with running.client.request(method, running.url + path) as answer:
        assert answer.status == status
        assert msgspec.json.decode(await answer.read(), type=api.Error).error
    assert any(code == status for _, code in running.server.requests)


async def test_garbage_on_the_socket_leaves_the_server_alive(running: Running) -> None:
    for garbage in (b"\x00\xff" * 2000, b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(garbage)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
    assert (await running.get("/healthz"))[0] == 200


async def test_stream_sends_each_snapshot(running: Running) -> None:
    await running.server.publish(lambda: snapshot(1.0))
    async with running.client.get(running.url + "/api/v1/stream") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for time_s in (1.0, 2.0, 3.0):
            if time_s > 1.0:
                await running.server.publish(partial(snapshot, time_s))
            assert await answer.content.readline() == b"event: snapshot\n"
            data = await answer.content.readline()
            assert msgspec.json.decode(data.removeprefix(b"data: "), type=api.Snapshot).time_s == time_s
            assert await answer.content.readline() == b"\n"


async def until(condition: Callable[[], bool]) -> None:
    """Waits until `condition()` is true; the test's own time limit ends it otherwise."""
    while not condition():  # noqa: ASYNC110 (what is waited for happens in the server, which signals nothing)
        await asyncio.sleep(0.01)


async def test_streams_end_with_their_reader_and_with_the_server(running: Running) -> None:
    await running.server.publish(snapshot)
    async with running.client.get(running.url + "/api/v1/stream") as answer:
        await answer.content.readline()
        assert running.server.streams == 1
    await until(lambda: running.server.streams == 0)
    async with running.client.get(running.url + "/api/v1/stream") as answer:
        await answer.content.readline()
        await running.server.close()
        await asyncio.wait_for(answer.content.read(), 60)


async def test_too_many_streams_are_refused(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_STREAMS", 1)
    await running.server.publish(snapshot)
    async with running.client.get(running.url + "/api/v1/stream") as first:
        await first.content.readline()
        status, _ = await running.get("/api/v1/stream")
        assert status == 503


async def test_a_reader_that_takes_nothing_is_dropped(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SEND_TIMEOUT_S", 0.05)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", running.port))
    client.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
    await until(lambda: running.server.streams == 1)
    big = msgspec.structs.replace(snapshot(), host=api.Host(hostname="x" * 1_000_000, kernel="k"))
    count = 0
    while running.server.streams:
        count += 1
        await running.server.publish(partial(msgspec.structs.replace, big, time_s=float(count)))
        await asyncio.sleep(0.01)
    client.close()


async def test_a_port_in_use_is_one_clear_line(running: Running) -> None:
    other = HttpServer(filled_store(), lambda: "")
    with pytest.raises(ListenError, match="port is in use") as caught:
        await other.start(Address(f"127.0.0.1:{running.port}"))
    assert "\n" not in str(caught.value)
