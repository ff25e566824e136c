"""A datagram socket that never blocks and never raises, and that finds its receiver again after that was restarted."""

from __future__ import annotations

import errno
import logging
import os
import socket
from typing import Any, Final, Literal

from aie_hooks.endpoint import Endpoint, UdpEndpoint, UnixEndpoint

SendFailure = Literal["would_block", "no_receiver"]

RETRY_S: Final = 1.0
"""The least time between two attempts to reach an absent receiver, and between two looks at whether it was replaced."""

# ENOBUFS: the device's queue is full; like a full socket buffer it passes.
_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class Transport:
    """Sends packets to one endpoint. Times are seconds of the caller's monotonic clock. Not thread-safe.

    `generation` counts connections: when it changes, whoever listens now knows nothing of this sender yet. Over UDP a packet that
    the kernel took may still be lost: an absent receiver shows only in the answer to the packet before.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.generation = 0
        self._endpoint = endpoint
        self._socket: socket.socket | None = None
        self._address: tuple[socket.AddressFamily, Any] | None = None
        self._identity: tuple[int, int, int] | None = None
        self._next_attempt_s = float("-inf")
        self._next_look_s = float("-inf")
        self._absent = False

    def ready(self, now_s: float, *, may_resolve: bool) -> bool:
        """Whether there is a receiver, connecting when that is due. Looks up host names, which may block, only if allowed to."""
        if self._socket is not None and not self._replaced(now_s):
            return True
        if now_s < self._next_attempt_s:
            return False
        self._next_attempt_s = now_s + RETRY_S
        return self._connect(now_s, may_resolve=may_resolve)

    def send(self, packet: bytes) -> SendFailure | None:
        """Sends one packet, or says why it was not sent."""
        if self._socket is None:
            return "no_receiver"
        try:
            self._socket.send(packet)
        except OSError as error:
            if error.errno in _FULL:
                return "would_block"
            self._lose(error)
            return "no_receiver"
        return None

    def close(self) -> None:
        """Closes the socket; `ready` opens another. In a forked child this closes the child's copy only."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def forget(self) -> None:
        """For a forked child: a socket of its own, at once."""
        self.close()
        self._next_attempt_s = float("-inf")

    def _connect(self, now_s: float, *, may_resolve: bool) -> bool:
        try:
            address = self._resolved(may_resolve=may_resolve)
            if address is None:
                return False
            family, where = address
            fresh = socket.socket(family, socket.SOCK_DGRAM)
            try:
                fresh.setblocking(False)
                fresh.connect(where)
                self._identity = self._look()
            except OSError:
                fresh.close()
                raise
        except OSError as error:
            self._lose(error)
            return False
        self._socket = fresh
        self._next_look_s = now_s + RETRY_S
        self.generation += 1
        if self._absent:
            self._absent = False
            _log.info("metrics go to %s again", self._endpoint)
        return True

    def _resolved(self, *, may_resolve: bool) -> tuple[socket.AddressFamily, Any] | None:
        if isinstance(self._endpoint, UnixEndpoint):
            return socket.AF_UNIX, self._endpoint.path
        if self._address is None:
            self._address = _numeric(self._endpoint)
        if self._address is None and may_resolve:
            self._address = _lookup(self._endpoint, 0)
        return self._address

    def _replaced(self, now_s: float) -> bool:
        """Whether another socket lies at the path by now. A sender stays connected to a socket whose name is gone."""
        if self._identity is None or now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + RETRY_S
        try:
            if self._look() == self._identity:
                return False
        except OSError as error:
            self._lose(error)
            return True
        self.close()
        return True

    def _look(self) -> tuple[int, int, int] | None:
        if not isinstance(self._endpoint, UnixEndpoint):
            return None
        status = os.stat(self._endpoint.path)
        # Inode numbers are used again at once on some file systems; the time of creation is not.
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _lose(self, error: OSError) -> None:
        self.close()
        if not self._absent:
            self._absent = True
            _log.info("no receiver for metrics at %s: %s", self._endpoint, error.strerror or error)


def _numeric(endpoint: UdpEndpoint) -> tuple[socket.AddressFamily, Any] | None:
    """The address when the host is one already, which needs no name server."""
    try:
        return _lookup(endpoint, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return None


def _lookup(endpoint: UdpEndpoint, flags: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM, flags=flags)[0]
    return family, address
