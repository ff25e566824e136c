"""What the hooks are still to be told: noted where it happens, told where nobody waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from aie_engine.complaints import Complaints

P = ParamSpec("P")


class HookNews:
    """Calls of hooks, made in the order in which they were added, one at a time.

    Add under the lock that orders what happened, tell after that lock is free: then no hook holds up a token or a page, and
    each still hears of a request's life in its order, on one thread at a time.
    """

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._waiting: deque[partial[object]] = deque()
        self._telling = threading.Lock()

    def add(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Leaves this call to the next `tell`, of whichever thread."""
        self._waiting.append(partial(function, *args, **kwargs))

    def tell(self) -> None:
        """Makes the calls. When it returns, all that was added before has been told. What calls raise is logged."""
        with self._telling:
            while self._waiting:
                call = self._waiting.popleft()
                self._complaints.call(call.func, *call.args, **call.keywords)  # by its own name in the log
