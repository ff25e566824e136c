"""What the daemon does with errors that nobody waits for."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiohttp.http_exceptions import BadStatusLine

from aie_agent.commands.run import LoopErrors, _is_no_clients_mistake


class Loop:
    """A loop of which only the time counts."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s


def test_the_same_error_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    loop: Any = Loop()
    errors = LoopErrors()
    for _ in range(1000):
        errors.report(loop, {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")})
    errors.report(loop, {"message": "another"})
    loop.now_s += LoopErrors.EVERY_S
    errors.report(loop, {"message": "socket.accept() out of system resource"})
    assert len(caplog.records) == 3


def test_what_is_no_http_is_the_clients_mistake() -> None:
    def record(error: Exception) -> logging.LogRecord:
        return logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "x", (), (type(error), error, None))

    assert not _is_no_clients_mistake(record(BadStatusLine("\xff")))
    assert _is_no_clients_mistake(record(ValueError("ours")))
