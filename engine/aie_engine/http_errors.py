"""Errors in OpenAI's JSON form: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from aie_engine.request import Outcome
from aie_engine.sse import SlowReaderError

QUEUE_FULL: Final = "queue_full"
"""The code of what is refused for want of a place."""


class ApiError(Exception):
    """A request that does not get what it asked for: the status and OpenAI's four fields, and how the ledger counts it."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        outcome: Outcome = Outcome.REJECTED,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.outcome = outcome
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON of the answer."""
        return error_json(self.status, self.message, code=self.code, param=self.param)

    def response(self) -> web.Response:
        """The whole answer."""
        return web.Response(status=self.status, body=self.body(), headers=self.headers, content_type="application/json")


def error_json(status: int, message: str, *, code: str | None = None, param: str | None = None) -> bytes:
    """OpenAI's error object for an HTTP status, encoded."""
    fields: dict[str, Any] = {"message": message, "type": _error_type(status), "param": param, "code": code}
    return msgspec.json.encode({"error": fields})


def _error_type(status: int) -> str:
    types = {HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error", HTTPStatus.GATEWAY_TIMEOUT: "timeout_error"}
    return types.get(HTTPStatus(status), "server_error" if status >= 500 else "invalid_request_error")


def outcome_of(error: BaseException) -> Outcome:
    """How the ledger counts a request that ended with `error`."""
    if isinstance(error, ApiError):
        return error.outcome
    if isinstance(error, web.HTTPException):  # aiohttp's own refusal: the body is too large
        return Outcome.REJECTED
    left = isinstance(error, asyncio.CancelledError | ConnectionError | SlowReaderError)
    return Outcome.CANCELLED if left else Outcome.ERROR


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong; `param` names the part."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, code=code, param=param)


def model_not_found(name: str, served: str) -> ApiError:
    """404: this engine serves another model."""
    message = f"The model `{name:.100}` does not exist; this engine serves `{served}`."
    return ApiError(HTTPStatus.NOT_FOUND, message, code="model_not_found", param="model")


def queue_full(limit: int, retry_after_s: int) -> ApiError:
    """429: as many requests run and wait as may be in the engine."""
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"{limit} requests run and wait already, which is the limit. Retry in {retry_after_s} s.",
        code=QUEUE_FULL,
        headers={"Retry-After": str(retry_after_s)},
    )


def deadline_passed(deadline_s: float) -> ApiError:
    """504: the answer was not complete in time."""
    message = f"The answer was not complete {deadline_s:g} s after the request arrived."
    return ApiError(HTTPStatus.GATEWAY_TIMEOUT, message, code="deadline_exceeded", outcome=Outcome.TIMEOUT)


def body_too_slow(timeout_s: float) -> ApiError:
    """408: the client did not send what it announced. Its connection is useless: the rest would be read as a next request."""
    message = f"The request's body was not complete {timeout_s:g} s after its headers."
    return ApiError(HTTPStatus.REQUEST_TIMEOUT, message, code="body_timeout", headers={"Connection": "close"})


def engine_failed(detail: str) -> ApiError:
    """500: the model loop could not compute."""
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, detail, code="engine_error", outcome=Outcome.ERROR)


def unavailable(message: str, code: str) -> ApiError:
    """503: not now (loading, shutting down)."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, code=code, headers={"Retry-After": "5"})
