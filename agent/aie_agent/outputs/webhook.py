"""Tells a webhook what the file of drift.on_alarm says: which engines' answers are not to be trusted, as a list in JSON, empty once
nothing is wrong. Off by default. Whoever listens may take an engine out, or back to the version before.

A thread of its own sends: the newest only, three times at most, each within one deadline: then the connection is cut, however
slowly somebody goes on answering. What could not be sent is counted, and comes again
with the next renewal, half a minute later. Redirects are not followed: they could lead elsewhere.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from aie_agent.outputs.degrade import Renewal, rows
from aie_agent.samples import Count, labelled
from aie_telemetry.api import Finding
from aie_telemetry.bounded_http import Cutter
from aie_telemetry.degraded import Degraded

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
ATTEMPTS: Final = 3
_PAUSES_S: Final = (1.0, 3.0)


class Webhook:
    """One URL. `update` returns at once; the thread starts with the first message, and ends with the process or `close`."""

    def __init__(self, url: str | None, pauses_s: Sequence[float] = _PAUSES_S, timeout_s: float = TIMEOUT_S) -> None:
        """None: nothing is sent. What URL may be is the configuration's business. `pauses_s` lie between the attempts."""
        self._url = None if url is None else urlsplit(url)
        self._pauses_s = pauses_s
        self._timeout_s = timeout_s
        self._renewal = Renewal()
        self._sent: Counter[str] = Counter()
        self._wake = threading.Condition()
        self._message: bytes | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._complained = False

    def update(self, findings: Sequence[Finding], now_s: float) -> None:
        """The findings that hold now, seconds since the epoch. Neither raises nor waits."""
        untrusted = None if self._url is None else self._renewal.due(findings, now_s)
        if untrusted is None:
            return
        self._renewal.said(untrusted, now_s)
        told: list[Degraded] = rows(untrusted, now_s)
        with self._wake:
            if self._message is not None:
                self._sent["superseded"] += 1
            self._message = msgspec.json.encode(told)
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aie-webhook", daemon=True)
            self._thread.start()

    def counts(self) -> Iterable[Count]:
        """Messages by what became of them."""
        return labelled("aie_agent_webhook_messages_total", self._sent)

    def close(self) -> None:
        """Sends nothing more; an attempt under way is left to its timeout."""
        self._closed.set()
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        while (message := self._next()) is not None:
            try:
                sent = self._url is not None and self._deliver(self._url, message)
            except Exception as error:
                log.error("drift.webhook: a message could not be sent", exc_info=error)
                sent = False
            self._sent["ok" if sent else "failed"] += 1

    def _next(self) -> bytes | None:
        with self._wake:
            self._wake.wait_for(lambda: self._message is not None or self._closed.is_set())
            message, self._message = self._message, None
        return None if self._closed.is_set() else message

    def _deliver(self, url: SplitResult, message: bytes) -> bool:
        """Whether somebody took it, at one of the attempts; a newer message ends them."""
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt and (self._closed.wait(self._pauses_s[attempt - 1]) or self._message is not None):
                return False
            problem = _post(url, message, self._timeout_s)
            if not problem:
                self._complained = False
                return True
        if not self._complained:
            log.warning("drift.webhook: %s://%s does not take it: %s; said once until it does", url.scheme, url.netloc, problem)
        self._complained = True
        return False


def _post(url: SplitResult, message: bytes, timeout_s: float) -> str:
    """Why it was not taken, within so long in all; empty where it was."""
    deadline_s = time.monotonic() + timeout_s
    cutter = Cutter()
    timer = threading.Timer(timeout_s, cutter.cut)
    timer.daemon = True
    timer.start()
    connection = http.client.HTTPConnection(url.hostname or "", _port(url))
    try:
        connection.sock = _connected(url, deadline_s, cutter)
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("POST", target, message, {"Host": url.netloc, "Content-Type": "application/json"})
        status = connection.getresponse().status
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return f"no answer within {timeout_s:g} s" if time.monotonic() >= deadline_s else str(error) or type(error).__name__
    finally:
        timer.cancel()
        connection.close()
    return "" if 200 <= status < 300 else f"status {status}"


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _connected(url: SplitResult, deadline_s: float, cutter: Cutter) -> socket.socket:
    """A connection that the cutter cuts at the deadline, from its first byte on. Raises OSError."""
    problem: OSError = TimeoutError()
    for family, kind, protocol, _, address in socket.getaddrinfo(url.hostname, _port(url), type=socket.SOCK_STREAM):
        plain = socket.socket(family, kind, protocol)
        try:
            return _opened(plain, address, url, deadline_s, cutter)
        except OSError as error:
            plain.close()
            problem = error
    raise problem


def _opened(plain: socket.socket, address: Any, url: SplitResult, deadline_s: float, cutter: Cutter) -> socket.socket:
    plain.settimeout(max(deadline_s - time.monotonic(), 0.001))
    plain.connect(address)
    if url.scheme != "https":
        opened: socket.socket = plain
    else:
        context = ssl.create_default_context()
        opened = context.wrap_socket(plain, server_hostname=url.hostname, do_handshake_on_connect=False)
    try:
        cutter.note(opened)
        if time.monotonic() >= deadline_s:  # maybe it was cut before this was known
            raise TimeoutError
        if isinstance(opened, ssl.SSLSocket):
            opened.do_handshake()
    except OSError:
        opened.close()
        raise
    return opened
