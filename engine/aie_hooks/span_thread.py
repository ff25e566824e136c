"""Where spans are made: on a thread of their own, so that an exporter that is slow, or hangs, holds up no token and no page."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

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
    """Runs calls one after the other, in the order in which they came. The thread starts with the first call."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], None]) -> None:
        """Leaves `call` to the thread. Never waits for it; what `call` raises is counted and logged once."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING or not self._started():
                self._owner.drop("budget", 1)
                return
            self._waiting.append(call)
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Waits until all that came is done; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def forget(self) -> None:
        """In a forked child, which has no copy of the thread: what waits is the parent's."""
        self._reset()

    def _started(self) -> bool:
        if self._thread is not None:
            return True
        thread = threading.Thread(target=self._run, name="aie-spans", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is on its way out
            return False
        self._thread = thread
        atexit.register(self.drain, _AT_EXIT_S)
        return True

    def _run(self) -> None:
        changed, waiting = self._changed, self._waiting
        while True:
            with changed:
                self._busy = False
                changed.notify_all()
                changed.wait_for(lambda: bool(waiting))
                call = waiting.popleft()
                self._busy = True
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the SDK's, or an exporter's
                self._owner.failed("making a span", error)
            del call
