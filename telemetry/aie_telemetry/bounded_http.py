"""A session of `requests` that takes no more of an answer than makes sense: for OpenTelemetry's exporters, which read all of it.

A collector answers with a few bytes. Whatever listens where it should be may answer for ever: the exporter's timeout is one of each
read, so that it would read on, and keep it all.
"""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import requests

MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_ANSWER_S: Final = 10.0
_CHUNK_BYTES: Final = 4096


def bounded_session(max_bytes: int = MAX_ANSWER_BYTES, max_s: float = MAX_ANSWER_S) -> requests.Session:
    """A session whose answers end after `max_bytes`, or `max_s` after their head came. Needs `requests` and urllib3 2."""
    import requests
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):
        def send(self, request: Any, *arguments: Any, **options: Any) -> requests.Response:
            response = super().send(request, *arguments, **{**options, "stream": True})
            body, is_whole = _read(response.raw, max_bytes, time.monotonic() + max_s)
            if is_whole:
                response.raw.release_conn()
            else:
                response.raw.close()  # what is still to come would be the next answer's beginning
            response.raw = io.BytesIO(body)
            return response

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, BoundedAdapter())
    return session


def _read(raw: Any, max_bytes: int, until_s: float) -> tuple[bytes, bool]:
    """What came within the bounds, and whether that was all."""
    parts: list[bytes] = []
    size = 0
    while size < max_bytes and time.monotonic() < until_s:
        part = raw.read1(_CHUNK_BYTES, decode_content=True)
        if not part:
            return b"".join(parts), True
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:max_bytes], False
