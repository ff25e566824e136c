"""The HTTP application: routes, health, metrics, and every error in OpenAI's form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from aie_engine.client_errors import quiet_client_errors
from aie_engine.completions import chat_completions, completions
from aie_engine.degrade import DegradeWatch
from aie_engine.http_errors import ApiError, error_json, model_not_found
from aie_engine.pauses import watch_lag, watched_collector
from aie_engine.serving import SERVING, Serving
from aie_engine.sse import SlowReaderError
from aie_telemetry.exemplars import OPENMETRICS_CONTENT_TYPE, wants_openmetrics
from aie_telemetry.exposition import CONTENT_TYPE

_log = logging.getLogger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(serving: Serving) -> web.Application:
    """The application; `serving` decides what it can answer at any moment."""
    quiet_client_errors()
    app = web.Application(middlewares=[_errors_as_json], client_max_size=serving.config.max_body_bytes)
    app[SERVING] = serving
    app.cleanup_ctx.append(_watch_pauses)
    app.cleanup_ctx.append(_watch_degrade_file)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", _models),
            web.get("/v1/models/{name}", _model),
            web.get("/health", _health),
            web.get("/health/ready", _ready),
            web.get("/metrics", _metrics),
        ]
    )
    return app


async def _watch_pauses(app: web.Application) -> AsyncIterator[None]:
    """As long as the application is up: what makes everybody wait, to the metrics."""
    metrics = app[SERVING].metrics
    with watched_collector(metrics.gc_pause):
        lag = asyncio.create_task(watch_lag(metrics.event_loop_lag))
        try:
            yield
        finally:
            lag.cancel()


async def _watch_degrade_file(app: web.Application) -> AsyncIterator[None]:
    """As long as the application is up, where there is such a file."""
    serving = app[SERVING]
    path = serving.config.degrade_file
    watch = None if path is None else asyncio.create_task(DegradeWatch(path, serving.config.name, serving.degrade).run())
    try:
        yield
    finally:
        if watch is not None:
            watch.cancel()


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        return _http_error(request, error)
    except (ConnectionError, SlowReaderError):
        # Nobody is there to read an answer; aiohttp drops it and closes the connection.
        return web.Response(status=HTTPStatus.REQUEST_TIMEOUT)
    except Exception:  # noqa: BLE001 - a bug of ours: the client gets an answer, the log the traceback
        _log.exception("%s %s failed", request.method, request.path)
        body = error_json(HTTPStatus.INTERNAL_SERVER_ERROR, "The server failed; its log says why.", code="internal_error")
        return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=body, content_type="application/json")


def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's own errors (unknown route, wrong method, large body) in our form; headers such as Allow stay."""
    messages = {
        HTTPStatus.NOT_FOUND: f"There is no {request.method} {request.path:.200}.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.path:.200} does not take {request.method}.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: f"The body exceeds {request.app[SERVING].config.max_body_bytes} bytes.",
    }
    headers = {name: value for name, value in error.headers.items() if name not in ("Content-Type", "Content-Length")}
    body = error_json(error.status, messages.get(HTTPStatus(error.status), error.reason))
    return web.Response(status=error.status, body=body, headers=headers, content_type="application/json")


def _json(payload: Any, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(payload), content_type="application/json")


def _description(serving: Serving) -> dict[str, Any]:
    model = serving.model()
    return {"id": model.name, "object": "model", "created": model.created_wall_s, "owned_by": "aie"}


async def _models(request: web.Request) -> web.Response:
    return _json({"object": "list", "data": [_description(request.app[SERVING])]})


async def _model(request: web.Request) -> web.Response:
    description = _description(request.app[SERVING])
    name = request.match_info["name"]
    if name != description["id"]:
        raise model_not_found(name, description["id"])
    return _json(description)


async def _health(request: web.Request) -> web.Response:
    """Liveness: the process answers. Whether it can serve is what readiness says. Answers that are not to be trusted are no reason
    to kill it."""
    causes = request.app[SERVING].degraded.causes
    return _json({"status": "degraded", "causes": causes} if causes else {"status": "ok"})


async def _ready(request: web.Request) -> web.Response:
    reason = request.app[SERVING].not_ready()
    if reason is None:
        return _json({"status": "ready"})
    return _json({"status": "not ready", "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)


async def _metrics(request: web.Request) -> web.Response:
    openmetrics = wants_openmetrics(request.headers.get("Accept"))
    page = request.app[SERVING].metrics.page(openmetrics=openmetrics)
    kind = OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE
    return web.Response(body=page.encode(), headers={"Content-Type": kind, "Vary": "Accept"})
