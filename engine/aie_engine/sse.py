"""Server-sent events to one client, with a limit on how long it may leave them unread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web

DONE = b"data: [DONE]\n\n"


class SlowReaderError(Exception):
    """The client took nothing for too long."""


class SseResponse:
    """A streamed answer. The headers leave with the first event, so what fails before can still be a proper error."""

    def __init__(self, request: web.Request, write_timeout_s: float, headers: Mapping[str, str]) -> None:
        """`headers` are sent beside those that every stream has."""
        self._request = request
        self._headers = headers
        self._write_timeout_s = write_timeout_s
        self._response: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        """Whether the headers have left; from then on an error can only be an event."""
        return self._response is not None

    async def send(self, data: bytes) -> None:
        """Sends complete events. Waits while the client's buffer is full: what it does not read is not piled up here.

        Raises SlowReaderError after `write_timeout_s` without room, ConnectionError when the client is gone.
        """
        try:
            async with asyncio.timeout(self._write_timeout_s):
                if self._response is None:
                    self._response = await self._begin()
                await self._response.write(data)
        except TimeoutError:
            # Closing politely would wait for the same reader.
            if self._request.transport is not None:
                self._request.transport.abort()
            raise SlowReaderError(f"nothing was read for {self._write_timeout_s:g} s") from None

    async def end(self) -> web.StreamResponse:
        """Ends the stream with OpenAI's mark."""
        await self.send(DONE)
        if self._response is None:
            raise RuntimeError("the response has not begun")
        await self._response.write_eof()
        return self._response

    async def _begin(self) -> web.StreamResponse:
        # X-Accel-Buffering: nginx would otherwise collect the tokens and pass them on together.
        response = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **self._headers})
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(self._request)
        return response


def event(payload: msgspec.Struct) -> bytes:
    """One event that carries `payload` as JSON."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def error_event(body: bytes) -> bytes:
    """One event that carries an error's JSON."""
    return b"data: " + body + b"\n\n"
