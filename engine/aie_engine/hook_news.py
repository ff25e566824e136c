"""What the hooks are still to be told: noted where it happens, told where nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec

from aie_engine.complaints import Complaints

MAX_WAITING: Final = 10_000
"""Calls that wait behind one that does not return: more are left out, and the log says so once."""

_P = ParamSpec("_P")

_log = logging.getLogger(__name__)


class HookNews:
    """Calls of hooks, made in the order in which they were added, one at a time.

    Add under the lock that orders what happened, tell after that lock is free: then no hook holds up a token or a page, and
    each still hears of a request's life in its order, from one thread at a time.
    """

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._waiting: deque[partial[object]] = deque()
        self._telling = threading.Lock()
        self._overflowed = False

    def add(self, function: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Leaves this call to the next `tell`, of whichever thread."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(partial(function, *args, **kwargs))
        elif not self._overflowed:
            self._overflowed = True
            _log.error("a hook does not return, and the hooks hear nothing more; said once")

    def tell(self) -> None:
        """Makes the calls, unless another thread is at it: then that one makes these too, and nobody waits. What calls raise is
        logged."""
        # Whoever lets go looks again: what was added while it held the lock is left to nobody else.
        while self._waiting and self._telling.acquire(blocking=False):
            try:
                while self._waiting:
                    call = self._waiting.popleft()
                    self._complaints.call(call.func, *call.args, **call.keywords)  # by its own name in the log
            finally:
                self._telling.release()

    @property
    def told(self) -> bool:
        """Whether nothing waits and nobody tells."""
        return not self._waiting and not self._telling.locked()
