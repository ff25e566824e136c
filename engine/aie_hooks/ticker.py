"""A thread that flushes soon after there is something to flush, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from aie_hooks.reentrant import Bell, Turn

IDLE_S: Final = 10.0
"""How long the thread sleeps when nobody rings: the beat then sends the hello line."""

_log = logging.getLogger(__name__)


class Ticker:
    """Calls `beat` one interval after the first `ring` since the last beat, and every `IDLE_S` without one.

    `asleep` is public because it is read on the hot path: whoever left something to flush rings if it is set. It is set before
    each beat begins, so what comes too late for a beat rings for the next one.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float) -> None:
        """An infinite interval means no thread at all."""
        self.asleep = True
        self._beat = beat
        self._interval_s = interval_s
        self._stopped = interval_s == float("inf")
        self._reset()

    def _reset(self) -> None:
        self._rung = Bell()
        self._stop = Bell()
        self._starting = Turn()
        self._thread: threading.Thread | None = None

    def ring(self) -> None:
        """There is something to flush."""
        self.asleep = False
        if self._thread is None:
            self.start()
        self._rung.ring()

    def start(self) -> None:
        """Starts the thread, unless it runs, or is being started, or there shall be none."""
        if not self._starting.take():
            return
        try:
            if self._stopped or self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="aie-hooks", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # No more threads, or the interpreter is on its way out: whoever calls flush() still sends.
                _log.warning("metrics are sent by explicit flushes only: %s", error)
                self._stopped = True
                return
            self._thread = thread
        finally:
            self._starting.leave()

    def stop(self) -> None:
        """No beat begins after this; one that runs is not waited for."""
        self._stopped = True
        self._stop.ring()
        self._rung.ring()

    def forget(self) -> None:
        """For a forked child, which has no copy of the thread. A new one starts with the first ring: many children emit nothing."""
        self._reset()
        self.asleep = True

    def _run(self) -> None:
        rung, stop = self._rung, self._stop
        while True:
            if rung.wait(IDLE_S):
                stop.wait(self._interval_s)
            if self._stopped:
                return
            self.asleep = True
            self._beat()
