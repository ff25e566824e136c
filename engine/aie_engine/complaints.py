"""Calls of what only observes: whatever it raises must not end what it observes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MAX_COMPLAINTS: Final = 100  # what fails does so at every step, and the log is for people


class Complaints:
    """Runs calls and keeps their errors from the caller; the log has the first of each kind, and at most 100 in all.

    Thread-safe: two threads may at worst both log the same error.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: set[str] = set()

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """What `function` returns; None when it raised."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self.tell(function, error)
            return None

    def tell(self, function: object, error: Exception) -> None:
        """Logs that `function` raised `error`, unless that is known. To be called while the error is handled."""
        what = f"{getattr(function, '__qualname__', function)} failed: {error!r:.200}"
        if what not in self._told and len(self._told) < _MAX_COMPLAINTS:
            self._told.add(what)
            self._log.exception("%s", what)
