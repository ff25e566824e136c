"""What the agent costs: CPU and memory at 1 Hz beside 8 GPUs, 64 engine processes, hooks and a page, and how
fast its own page renders.

    python bench/agent_cost.py [--seconds 60] [--processes 64] [--gpus 8] [--no-discovery]

Prints CPU as a share of one core, by the agent's own clock of CPU, and how it divides among its parts (bench/agent_parts.py), each
beside its budget; the child that holds the probes; resident memory; and what a GET of /metrics at 5k series takes over a real
socket, as the classic text and as OpenMetrics: the median time, and the agent's CPU. The GPUs are simulated and answer at once.
Other engines of the host that the agent finds cost, too: --no-discovery leaves them out. Exits with 1 beyond a budget: of CPU as a
whole, of a part, or of the page.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exemplars import ACCEPT_OPENMETRICS
from aie_telemetry.instruments import Registry

METERED: Final = Path(__file__).with_name("agent_parts.py")
PARTS_PREFIX: Final = "parts "
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
        protocol_version = "HTTP/1.1"  # a connection stays open, as those of engines do

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


class Budget(NamedTuple):
    """What some parts of the agent may take together, in CPU milliseconds a cycle of one second."""

    what: str
    parts: tuple[str, ...]
    budget_ms: float


BUDGETS: Final = (
    Budget("NVML", ("nvml", "nvml calls", "nvml slow", "nvml events"), 4.0),
    Budget("procfs", ("host", "process", "engines", "discovery"), 6.0),
    Budget("the rest", (), 7.0),
)
"""Of the agent itself; the maps are read by the child, in 3 ms (bench/bpf_cost.py). The last has all parts that no other names."""

SHARE: Final = 0.02
SCRAPE_BUDGET_S: Final = 0.1


class Agent:
    """The agent as a user runs it, with a meter in it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, statsd: Path, log: Path) -> None:
        self._process = process
        self._log = log
        self.url = url
        self.statsd = statsd

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def parts_s(self) -> dict[str, float]:
        """CPU seconds by part since it began."""
        before = self._told()
        self._process.send_signal(signal.SIGUSR2)
        while len(told := self._told()) == len(before):
            time.sleep(0.01)
        return {str(part): float(seconds) for part, seconds in json.loads(told[-1]).items()}

    def probes(self) -> int | None:
        """The process that holds the probes, or None."""
        children = (int(pid) for each in Path(f"/proc/{self.pid}/task").glob("*/children") for pid in each.read_text().split())
        return next((pid for pid in children if b"aie_ebpf" in Path(f"/proc/{pid}/cmdline").read_bytes()), None)

    def _told(self) -> list[str]:
        whole, _, _ = self._log.read_text().rpartition("\n")
        return [line.removeprefix(PARTS_PREFIX) for line in whole.splitlines() if line.startswith(PARTS_PREFIX)]


