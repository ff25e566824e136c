"""What the agent costs: CPU and memory at 1 Hz beside 64 engine processes, hooks and a page, and how fast its own page renders.

    python bench/agent_cost.py [--seconds 60] [--processes 64]

Prints CPU as a share of one core (from /proc/PID/stat, the whole process), resident memory, and the median time of a GET of
/metrics at 5k series over a real socket.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.instruments import Registry

BIN = Path(sys.executable).parent
THREADS = 20
"""Of each process: an engine's worker has dozens."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class EnginePage:
    """A page with every family of `aie_engine_*` filled, whose counters rise at each look: an engine that stands still would be
    reported as hung, and its stacks be read."""

    def __init__(self) -> None:
        self._registry = Registry()
        self._is_first = True

    def render(self) -> bytes:
        """The page as it is now."""
        for name, metric in CATALOGUE.items():
            if name.startswith("aie_engine_"):
                values = [f"{label}-value" for label in metric.labels]
                if metric.kind is Kind.HISTOGRAM:
                    self._registry.distribution(name, *values).observe(0.05, 1000)
                elif metric.kind is Kind.COUNTER or self._is_first:
                    self._registry.value(name, *values).add(12.5)
        self._is_first = False
        return self._registry.render().encode()


@contextlib.contextmanager
def page_server(page: EnginePage) -> Iterator[str]:
    """Serves the page as an engine would."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.render()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    server.shutdown()


@contextlib.contextmanager
def agent(page_url: str, directory: Path) -> Iterator[tuple[int, str, Path]]:
    """The agent as a user runs it: its pid, URL and StatsD socket."""
    config = directory / "agent.toml"
    socket_path = directory / "statsd.sock"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{socket_path}"\nudp = "off"\n'
        f'[[engines]]\nname = "bench"\nmetrics_url = "{page_url}"\n'
    )
    process = subprocess.Popen([BIN / "aie-agent", "run", "--config", config], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    match = re.search(rb"http://\S+", process.stdout.readline())
    assert match is not None, "the agent did not start"
    try:
        yield process.pid, match[0].decode(), socket_path
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_mib(pid: int) -> float:
    """VmRSS."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def announce(path: Path, count: int) -> list[subprocess.Popen[bytes]]:
    """Processes that say hello for the engine themselves, so that the kernel vouches for them, and then sleep."""
    code = (
        "import socket, sys, threading, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[1]);"
        "s.send(b'aie_hooks_process,engine=bench,pid=1:1|g');"
        f"[threading.Thread(target=time.sleep, args=(3600,), daemon=True).start() for _ in range({THREADS - 1})]; time.sleep(3600)"
    )
    return [subprocess.Popen([sys.executable, "-S", "-c", code, path]) for _ in range(count)]


def fill(path: Path, series: int) -> None:
    """Gives the agent that many series over StatsD, half of them from another process: one sender may not hold more."""
    child = os.fork()
    numbers = range(series // 2) if child else range(series // 2, series)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))
        for index in numbers:
            sender.send(f"bench_gauge,k={index % 100},j={index // 100}:{index}|g".encode())
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def median_scrape_s(url: str, repeats: int = 20) -> tuple[int, float]:
    """Lines of the agent's page, and the median time of a GET of it."""
    times = []
    lines = 0
    for _ in range(repeats):
        begin = time.perf_counter()
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            lines = answer.read().count(b"\n")
        times.append(time.perf_counter() - begin)
    return lines, statistics.median(times)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=64)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page_url = stack.enter_context(page_server(EnginePage()))
        pid, url, socket_path = stack.enter_context(agent(page_url, directory))
        children = announce(socket_path, arguments.processes)
        time.sleep(10)
        start, start_cpu = time.perf_counter(), cpu_seconds(pid)
        time.sleep(arguments.seconds)
        share = (cpu_seconds(pid) - start_cpu) / (time.perf_counter() - start)
        watched = f"{arguments.processes} processes of {THREADS} threads, one page"
        print(f"1 Hz, {watched}: {share:.2%} of a core, {resident_mib(pid):.0f} MiB resident")
        for child in children:
            child.kill()
            child.wait()
        fill(socket_path, 5000)
        time.sleep(3)
        lines, seconds = median_scrape_s(url)
        print(f"/metrics with {lines} lines: {seconds * 1e3:.1f} ms (median of 20), {resident_mib(pid):.0f} MiB resident")


if __name__ == "__main__":
    main()
