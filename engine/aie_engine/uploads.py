"""Request bodies on their way in. They hold no place in the queue: what they may take is memory and time, and both are bounded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiohttp import web


class OverloadError(Exception):
    """Newer bodies needed the memory that this one, which has been arriving the longest, held."""


@dataclass(slots=True, eq=False)
class _Upload:
    limit: asyncio.Timeout
    body: bytearray = field(default_factory=bytearray)
    gave_way: bool = False


class Uploads:
    """Reads many bodies at once; used on the event loop's thread alone.

    While they arrive they hold at most `total_bytes` together. Where that is not enough the oldest gives way: so slow clients,
    however many and however slow, keep nobody out whose body comes at once.
    """

    def __init__(self, body_bytes: int, total_bytes: int) -> None:
        """`body_bytes` is the longest body. Raises ValueError where even one such body would not fit."""
        if total_bytes < body_bytes:
            raise ValueError(f"{total_bytes} bytes for bodies of up to {body_bytes}")
        self._body_bytes = body_bytes
        self._total_bytes = total_bytes
        self._held_bytes = 0
        self._arriving: dict[_Upload, None] = {}  # in order of arrival

    @property
    def arriving(self) -> int:
        """Bodies that are not yet complete."""
        return len(self._arriving)

    async def read(self, http: web.Request, until: float) -> bytes:
        """The whole body. Raises TimeoutError at `until`, in the event loop's time, and OverloadError.

        Besides what aiohttp raises: HTTPRequestEntityTooLarge, RequestPayloadError, ConnectionError.
        """
        upload = _Upload(asyncio.timeout_at(until))
        self._arriving[upload] = None
        try:
            async with upload.limit:
                while chunk := await http.content.readany():
                    self._take(upload, chunk)
            return bytes(upload.body)
        except TimeoutError:
            if upload.gave_way:
                raise OverloadError from None
            raise
        finally:
            self._forget(upload)

    def _take(self, upload: _Upload, chunk: bytes) -> None:
        if upload.gave_way:  # this chunk was on its way before the timeout could strike
            raise TimeoutError
        if len(upload.body) + len(chunk) > self._body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._body_bytes)
        upload.body += chunk
        self._held_bytes += len(chunk)
        while self._held_bytes > self._total_bytes:
            self._end_oldest_but(upload)

    def _end_oldest_but(self, spared: _Upload) -> None:
        oldest = next(upload for upload in self._arriving if upload is not spared)
        self._forget(oldest)
        oldest.gave_way = True
        oldest.body.clear()
        oldest.limit.reschedule(asyncio.get_running_loop().time())

    def _forget(self, upload: _Upload) -> None:
        if upload in self._arriving:
            del self._arriving[upload]
            self._held_bytes -= len(upload.body)
