"""The agent's HTTP server: the Prometheus page, health, and the API with its event stream."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec
from aiohttp import web

import aie_alerts
from aie_agent.config_values import Address
from aie_agent.samples import Count
from aie_agent.series import HistogramSeries
from aie_agent.store import AnySeries, Store
from aie_telemetry import api
from aie_telemetry.exemplars import OPENMETRICS_CONTENT_TYPE, wants_openmetrics
from aie_telemetry.exposition import CONTENT_TYPE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)

MAX_STREAMS: Final = 32
MAX_SERIES_WITH_POINTS: Final = 500
SEND_TIMEOUT_S: Final = 5.0
"""A reader of the event stream that takes no event for so long is disconnected: nothing may pile up for it."""


class ListenError(Exception):
    """The HTTP server cannot listen where it should: one line that says why."""


class _Published:
    """One tick's snapshot, built and encoded when it is first asked for."""

    def __init__(self, build: Callable[[], api.Snapshot]) -> None:
        self._build = build

    @functools.cached_property
    def snapshot(self) -> api.Snapshot:
        """As it was at the first look."""
        return self._build()

    @functools.cached_property
    def encoded(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self.snapshot)


class HttpServer:
    """Serves what the agent's once-a-second tick found. `publish` makes a new snapshot the one of the API and of all streams; it is
    built and encoded when the first of them asks, so that nobody's costs nothing.

    `more_pages` are other pages of metrics, by path; `stacks` are those that were taken last of an engine. `render_openmetrics` is
    the page for those who ask for OpenMetrics.
    """

    def __init__(
        self,
        store: Store,
        render_page: Callable[[], str],
        events: Callable[[], tuple[api.Event, ...]] = tuple,
        more_pages: Mapping[str, Callable[[], str]] | None = None,
        stacks: Callable[[str], api.StacksPage | None] = lambda engine: None,
        render_openmetrics: Callable[[], str] | None = None,
    ) -> None:
        self._store = store
        self._kept_events = events
        self._kept_stacks = stacks
        self._pages = {"/metrics": render_page, **(more_pages or {})}
        self._openmetrics = {"/metrics": render_openmetrics} if render_openmetrics is not None else {}
        self._runbooks = aie_alerts.pages()
        self._published: _Published | None = None
        self._changed = asyncio.Condition()
        self._closing = False
        self._runner: web.AppRunner | None = None
        self.streams = 0
        self.requests: Counter[tuple[str, int]] = Counter()

    async def start(self, listen: Address) -> int:
        """Listens, and returns the port. Raises ListenError."""
        app = web.Application(middlewares=[self._count_and_explain], client_max_size=1024)
        app.add_routes(
            [
                web.get("/", self._index),
                *(web.get(path, self._metrics) for path in self._pages),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/api/v1/snapshot", self._get_snapshot),
                web.get("/api/v1/stream", self._stream),
                web.get("/api/v1/series", self._series),
                web.get("/api/v1/findings", self._findings),
                web.get("/api/v1/events", self._events),
                web.get("/api/v1/stacks", self._stacks),
                web.get("/runbooks/{name}", self._runbook),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, handler_cancellation=True, keepalive_timeout=15.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, listen.host, listen.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            in_use = error.errno == errno.EADDRINUSE
            reason = "the port is in use (another aie-agent?): set api.listen or --listen" if in_use else error.strerror
            raise ListenError(f"cannot listen on {listen}: {reason}") from error
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """Ends all streams and stops listening."""
        self._closing = True
        async with self._changed:
            self._changed.notify_all()
        if self._runner is not None:
            await self._runner.cleanup()

    def counts(self) -> Iterable[Count]:
        """For the agent's own metrics."""
        yield "aie_agent_http_streams", (), float(self.streams)
        for (path, code), count in self.requests.items():
            yield "aie_agent_http_requests_total", (path, str(code)), float(count)

    async def publish(self, build: Callable[[], api.Snapshot]) -> None:
        """Makes what `build` gives the current snapshot. It is called once at most, and never after the next was published."""
        self._published = _Published(build)
        async with self._changed:
            self._changed.notify_all()

    @web.middleware
    async def _count_and_explain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts every request, and gives every error the API's form."""
        known = request.match_info.route.resource
        path = known.canonical if known is not None else "other"
        try:
            response = await handler(request)
        except web.HTTPException as error:
            self.requests[path, error.status] += 1
            response = _error(error.status, error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except Exception as error:
            log.exception("%s failed", request.path)
            self.requests[path, 500] += 1
            return _error(500, f"internal error: {type(error).__name__}")
        self.requests[path, response.status] += 1
        return response

    async def _index(self, request: web.Request) -> web.Response:
        routes = sorted({resource.canonical for resource in request.app.router.resources()})
        return web.Response(text="aie-agent\n\n" + "\n".join(routes) + "\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        openmetrics = self._openmetrics.get(request.path) if wants_openmetrics(request.headers.get("Accept")) else None
        kind = CONTENT_TYPE if openmetrics is None else OPENMETRICS_CONTENT_TYPE
        page = (openmetrics or self._pages[request.path])()
        response = web.Response(body=page.encode(), headers={"Content-Type": kind, "Vary": "Accept, Accept-Encoding"})
        response.enable_compression()
        return response

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._published is None:
            return _error(503, "no collection has ended yet")
        return web.Response(text="ok\n")

    async def _get_snapshot(self, _: web.Request) -> web.Response:
        if self._published is None:
            return _error(503, "no collection has ended yet")
        return web.Response(body=self._published.encoded, content_type="application/json")

    async def _findings(self, _: web.Request) -> web.Response:
        if self._published is None:
            return _error(503, "no collection has ended yet")
        snapshot = self._published.snapshot
        return _json(api.Findings(version=api.VERSION, time_s=snapshot.time_s, findings=snapshot.findings))

    async def _events(self, _: web.Request) -> web.Response:
        if self._published is None:
            return _error(503, "no collection has ended yet")
        time_s = self._published.snapshot.time_s
        return _json(api.Events(version=api.VERSION, time_s=time_s, events=self._kept_events()))

    async def _stacks(self, request: web.Request) -> web.Response:
        engine = request.query.get("engine")
        if engine is None:
            return _error(400, "say of which engine: ?engine=NAME")
        page = self._kept_stacks(engine)
        if page is None:
            return _error(404, f"no stacks were taken of engine {engine!r}: `aie-agent stacks --engine` takes some now")
        return _json(page)

    async def _runbook(self, request: web.Request) -> web.Response:
        """The page of an alert or a cause. The table of pages knows every name, so that none is a path."""
        name = request.match_info["name"].removesuffix(".md")
        path = self._runbooks.get(name)
        if path is None:
            return _error(404, f"no runbook {name!r}: there is one for each alert and for each cause of a finding")
        return web.Response(text=await asyncio.to_thread(aie_alerts.page_text, path), content_type="text/markdown")

    async def _series(self, request: web.Request) -> web.Response:
        name = request.query.get("name")
        engine = request.query.get("engine")
        time_s = self._published.snapshot.time_s if self._published else 0.0
        names = self._store.names() if name is None else [name]
        found = [
            series for each in names for series in self._store.all(each) if engine is None or ("engine", engine) in series.tags
        ]
        if name is not None and not found:
            return _error(404, f"no series {name!r}" + (f" of engine {engine!r}" if engine else ""))
        if name is not None and len(found) > MAX_SERIES_WITH_POINTS:
            return _error(413, f"{name!r} has {len(found)} series, more than {MAX_SERIES_WITH_POINTS}: name an engine")
        series = tuple(_as_series(each, with_points=name is not None) for each in found)
        return _json(api.SeriesPage(version=api.VERSION, time_s=time_s, series=series))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self.streams >= MAX_STREAMS:
            return _error(503, f"{MAX_STREAMS} streams are open already")
        self.streams += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
            await response.prepare(request)
            sent: _Published | None = None
            while not self._closing:
                if self._published is not None and self._published is not sent:
                    sent = self._published
                    event = b"event: snapshot\ndata: " + sent.encoded + b"\n\n"
                    await asyncio.wait_for(response.write(event), SEND_TIMEOUT_S)
                async with self._changed:
                    # Looked at under the lock: a snapshot published during the write must not be waited past.
                    if self._published is sent and not self._closing:
                        await self._changed.wait()
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.streams -= 1
        return response


def _as_series(series: AnySeries, *, with_points: bool) -> api.Series:
    points: list[tuple[float, float]] = []
    if with_points and isinstance(series, HistogramSeries):
        points = [(time_s, sum(counts)) for time_s, counts in series.since(0.0) if counts is not None]
    elif with_points and not isinstance(series, HistogramSeries):
        points = [(time_s, value) for time_s, value in series.ring.since(0.0) if value == value]
    return api.Series(name=series.name, kind=str(series.kind), labels=dict(series.tags), points=tuple(points))


def _json(body: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return _json(api.Error(error=text), status)
