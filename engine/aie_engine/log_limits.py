"""Keeps a library that says the same at every try from filling the log."""

from __future__ import annotations

import logging
from typing import Final

_MAX_MESSAGES: Final = 100


class Rarely(logging.Filter):
    """For a handler: lets each message of the loggers under `prefix` through once in `period_s` seconds, by the record's own time.

    Messages are told apart by their text before arguments are put in. Of more than a hundred the others come through.
    """

    def __init__(self, prefix: str, period_s: float) -> None:
        super().__init__(prefix)
        self._period_s = period_s
        self._next_s: dict[tuple[str, object], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        if not super().filter(record):
            return True  # another library's
        key = (record.name, record.msg)
        if record.created < self._next_s.get(key, 0.0):
            return False
        if key in self._next_s or len(self._next_s) < _MAX_MESSAGES:
            self._next_s[key] = record.created + self._period_s
        return True
