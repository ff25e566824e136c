"""Python programs whose threads are at known places. Run as `python stack_programs.py NAME`: each prints "ready" (and its
port, where it serves one) and goes on until it is killed. `line_of` says where a place is, so that tests name no numbers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.server
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HOSTILE_NAME = "idle;\x1b[31m\nred\N{RIGHT-TO-LEFT OVERRIDE}"

LOCK = threading.Lock()
NEVER = threading.Event()


def line_of(marker: str) -> int:
    """The line that ends with `# marker`."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))


@contextlib.contextmanager
def running(name: str, *python: str) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """The program `name`, once it is ready, and the words that it said. It is killed in the end. `python` is the command that runs
    it, by default this Python."""
    with subprocess.Popen(
        [*(python or (sys.executable,)), __file__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().decode().split()
            assert words[:1] == ["ready"]
            yield process, words[1:]
        finally:
            process.kill()


def critical() -> None:
    time.sleep(0.05)  # critical


def work() -> None:
    while True:
        with LOCK:  # wanted
            critical()


def fight() -> None:
    """Four threads want one lock, and sleep while they hold it. A fifth, of a hostile name, has nothing to do."""
    for number in range(4):
        threading.Thread(target=work, name=f"worker-{number}", daemon=True).start()
    threading.Thread(target=queue.Queue().get, name=HOSTILE_NAME, daemon=True).start()
    print("ready", flush=True)
    NEVER.wait()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with LOCK:  # page
            body = b"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 7\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def encode() -> None:
    NEVER.wait()  # stuck


def hang() -> None:
    """Serves a page like llama.cpp's, until a line comes: then the main thread takes the lock that the page needs, and is stuck."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
    print("ready", server.server_port, flush=True)
    sys.stdin.readline()
    with LOCK:
        encode()


def pool() -> None:
    """Eight workers of a pool that have had something to do and now have nothing."""
    with concurrent.futures.ThreadPoolExecutor(8) as workers:
        begin = threading.Barrier(8)
        list(workers.map(lambda _: begin.wait(), range(8)))
        print("ready", flush=True)
        NEVER.wait()


def spin() -> None:
    """One thread computes, one waits for nothing."""
    threading.Thread(target=NEVER.wait, name="idle", daemon=True).start()
    print("ready", flush=True)
    while True:
        sum(range(1000))  # spin


if __name__ == "__main__":
    {"fight": fight, "hang": hang, "pool": pool, "spin": spin}[sys.argv[1]]()
