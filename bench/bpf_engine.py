"""What the sets that are on by default take from the reference engine under load, and what the child takes itself."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.messages import Coverage, Report
from bpf_client import Client, target

CLIENTS: Final = 8
TOKENS: Final = 128
# Attaching takes some hundredths of a second, detaching a tenth for each probe.
_SETTLE_S: Final = 1.5
_ATTACHED_WITHIN_S: Final = 60.0
# Student's t, two-sided 95 %, for 1 to 10 degrees of freedom.
_T_975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_READY: Final = re.compile(r"aie-engine: ready on (http://\S+),")
_SERVE: Final = [sys.executable, "-m", "aie_engine.cli", "serve", "--model", "smollm2", "--port", "0", "--statsd", "off"]


class Done(NamedTuple):
    """What an engine has done: wall-clock seconds, seconds that steps took, steps, seconds of CPU."""

    wall_s: float
    step_s: float
    steps: float
    cpu_s: float

    def since(self, before: Done) -> Done:
        """The difference."""
        return Done(*(now - then for now, then in zip(self, before, strict=True)))


class Engine:
    """The engine, kept busy by eight clients."""

    def __init__(self, tgid: int, url: str) -> None:
        self.tgid = tgid
        self._url = url
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def done(self) -> Done:
        """All since the engine began."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        step_s, steps = (
            sum(map(float, re.findall(rf"^aie_engine_step_seconds_{part}\S* (\S+)", page, re.MULTILINE)))
            for part in ("sum", "count")
        )
        fields = Path(f"/proc/{self.tgid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return Done(time.perf_counter(), step_s, steps, cpu_s)

    def close(self) -> None:
        """Ends the clients when their answers are there."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        body = json.dumps({"model": "smollm2", "prompt": f"{number} is", "max_tokens": TOKENS, "seed": number, "temperature": 0.8})
        while not self._over.is_set():
            request = urllib.request.Request(f"{self._url}/v1/completions", body.encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """The engine as its users start it, under load."""
    with subprocess.Popen(_SERVE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            match = _READY.match(process.stdout.readline())
            if match is None:
                raise RuntimeError("the engine did not start")
            running = Engine(process.pid, match[1])
            try:
                yield running
            finally:
                running.close()
        finally:
            process.kill()


class EngineCost(NamedTuple):
    """Of slices with probes: hits and seconds by set, wall-clock and step seconds. How much longer a step was by the clock, and how
    much more CPU it took, by pair."""

    hits: Counter[str]
    spent_s: dict[str, float]
    wall_s: float
    step_s: float
    longer: list[float]
    more_cpu: list[float]

    @property
    def share(self) -> float:
        """Of the time that steps took: every hit of any thread is taken to hold up a step."""
        return sum(self.spent_s.values()) / self.step_s

    def lines(self) -> list[str]:
        """What is printed."""
        lines = [f"{'':16} {'hits/s':>9} {'us/s':>9} {'of steps':>9}"]
        for name in sorted(self.hits):
            per_s, us_s = self.hits[name] / self.wall_s, self.spent_s[name] / self.wall_s * 1e6
            lines.append(f"{name:16} {per_s:9.0f} {us_s:9.0f} {self.spent_s[name] / self.step_s:9.3%}")
        lines.append(f"{'together':36} {self.share:9.3%}")
        for what, values in (("time", self.longer), ("CPU", self.more_cpu)):
            middle, low, high = interval(values)
            lines.append(f"{what} of a step: {middle:+.2%}, 95 % interval {low:+.2%} .. {high:+.2%}, of {len(values)} pairs")
        return lines


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of 2 to 11 values and its 95 % interval, by Student's t."""
    middle = statistics.mean(values)
    half = _T_975[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return middle, middle - half, middle + half


def engine_cost(client: Client, running: Engine, pairs: int, slice_s: float) -> EngineCost:
    """Slices with and without the probes in turn, in the order with, without, without, with, ..."""
    hits, spent_s = Counter[str](), defaultdict[str, float](float)
    wall_s = step_s = 0.0
    longer, more_cpu = [], []
    for pair in range(pairs):
        done: dict[bool, Done] = {}
        for probed in (True, False) if pair % 2 == 0 else (False, True):
            reports, done[probed] = _slice(client, running, probed, slice_s)
            if probed:
                wall_s, step_s = wall_s + done[probed].wall_s, step_s + done[probed].step_s
                for cost in (cost for report in reports for cost in report.costs):
                    hits[cost.set] += cost.hits
                    spent_s[cost.set] += cost.seconds
        with_, without = done[True], done[False]
        longer.append(with_.step_s / with_.steps / (without.step_s / without.steps) - 1)
        more_cpu.append(with_.cpu_s / with_.steps / (without.cpu_s / without.steps) - 1)
    return EngineCost(hits, spent_s, wall_s, step_s, longer, more_cpu)


def _slice(client: Client, running: Engine, probed: bool, slice_s: float) -> tuple[list[Report], Done]:
    client.watch([target("bench", running.tgid)] if probed else [])
    client.reports_for(_SETTLE_S)
    before = running.done()
    reports = client.reports_for(slice_s)
    return reports, running.done().since(before)


class ChildCost(NamedTuple):
    """What the child takes while it watches `processes`, which do what `beside` says. `read_ms` is the median of the readings' CPU
    time, which is what they cost: by the clock (`wall_ms`, the median, too) they also wait for a CPU where the host is shared."""

    beside: str
    processes: int
    sets_on: list[str]
    resident_mib: float
    read_ms: float
    slowest_read_ms: float
    wall_ms: float
    cpu_share: float

    def lines(self, resident_mib: float, read_ms: float) -> list[str]:
        """What is printed, beside the budgets."""
        return [
            f"the child beside {self.processes} processes, {self.beside}; {', '.join(self.sets_on)} attached",
            f"resident {self.resident_mib:.0f} MiB (budget {resident_mib:.0f}); maps read in {self.read_ms:.2f} ms of CPU "
            f"by the median, at most {self.slowest_read_ms:.2f} (budget {read_ms:.0f}); {self.wall_ms:.2f} ms by the clock",
            f"{self.cpu_share:.2%} of a core, {self.cpu_share * 1000:.2f} ms a cycle: beside the maps it looks at budgets five "
            "times, and processes for what they have loaded",
        ]


@contextlib.contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    """Processes that do nothing."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _sets_on(coverage: Sequence[Coverage]) -> set[str]:
    return {row.set for row in coverage if row.state in ("on", "part")}


def child_cost(client: Client, beside: str, tgids: Sequence[int], seconds: float) -> ChildCost:
    """Of a child that watches these processes, of which one has CUDA; once that is probed: to compile the programs is no upkeep."""
    client.watch([])  # so that what is covered then is told, though it may be the same as before
    client.reports_for(_SETTLE_S)
    client.watch(target(f"bench-{number % 8}", tgid) for number, tgid in enumerate(tgids))
    first = client.reports(lambda report: "cuda_sync" in _sets_on(report.coverage or ()), _ATTACHED_WITHIN_S)
    first += client.reports_for(3 * _SETTLE_S)
    reports = client.reports_for(seconds)
    coverage = next((report.coverage for report in reversed([*first, *reports]) if report.coverage is not None), ())
    reads_ms = [report.read_cpu_s * 1000 for report in reports]
    return ChildCost(
        beside,
        len(tgids),
        sorted(_sets_on(coverage)),
        max(report.resident_bytes for report in reports) / 2**20,
        statistics.median(reads_ms),
        max(reads_ms),
        statistics.median(report.read_s * 1000 for report in reports),
        sum(report.cpu_s for report in reports) / sum(report.period_s for report in reports),
    )
