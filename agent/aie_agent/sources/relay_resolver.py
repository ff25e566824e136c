"""Looks up where a host is, in a thread of its own: the system's resolver may take many seconds, and nothing here waits for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

REFRESH_S: Final = 60.0
"""How old an answer may get: services move."""

RETRY_S: Final = 5.0
"""How soon it is asked again after a failure, its own or that of what it found."""

SLOW_S: Final = 2.0
"""How long the first answer may take before that is worth telling."""


class Address(NamedTuple):
    """Where a datagram socket can be connected to."""

    family: int
    address: Any


Lookup = Callable[[str, int], list[Address]]


def look_up(host: str, port: int, flags: int = 0) -> list[Address]:
    """All addresses of a host, the preferred one first. May block for long. Raises OSError, or UnicodeError for what is no name."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)
    return [Address(info[0], info[4]) for info in infos]


class Resolver:
    """The addresses of one host. `poll` never blocks; belongs to one thread."""

    def __init__(self, host: str, port: int, lookup: Lookup = look_up) -> None:
        self._host, self._port, self._lookup = host, port, lookup
        self.addresses: list[Address] = []
        """As last found; empty before the first answer."""
        self.trouble: str | None = None
        """Why there are no newer ones, for people."""
        self._is_numeric = self._read_numeric()
        self._started_s: float | None = None
        self._answer: list[Address] | Exception | None = None
        self._thread: threading.Thread | None = None

    def poll(self, now_s: float, *, doubtful: bool = False) -> None:
        """Takes up an answer, and asks again where that is due: sooner where `doubtful`, since what was found does not work."""
        if self._is_numeric:
            return
        if self._thread is not None and self._thread.is_alive():
            if not self.addresses and self._started_s is not None and now_s - self._started_s >= SLOW_S:
                self.trouble = f"the look-up of {self._host} has not ended after {SLOW_S:g} s"
            return
        if self._thread is not None:
            self._thread = None
            self._take_up()
        if self._is_due(now_s, doubtful=doubtful):
            self._started_s = now_s
            # A daemon: one that hangs in the resolver does not keep the agent from ending.
            self._thread = threading.Thread(target=self._run, name="aie-relay-lookup", daemon=True)
            self._thread.start()

    def _read_numeric(self) -> bool:
        """A number needs no look-up, now or later."""
        try:
            self.addresses = look_up(self._host, self._port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            return False
        return True

    def _is_due(self, now_s: float, *, doubtful: bool) -> bool:
        if self._started_s is None or now_s < self._started_s:  # never yet, or the clock went back
            return True
        failed = doubtful or self.trouble is not None
        return now_s - self._started_s >= (RETRY_S if failed else REFRESH_S)

    def _take_up(self) -> None:
        answer, self._answer = self._answer, None
        if isinstance(answer, list):
            self.addresses = answer
            self.trouble = None
        else:
            self.trouble = f"{self._host} was not found: {getattr(answer, 'strerror', None) or answer}"

    def _run(self) -> None:
        try:
            self._answer = self._lookup(self._host, self._port)
        except (OSError, UnicodeError) as error:
            self._answer = error
