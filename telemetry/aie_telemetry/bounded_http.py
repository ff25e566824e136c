"""A session of `requests` for OpenTelemetry's exporters that ends when it should, and takes for delivered what was delivered.

An exporter's timeout is one of each read: whatever listens where a collector should be may send a byte now and then, or for ever,
and be read on and kept. Here a request and its answer have one deadline, at which the connection is cut, and of the answer so many
bytes are read. And where the SDK takes 200 to 399 for success, a redirection and a web page are none.
"""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

if TYPE_CHECKING:
    import requests

MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_REQUEST_S: Final = 10.0
_CHUNK_BYTES: Final = 4096
_OTLP_TYPES: Final = ("application/x-protobuf", "application/json")


class Cutter:
    """Cuts the connections of a session, whatever they wait for: reads that are under way end with an error."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def note(self, connected: socket.socket | None) -> None:
        """A connection was made."""
        if connected is not None:
            self._sockets.add(connected)

    def cut(self) -> None:
        """Ends all of them. May be called from any thread."""
        for each in list(self._sockets):
            with suppress(OSError):  # it is closed already
                # Not the method of a TLS socket, which would take its state away from who reads.
                socket.socket.shutdown(each, socket.SHUT_RDWR)


class _Deadline(threading.Timer):
    """Cuts when it passes, unless it is cancelled before."""

    def __init__(self, within_s: float, cutter: Cutter) -> None:
        super().__init__(within_s, self._pass)
        self.daemon = True
        self.passed = False
        self._cutter = cutter
        self.start()

    def _pass(self) -> None:
        self.passed = True
        self._cutter.cut()


def bounded_session(
    inspect: Callable[[requests.Response], None] | None = None,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
    max_s: float = MAX_REQUEST_S,
) -> requests.Session:
    """A session whose requests end within `max_s`, or their own timeout where that is shorter, and answers after `max_bytes`.

    `inspect` sees each answer that says success, and may raise what `requests` raises where it is none. Needs urllib3 2.
    """
    import requests
    from requests.adapters import HTTPAdapter

    cutter = Cutter()

    class BoundedAdapter(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self.poolmanager.pool_classes_by_scheme = _pools(cutter)

        def send(self, request: Any, *arguments: Any, **options: Any) -> requests.Response:
            request.headers["Accept-Encoding"] = "identity"
            within_s = _shortest_s(options.get("timeout"), max_s)
            deadline = _Deadline(within_s, cutter)
            try:
                response = super().send(request, *arguments, **{**options, "stream": True})
                body = _read(response.raw, max_bytes)
            finally:
                deadline.cancel()
            if deadline.passed:  # a head or a body that was cut off can look whole
                raise requests.exceptions.ReadTimeout(f"no whole answer within {within_s:.3g} s")
            response.raw = io.BytesIO(body)
            _must_be_otlp(response)
            if inspect is not None and response.status_code == requests.codes.ok:
                inspect(response)
            return response

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, BoundedAdapter())
    return session


def _pools(cutter: Cutter) -> dict[str, Any]:
    """urllib3's pools, of connections that tell the cutter of their sockets."""
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection

    class Http(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            cutter.note(self.sock)

    class Https(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            cutter.note(self.sock)

    http = type("HttpPool", (HTTPConnectionPool,), {"ConnectionCls": Http})
    https = type("HttpsPool", (HTTPSConnectionPool,), {"ConnectionCls": Https})
    return {"http": http, "https": https}


def _shortest_s(timeout: Any, most_s: float) -> float:
    """Of a timeout as `requests` takes it: a number, a pair of them, or None."""
    parts = timeout if isinstance(timeout, tuple) else (timeout,)
    return min([most_s, *(part for part in parts if isinstance(part, int | float))])


def _read(raw: Any, max_bytes: int) -> bytes:
    """What came, at most so much, undecoded; a connection that was not read to its end is not used again."""
    from requests.exceptions import ConnectionError as Broken
    from urllib3.exceptions import HTTPError

    parts: list[bytes] = []
    size = 0
    try:
        while size < max_bytes:
            part = raw.read1(_CHUNK_BYTES, decode_content=False)
            if not part:
                raw.release_conn()
                return b"".join(parts)
            parts.append(part)
            size += len(part)
    except HTTPError as error:
        raw.close()
        raise Broken(f"the answer broke off: {error}") from error
    raw.close()
    return b"".join(parts)[:max_bytes]


def _must_be_otlp(response: requests.Response) -> None:
    """Raises what the SDK does not try again: what is wrong stays wrong until somebody mends it."""
    from requests.exceptions import InvalidSchema, TooManyRedirects

    if 300 <= response.status_code < 400:
        where = response.headers.get("Location", "elsewhere")[:200]
        raise TooManyRedirects(f"status {response.status_code}: it redirects to {where!r}: set the endpoint to what is meant")
    kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if response.status_code < 300 and response.content and kind not in ("", *_OTLP_TYPES):
        raise InvalidSchema(f"it answers {kind[:80]!r}, not OTLP: is this a collector's address?")
