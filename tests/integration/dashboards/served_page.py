"""A metrics page of an engine that is not here, served over a real socket: what it counts rises at each look."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_TYPE: Final = re.compile(r"^# TYPE (\S+) (?:counter|histogram|summary)$", re.MULTILINE)
_SAMPLE: Final = re.compile(r"^(([a-zA-Z0-9_:]+)(?:\{.*\})?) ([0-9.eE+]+)$", re.MULTILINE)
_PARTS: Final = re.compile(r"_(?:total|bucket|count|sum)$")
_RISE_PER_S: Final = 0.05
"""Of what stands on the page."""


def risen(page: str, factor: float) -> str:
    """The page with all that it counts so many times as high."""
    counted = set(_TYPE.findall(page))

    def rise(match: re.Match[str]) -> str:
        known = match[2] in counted or _PARTS.sub("", match[2]) in counted
        return f"{match[1]} {float(match[3]) * factor:.6f}" if known else match[0]

    return _SAMPLE.sub(rise, page)


@contextmanager
def served(page: str | Path) -> Iterator[str]:
    """Its URL."""
    text = page.read_text() if isinstance(page, Path) else page
    began = time.monotonic()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = risen(text, 1 + _RISE_PER_S * (time.monotonic() - began)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="page")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
