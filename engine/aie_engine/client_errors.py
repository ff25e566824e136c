"""Keeps what clients do wrong out of the log: aiohttp reports bytes that are no HTTP with a traceback, as if it were a bug."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from aiohttp.web_protocol import RequestPayloadError

_log = logging.getLogger(__name__)

_MAX_CHARS: Final = 200


def quiet_client_errors() -> None:
    """From now on such errors are one line each, at debug level. May be called again."""
    server_logger.addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError | RequestPayloadError):
        return True
    _log.debug("a client's error: %s", " ".join(str(error).split())[:_MAX_CHARS])
    return False
