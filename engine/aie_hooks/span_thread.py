"""Where spans are made: on a thread of their own, so that an exporter that is slow, or hangs, holds up no token and no page."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from aie_hooks.reentrant import Bell, Turn

MAX_WAITING: Final = 1000
"""Spans that wait for the thread; what comes beyond is dropped and counted."""

_AT_EXIT_S: Final = 1.0


class Owner(Protocol):
    """What the thread needs of an emitter."""

    def drop(self, reason: str, count: int) -> None:
        """`count` values were dropped."""

    def failed(self, what: str, error: BaseException, count: int = 1) -> None:
        """A hook broke within."""


class SpanThread:
    """Runs calls one after the other, in the order in which they came. The thread starts with the first call. No call waits for a
    lock, so that they may come from anywhere (`aie_hooks.reentrant`)."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._bell = Bell()
        self._starting = Turn()
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], None]) -> None:
        """Leaves `call` to the thread. Never waits for it; what `call` raises is counted and logged once."""
        if len(self._waiting) >= MAX_WAITING or not self._started():
            self._owner.drop("budget", 1)
            return
        self._waiting.append(call)
        self._bell.ring()

    def drain(self, timeout_s: float) -> bool:
        """Waits until all that came is done; whether it is."""
        if self._thread is None:
            return not self._waiting
        reached = Bell()
        self._waiting.append(reached.ring)
        self._bell.ring()
        return reached.wait(timeout_s)

    def forget(self) -> None:
        """In a forked child, which has no copy of the thread: what waits is the parent's."""
        self._reset()

    def _started(self) -> bool:
        """Whether there is a thread, or is one soon."""
        if self._thread is not None or not self._starting.take():
            return True
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="aie-spans", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(self.drain, _AT_EXIT_S)
        except RuntimeError:  # no more threads, or the interpreter is on its way out
            return False
        finally:
            self._starting.leave()
        return True

    def _run(self) -> None:
        bell, waiting = self._bell, self._waiting
        while True:
            while waiting:
                call = waiting.popleft()
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - the SDK's, or an exporter's
                    self._owner.failed("making a span", error)
                del call
            bell.wait(threading.TIMEOUT_MAX)
