"""What hooks use in place of locks that wait: any of their calls may come in the middle of any other, on the same thread.

A signal's handler does that, and so does the garbage collector, which closes a generator that was left behind, and with it a
request's `with`, wherever Python may collect: at an allocation, or after any call. A lock would then be waited for by the thread
that holds it, for ever. So nothing here waits: values go through deques, whose appends and pops are atomic by what Python
documents, and a lock is only ever tried, except by the threads that wait in their sleep.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Final

MAX_PARTS: Final = 4096
"""Amounts that are kept one by one before they are added up."""


class Tally:
    """A sum that any thread may add to and take from, at any moment. An amount is in the deque or in the hands of exactly one
    who adds up, so none is counted twice and none is lost; a handler that raises can cost those in hand, and blocks nobody."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: deque[float] = deque()

    def __bool__(self) -> bool:
        """Whether something came that was not taken, were it 0."""
        return bool(self._parts)

    def add(self, amount: float) -> None:
        """Adds `amount`."""
        parts = self._parts
        parts.append(amount)
        if len(parts) > MAX_PARTS:
            parts.append(self.take())

    def take(self) -> float:
        """What came together; from then on it is the caller's."""
        parts = self._parts
        amount = 0.0
        try:
            for _ in range(len(parts)):
                amount += parts.popleft()
        except IndexError:  # somebody else took the rest
            pass
        return amount


class Bell:
    """Wakes the one thread that waits for it. Rings before it waits count as one. (`threading.Event` has a lock inside.)"""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wakes whoever waits, or who waits next."""
        with suppress(RuntimeError):  # it rings already
            self._silent.release()

    def wait(self, timeout_s: float) -> bool:
        """Waits for a ring; whether there was one."""
        return self._silent.acquire(timeout=timeout_s)


class Turn:
    """A lock that a thread never waits for when it holds it itself."""

    __slots__ = ("_holder", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def take(self, wait_s: float = 0.0) -> bool:
        """Whether it is the caller's turn now, who then has to `leave`. Waits for other threads, for so many seconds."""
        me = threading.get_ident()
        if not self._lock.acquire(blocking=False) and (not wait_s or self._holder == me or not self._lock.acquire(timeout=wait_s)):
            return False
        self._holder = me
        return True

    def leave(self) -> None:
        """The next one's turn."""
        self._holder = None
        self._lock.release()
