"""What reading GPUs costs: the agent's NVML source, nvitop's API and gpustat on the same simulated GPUs in the same run.

    python bench/gpu_cost.py [--gpus 8] [--cycles 25] [--budget-ms 4]

Each reads every GPU once a cycle, with the processes on them, in a process of its own, in turns. The stand-in library answers at
once (its latencies are 0), so what is measured is the reader. CPU is of the whole process, threads included.
Exits with 1 when the agent's source takes more than the budget, holds more descriptors at the end than at the start, or tells fewer
numbers than a peer: cheaper and less is no comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aie_agent import simulate

ROUNDS = 2
CHILD = Path(__file__).with_name("gpu_cost_reader.py")
READERS = ("aie-agent", "nvitop", "gpustat")
PROCESSES_PER_GPU = 2


class Cost(NamedTuple):
    """Of one reader: CPU milliseconds a cycle, resident memory, descriptors at the first and the last cycle, numbers a cycle.

    Of several rounds: descriptors are those of the round in which they rose most, and `numbers` the fewest that one told."""

    cpu_ms: float
    resident_mib: float
    descriptors: tuple[int, int]
    numbers: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument(
        "--cycles", type=int, default=25, help="of each reader in each of two rounds; gpustat sleeps through most of the time"
    )
    parser.add_argument("--budget-ms", type=float, default=4.0, help="CPU time of the agent's source a cycle")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        costs = measure(Path(scratch) / "gpus", options.gpus, options.cycles)
    print(f"{options.gpus} simulated H100s, {options.cycles} cycles x {ROUNDS} rounds")
    for name, cost in costs.items():
        print(
            f"{name:10} {cost.cpu_ms:7.2f} ms CPU a cycle  {cost.resident_mib:6.1f} MiB resident"
            f"  descriptors {cost.descriptors[0]} -> {cost.descriptors[1]}  {cost.numbers} numbers"
        )
    for peer in READERS[1:]:
        print(f"aie-agent / {peer}: {costs['aie-agent'].cpu_ms / costs[peer].cpu_ms:.2f}")
    failures = failures_of(costs, options.budget_ms)
    for failure in failures:
        print(f"FAILED: {failure}")
    return int(bool(failures))


def failures_of(costs: Mapping[str, Cost], budget_ms: float) -> list[str]:
    """What the agent's source fails at, one line each."""
    own = costs["aie-agent"]
    first, last = own.descriptors
    richest = max(READERS[1:], key=lambda name: costs[name].numbers)
    wrong = (
        (own.cpu_ms > budget_ms, f"{own.cpu_ms:.2f} ms is more than {budget_ms:g} ms"),
        (last > first, f"descriptors rose from {first} to {last}"),
        (own.numbers <= costs[richest].numbers, f"{own.numbers} numbers, and {richest} tells {costs[richest].numbers}"),
    )
    return [text for is_wrong, text in wrong if is_wrong]


def measure(state_file: Path, gpus: int, cycles: int) -> dict[str, Cost]:
    """All readers in turns, each as its rounds together show it."""
    workers = [subprocess.Popen(["sleep", "infinity"]) for _ in range(gpus * PROCESSES_PER_GPU)]
    try:
        with simulate.Controller.create(state_file, gpus, "H100") as controller:
            controller.delay("nvmlDeviceGetPcieThroughput", 0.0)
            for gpu in range(gpus):
                controller.set_load(gpu, 0.6, 0.2)
                own = workers[gpu * PROCESSES_PER_GPU : (gpu + 1) * PROCESSES_PER_GPU]
                controller.set_processes(gpu, [simulate.Process(worker.pid, 20 << 30) for worker in own])
            rounds: dict[str, list[Cost]] = {name: [] for name in READERS}
            for _ in range(ROUNDS):
                for name in READERS:
                    rounds[name].append(_run(name, state_file, cycles))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return {name: over_rounds(found) for name, found in rounds.items()}


def over_rounds(rounds: Sequence[Cost]) -> Cost:
    """The least CPU and memory, since the host's other work only adds to them; the worst leak, and the fewest numbers."""
    return Cost(
        min(cost.cpu_ms for cost in rounds),
        min(cost.resident_mib for cost in rounds),
        max((cost.descriptors for cost in rounds), key=lambda pair: pair[1] - pair[0]),
        min(cost.numbers for cost in rounds),
    )


def _run(name: str, state_file: Path, cycles: int) -> Cost:
    environment = os.environ | simulate.environment(state_file)
    done = subprocess.run(
        [sys.executable, CHILD, name, str(cycles)], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise SystemExit(f"gpu_cost: {name} failed: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    return Cost(
        statistics.median(report["cpu_ms"]), report["resident_bytes"] / 2**20, tuple(report["descriptors"]), report["numbers"]
    )


if __name__ == "__main__":
    sys.exit(main())
