"""Passes StatsD packets on, unchanged, to another server (a Telegraf, say). Never waits: what the socket does not take is dropped
and counted, so an upstream that is slow or away costs nothing here."""

from __future__ import annotations

import errno
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

RECONNECT_EVERY_S: Final = 1.0

# errno -> reason; what stands here not is "error".
_REASONS: Final = {
    errno.EAGAIN: "would_block",
    errno.ENOBUFS: "would_block",
    errno.ECONNREFUSED: "no_receiver",
    errno.ENOENT: "no_receiver",
    errno.ENOTCONN: "no_receiver",
    errno.EMSGSIZE: "too_large",
}


Peer = tuple[str, int] | str
"""Where packets go: (host, port) as resolved, or a path."""


class Relay:
    """One upstream, `udp://HOST:PORT` or `unix:///PATH`. `send` and `connect` may be called from different threads."""

    def __init__(self, upstream: str) -> None:
        """Raises ValueError for an upstream of another form. Connects nothing yet."""
        parts = urlsplit(upstream)
        if parts.scheme == "udp" and parts.hostname and parts.port:
            self._udp: tuple[str, int] | None = (parts.hostname, parts.port)
            self._path = ""
        elif parts.scheme == "unix" and not parts.netloc and len(parts.path) > 1:
            self._udp = None
            self._path = parts.path
        else:
            raise ValueError(f"expected udp://HOST:PORT or unix:///PATH, got {upstream!r}")
        self.upstream = upstream
        self.packets = 0
        self.dropped: Counter[str] = Counter()
        self.trouble: str | None = None
        """Why there is no upstream at present, for people."""
        self._lock = threading.Lock()  # a socket must not be closed, and its number reused, between two lines of `send`
        self._socket: socket.socket | None = None
        self._tried_s: float | None = None

    def connect(self, now_s: float, is_own: Callable[[Peer], bool]) -> None:
        """Connects where that is needed and due. May take as long as a look-up of the host's name.

        An upstream that `is_own` would send everything back to us, round and round: it is given up, however it came to be.
        """
        upstream = self._socket
        if upstream is None:
            if self._tried_s is not None and 0 <= now_s - self._tried_s < RECONNECT_EVERY_S:
                return
            self._tried_s = now_s
            try:
                upstream = self._open()
            except OSError as error:
                self.trouble = f"relay to {self.upstream}: {error.strerror or error}"
                return
        if is_own(_peer(upstream)):
            self.trouble = f"relay to {self.upstream}: that is this agent's own socket: set statsd.relay to another server"
            self.close()
            upstream.close()
            return
        self._socket = upstream
        self.trouble = None

    def send(self, packet: bytes) -> None:
        """Passes a packet on, or counts why not."""
        with self._lock:
            if self._socket is None:
                self.dropped["no_receiver"] += 1
                return
            try:
                self._socket.send(packet, socket.MSG_DONTWAIT)
                self.packets += 1
                return
            except OSError as error:
                failure = error
        reason = _REASONS.get(failure.errno or 0, "error")
        self.dropped[reason] += 1
        # A Unix socket that its server left is never served again. A UDP port may be, and says so for every other packet.
        if self._udp is None and reason in ("no_receiver", "error"):
            self.trouble = f"relay to {self.upstream}: {failure.strerror}"
            self.close()

    def close(self) -> None:
        """Gives the socket back; what is sent before the next `connect` is dropped."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _open(self) -> socket.socket:
        if self._udp is None:
            return _connected(socket.AF_UNIX, self._path)
        infos = socket.getaddrinfo(*self._udp, type=socket.SOCK_DGRAM)
        return _connected(infos[0][0], infos[0][4])


def _peer(upstream: socket.socket) -> Peer:
    name = upstream.getpeername()
    return name if isinstance(name, str) else (name[0], name[1])


def _connected(family: int, address: object) -> socket.socket:
    upstream = socket.socket(family, socket.SOCK_DGRAM)
    try:
        upstream.setblocking(False)
        upstream.connect(address)  # type: ignore[arg-type]  # an address of its family
    except OSError:
        upstream.close()
        raise
    return upstream
