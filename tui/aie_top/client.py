"""Talks to one agent over HTTP: a snapshot, or the stream of them. Every failure is an `AwayError` with a reason in plain words."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from aie_top.decode import clean
from aie_top.sse import EventParser, TooLargeError
from aie_top.targets import Target

# The agent sends once a second; after this long without a whole event the connection is taken for dead, whatever TCP says.
SILENCE_S: Final = 5.0
ONCE_S: Final = 20.0
"""For one snapshot of which there is no next: on a host in trouble the agent waits for a CPU like all others."""
CONNECT_S: Final = 3.0
# A snapshot of 64 engines with full histories takes about 0.5 MB.
BODY_LIMIT: Final = 8 << 20

_STATUS_REASONS: Final[dict[int, str]] = {
    401: "it wants a user and a password (401): put them in the URL, as http://USER:PASSWORD@HOST",
    403: "it refuses this user (403)",
    404: "there is no such page (404): is it an aie-agent?",
}


class AwayError(Exception):
    """The agent gives nothing at the moment; the message says why."""


def open_session(silence_s: float = SILENCE_S) -> aiohttp.ClientSession:
    """To be made inside the event loop that uses it. `silence_s` is how long nothing may come."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
    # Compressed bodies are not asked for and not unpacked: a few bytes could become gigabytes.
    headers = {"Accept-Encoding": "identity", "User-Agent": "aie-top"}
    connector = aiohttp.TCPConnector(resolver=_Resolver(), limit=0)
    return aiohttp.ClientSession(timeout=timeout, headers=headers, connector=connector, auto_decompress=False)


async def read_snapshot(session: aiohttp.ClientSession, target: Target, timeout_s: float = ONCE_S) -> bytes:
    """The body of one snapshot, at most `BODY_LIMIT` bytes. Raises AwayError."""
    try:
        async with asyncio.timeout(timeout_s), _get(session, target, "/api/v1/snapshot") as response:
            _check_status(response)
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > BODY_LIMIT:
                    raise TooLargeError
            return bytes(body)
    except _FAILURES as error:
        raise AwayError(explain(error, timeout_s)) from error


async def follow(
    session: aiohttp.ClientSession, target: Target, on_snapshot: Callable[[bytes], None], silence_s: float = SILENCE_S
) -> None:
    """Calls `on_snapshot` with the bytes of each one until the connection ends, which is always an AwayError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(silence_s) as patience, _get(session, target, "/api/v1/stream") as response:
            _check_status(response)
            if response.content_type != "text/event-stream":
                raise AwayError(f"it answers with {clean(response.content_type)[:40]} instead of events: is it an aie-agent?")
            parser = EventParser(BODY_LIMIT)
            async for chunk in response.content.iter_any():
                for event in parser.feed(chunk):
                    if event.kind in ("snapshot", "message"):
                        on_snapshot(event.data)
                        patience.reschedule(loop.time() + silence_s)
        raise AwayError("it ended the connection")
    except _FAILURES as error:
        raise AwayError(explain(error, silence_s)) from error


_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, TooLargeError, ValueError)


def explain(error: BaseException, timeout_s: float) -> str:
    """A few words for the user. The order matters: aiohttp's errors are kinds of one another."""
    if isinstance(error, TooLargeError):
        return f"it sends more than {BODY_LIMIT >> 20} MiB at once"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({clean(str(error.certificate_error))[:100]})"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "no TLS with it: is it https?"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no host of that name"
    if isinstance(error, TimeoutError):
        return f"no data for {timeout_s:g} s"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionResetError):
        return "it broke off in the middle"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what it speaks is not HTTP"
    if isinstance(error, OSError) and error.strerror:
        return _strerror(error)
    return clean(str(error))[:120] or type(error).__name__


def _strerror(error: OSError) -> str:
    """asyncio words some of its own ("Connect call failed ..."), so the number is asked first."""
    return os.strerror(error.errno).lower() if error.errno else clean(error.strerror or "").lower()[:120]


def _get(session: aiohttp.ClientSession, target: Target, path: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    headers = {}
    if target.user is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{target.user}:{target.password}".encode()).decode()
    return session.get(target.url + path, headers=headers, allow_redirects=False)


def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    if 300 <= response.status < 400:
        # Not followed: credentials would go where the user did not send them.
        raise AwayError(f"it points elsewhere: use --connect {clean(response.headers.get('Location', '?'))[:120]}")
    raise AwayError(_STATUS_REASONS.get(response.status, f"it answers with status {response.status}"))


class _Resolver(AbstractResolver):
    """Resolves names in daemon threads. asyncio's own pool is joined at exit, so that a dead name server would hold up `q`."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def settle(found: list[ResolveResult] | OSError) -> None:
            if not answer.done():
                answer.set_exception(found) if isinstance(found, OSError) else answer.set_result(found)

        def ask() -> None:
            try:
                found: list[ResolveResult] | OSError = _addresses(host, port, family)
            except OSError as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=ask, name="aie-top-resolve", daemon=True).start()
        return await answer

    async def close(self) -> None:
        """Nothing is held."""


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(
            hostname=host, host=str(address[0]), port=int(address[1]), family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
        )
        for kind, _, protocol, _, address in found
    ]