@contextlib.contextmanager
def agent(page_url: str, directory: Path, arguments: Sequence[str]) -> Iterator[Agent]:
    """Runs it with more arguments."""
    config, log, statsd = directory / "agent.toml", directory / "log", directory / "statsd.sock"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{statsd}"\nudp = "off"\n'
        f'[[engines]]\nname = "bench"\nmetrics_url = "{page_url}"\n'
    )
    command = [sys.executable, str(METERED), "run", "--config", str(config), *arguments]
    with log.open("wb") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
        assert process.stdout is not None
        match = re.search(rb"http://\S+", process.stdout.readline())
        assert match is not None, log.read_text()
        try:
            yield Agent(process, match[0].decode(), statsd, log)
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_mib(pid: int) -> float:
    """VmRSS."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def by_budget(parts_ms: Mapping[str, float]) -> list[tuple[Budget, dict[str, float]]]:
    """Each budget with the parts that it is for, the dearest first."""
    named = {part for budget in BUDGETS for part in budget.parts}
    ordered = dict(sorted(parts_ms.items(), key=lambda part: -part[1]))
    return [
        (budget, {part: ms for part, ms in ordered.items() if (part in budget.parts if budget.parts else part not in named)})
        for budget in BUDGETS
    ]


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


FORMATS: Final = {"text": "text/plain; version=0.0.4", "OpenMetrics": ACCEPT_OPENMETRICS}


class Scrape(NamedTuple):
    """A GET of the agent's page: its lines, the median time, and the agent's CPU a GET (with all else that it did meanwhile)."""

    lines: int
    wall_s: float
    cpu_s: float


def scrape(running: Agent, accept: str, repeats: int = 20) -> Scrape:
    """Gets the page so often."""
    request = urllib.request.Request(f"{running.url}/metrics", headers={"Accept": accept})
    times = []
    lines = 0
    before_s = cpu_seconds(running.pid)
    for _ in range(repeats):
        begin = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            lines = answer.read().count(b"\n")
        times.append(time.perf_counter() - begin)
    return Scrape(lines, statistics.median(times), (cpu_seconds(running.pid) - before_s) / repeats)


class Cycle(NamedTuple):
    """CPU milliseconds a second: of each part of the agent, and of the child with the probes."""

    parts_ms: dict[str, float]
    child_ms: float | None

    def lines(self) -> list[str]:
        """What is printed."""
        lines = []
        for budget, parts in by_budget(self.parts_ms):
            each = ", ".join(f"{part} {ms:.2f}" for part, ms in parts.items())
            lines.append(f"  {budget.what:9} {sum(parts.values()):6.2f} ms a cycle (budget {budget.budget_ms:g}): {each}")
        if self.child_ms is not None:
            lines.append(f"  beside it, the child with the probes: {self.child_ms / 1000:.2%} of a core")
        return lines


def cycle(running: Agent, seconds: float) -> Cycle:
    """What is taken from now on."""
    child = running.probes()
    began_s, before, child_before_s = time.perf_counter(), running.parts_s(), cpu_seconds(child) if child is not None else 0.0
    time.sleep(seconds)
    parts = running.parts_s()
    child_s = cpu_seconds(child) - child_before_s if child is not None else None
    ms_each_s = 1000 / (time.perf_counter() - began_s)
    spent_ms = {part: (spent_s - before.get(part, 0.0)) * ms_each_s for part, spent_s in parts.items()}
    return Cycle(spent_ms, child_s if child_s is None else child_s * ms_each_s)


def failures(taken: Cycle, pages: Mapping[str, Scrape]) -> list[str]:
    """What is beyond its budget."""
    share = sum(taken.parts_ms.values()) / 1000
    found = [f"the agent takes {share:.2%} of a core, beyond {SHARE:.0%}"] if share > SHARE else []
    for budget, parts in by_budget(taken.parts_ms):
        if (spent_ms := sum(parts.values())) > budget.budget_ms:
            found.append(f"{budget.what} takes {spent_ms:.2f} ms a cycle, beyond {budget.budget_ms:g}")
    for name, page in pages.items():
        if page.wall_s > SCRAPE_BUDGET_S:
            found.append(f"/metrics as {name} takes {page.wall_s * 1e3:.1f} ms, beyond {SCRAPE_BUDGET_S * 1e3:g}")
    return found


def main() -> None:
    """Measures and prints. Exits with 1 beyond a budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--no-discovery", action="store_true", help="on a host that runs other engines")
    options = parser.parse_args()
    arguments = [f"--simulate-gpus={options.gpus}"] if options.gpus else []
    arguments += ["--no-discovery"] if options.no_discovery else []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page_url = stack.enter_context(page_server(EnginePage()))
        running = stack.enter_context(agent(page_url, directory, arguments))
        children = announce(running.statsd, options.processes)
        time.sleep(10)
        taken = cycle(running, options.seconds)
        watched = f"{options.gpus} simulated GPUs, {options.processes} processes of {THREADS} threads, one page"
        share = sum(taken.parts_ms.values()) / 1000
        print(f"1 Hz, {watched}: {share:.2%} of a core (budget {SHARE:.0%}), {resident_mib(running.pid):.0f} MiB resident")
        print(*taken.lines(), sep="\n")
        for child in children:
            child.kill()
            child.wait()
        fill(running.statsd, 5000)
        time.sleep(3)
        pages = {name: scrape(running, accept) for name, accept in FORMATS.items()}
        for name, page in pages.items():
            print(f"/metrics as {name}, {page.lines} lines: {page.wall_s * 1e3:.1f} ms, {page.cpu_s * 1e3:.1f} ms of CPU", end=" ")
            print(f"(median of 20; budget {SCRAPE_BUDGET_S * 1e3:g} ms)")
        print(f"{resident_mib(running.pid):.0f} MiB resident")
    if found := failures(taken, pages):
        sys.exit("; ".join(found))


if __name__ == "__main__":
    main()
