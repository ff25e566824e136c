"""Passes StatsD packets on, unchanged, to another server (a Telegraf, say). Never waits, neither for the socket nor for the look-up
of a name: what cannot be sent at once is dropped and counted, so an upstream that is slow or away costs nothing here."""

from __future__ import annotations

import errno
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from aie_agent.sources.relay_resolver import Address, Lookup, Resolver, look_up

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

    def __init__(self, upstream: str, lookup: Lookup = look_up) -> None:
        """Raises ValueError for an upstream of another form. Connects nothing yet. `lookup` finds the addresses of a host."""
        parts = urlsplit(upstream)
        if parts.scheme == "udp" and parts.hostname and parts.port:
            self._resolver: Resolver | None = Resolver(parts.hostname, parts.port, lookup)
            self._path = ""
        elif parts.scheme == "unix" and not parts.netloc and len(parts.path) > 1:
            self._resolver = None
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
        self._target: Address | None = None
        self._doubtful = False
        self._tried_s: float | None = None

    def connect(self, now_s: float, is_own: Callable[[Peer], bool]) -> None:
        """Connects where that is needed and due, and anew where the upstream has moved. Does not wait.

        An upstream that `is_own` would send everything back to us, round and round: it is given up, however it came to be.
        """
        targets = self._targets(now_s)
        upstream = self._socket
        if upstream is None or self._target not in targets:
            if not targets or not self._is_due(now_s):
                return
            upstream = self._open(targets)
            if upstream is None:
                return
        if is_own(_peer(upstream)):
            self.trouble = f"relay to {self.upstream}: that is this agent's own socket: set statsd.relay to another server"
            self._use(None)
            upstream.close()
            return
        self._use(upstream)
        self.trouble = None

    def send(self, packet: bytes, *, truncated: bool = False) -> None:
        """Passes a packet on, or counts why not: one that was cut as it came is not what was sent."""
        if truncated:
            self.dropped["truncated"] += 1
            return
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
        if reason not in ("no_receiver", "error"):
            return
        self._doubtful = True
        # A Unix socket that its server left is never served again. A UDP port may be, and says so for every other packet.
        if self._resolver is None:
            self.trouble = f"relay to {self.upstream}: {failure.strerror}"
            self.close()

    def close(self) -> None:
        """Gives the socket back; what is sent before the next `connect` is dropped."""
        self._use(None)

    def _use(self, upstream: socket.socket | None) -> None:
        with self._lock:
            last, self._socket = self._socket, upstream
            if last is not None and last is not upstream:
                last.close()

    def _targets(self, now_s: float) -> list[Address]:
        """Where the upstream may be, as far as is known now."""
        resolver = self._resolver
        if resolver is None:
            return [Address(socket.AF_UNIX, self._path)]
        resolver.poll(now_s, doubtful=self._doubtful)
        self._doubtful = False
        if not resolver.addresses:
            self.trouble = None if resolver.trouble is None else f"relay to {self.upstream}: {resolver.trouble}"
        return resolver.addresses

    def _is_due(self, now_s: float) -> bool:
        if self._tried_s is not None and 0 <= now_s - self._tried_s < RECONNECT_EVERY_S:
            return False
        self._tried_s = now_s
        return True

    def _open(self, targets: list[Address]) -> socket.socket | None:
        """A socket connected to the first of `targets` that lets itself be connected to, or None, with the trouble noted."""
        for target in targets:
            try:
                upstream = _connected(target)
            except OSError as error:
                self.trouble = f"relay to {self.upstream}: {error.strerror or error}"
                continue
            self._target = target
            return upstream
        return None


def _peer(upstream: socket.socket) -> Peer:
    name = upstream.getpeername()
    return name if isinstance(name, str) else (name[0], name[1])


def _connected(target: Address) -> socket.socket:
    upstream = socket.socket(target.family, socket.SOCK_DGRAM)
    try:
        upstream.setblocking(False)
        upstream.connect(target.address)
    except OSError:
        upstream.close()
        raise
    return upstream
