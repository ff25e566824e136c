"""Server-sent events out of chunks of bytes, bounded. As WHATWG defines them, for what an agent sends: event and data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Event(NamedTuple):
    kind: str
    data: bytes


class TooLargeError(Exception):
    """More bytes in one event than the limit."""


class EventParser:
    """`feed` takes chunks as they come and yields whole events. Holds at most `limit` bytes and one chunk."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._pending = 0
        self._data: list[bytes] = []
        self._size = 0
        self._kind = ""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            event = self._take(b"".join((*self._rest, end)).removesuffix(b"\r"))
            self._rest, self._pending = [], 0
            if event is not None:
                yield event
        self._rest.append(rest)  # joined once, when its end has come: a long line comes in many chunks
        self._pending += len(rest)
        self._check(self._pending)

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._finish()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
            self._check(0)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        return None

    def _finish(self) -> Event | None:
        event = Event(self._kind or "message", b"\n".join(self._data)) if self._data else None
        self._data, self._size, self._kind = [], 0, ""
        return event

    def _check(self, pending: int) -> None:
        if self._size + pending > self._limit:
            raise TooLargeError
