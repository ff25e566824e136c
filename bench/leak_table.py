"""Leak detection beside what is done elsewhere, on eighteen patterns of memory over 72 hours.

    python bench/leak_table.py [--runs 112] [--peers 4] [--workers N] [--wander]

Each pattern is drawn `--runs` times (112 times twelve normal patterns are 1344 runs without a leak); each line of memory goes
sample by sample through the analysis that the agent and `aie-agent leak` use, with shipped defaults. Beside it, on `--peers` runs
each:

* OLS: the slope of the last hour is above 0 by 2.6 standard errors (what a trend over a dashboard's window does);
* Mann-Kendall over the last hour, at the same level;
* Prometheus' `predict_linear` of six hours, that says that 24 GB (twice the base) are passed within 72 hours.

Peers are asked every ten minutes after a warm-up of half an hour. In a column stands in which share of the runs there was an alarm,
and when the first one came, as the median (h after the beginning; for "LEAK after 36 h" alarms before that are false, and count as
such). Exits with 1 where a normal run was called a leak, or a leak was not called one.

`--wander` prints another table instead: memory that wanders around a level and forgets slowly (Ornstein-Uhlenbeck, stationary from
the beginning), by its time constant and standard deviation. Nothing is judged there: it says how often such memory is called a
leak that it is not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.settings import LeakSettings
from tests.fakes.leak_patterns import HOURS, NOISE_MB, PATTERNS, STEP_S, Array, Trace, trace

_HOUR: Final = 60  # samples
_Z: Final = 2.6
_CAPACITY_BYTES: Final = 24e9
_AHEAD_S: Final = 72 * 3600.0
_EVERY: Final = 10
_WARM_UP_S: Final = 1800.0


class Alarms(NamedTuple):
    """When each method first raised an alarm, in hours; None: never."""

    suspect: float | None
    leak: float | None
    ols: float | None = None
    mann_kendall: float | None = None
    predict: float | None = None


def ours(recorded: Trace) -> tuple[float | None, float | None]:
    """When the line was first suspect, and first a leak."""
    line = Line(LeakSettings(), _WARM_UP_S)
    load = [0.0] * len(recorded.times_s) if recorded.load is None else recorded.load.tolist()
    first: dict[str, float] = {}
    for time_s, size, requests in zip(recorded.times_s.tolist(), recorded.size_bytes.tolist(), load, strict=True):
        if time_s >= _WARM_UP_S:
            line.add(time_s, size, requests)
            if line.level != "none":
                first.setdefault(line.level, time_s / 3600)
    return first.get("suspect"), first.get("leak")


def _windows(recorded: Trace, length: int) -> tuple[Array, Array]:
    """Every tenth window of so many samples after the warm-up: when each ended, in hours, and its sizes."""
    ends = np.arange(length - 1, len(recorded.times_s), _EVERY)
    ends = ends[recorded.times_s[ends] >= _WARM_UP_S]
    sizes = np.lib.stride_tricks.sliding_window_view(recorded.size_bytes, length)[ends - (length - 1)]
    return recorded.times_s[ends] / 3600, sizes


def ols(recorded: Trace) -> float | None:
    """The first hour whose slope is above 0."""
    hours, sizes = _windows(recorded, _HOUR)
    x = np.arange(_HOUR) - (_HOUR - 1) / 2
    slope = sizes @ x / (x @ x)
    rest = sizes - sizes.mean(axis=1, keepdims=True) - slope[:, None] * x
    error = np.sqrt((rest**2).sum(axis=1) / (_HOUR - 2) / (x @ x))
    return _first(hours, slope > _Z * error)


def mann_kendall(recorded: Trace) -> float | None:
    """The first hour whose Kendall statistic is above 0."""
    hours, sizes = _windows(recorded, _HOUR)
    upper = np.triu_indices(_HOUR, 1)
    s = np.sign(sizes[:, upper[1]] - sizes[:, upper[0]]).sum(axis=1)
    n = _HOUR
    return _first(hours, (s - 1) / np.sqrt(n * (n - 1) * (2 * n + 5) / 18) > _Z)


def predict_linear(recorded: Trace) -> float | None:
    """The first six hours whose straight line passes the capacity within 72 hours."""
    length = 6 * _HOUR
    hours, sizes = _windows(recorded, length)
    x = (np.arange(length) - (length - 1) / 2) * 60.0
    slope = sizes @ x / (x @ x)
    return _first(hours, sizes.mean(axis=1) + slope * (x[-1] + _AHEAD_S) > _CAPACITY_BYTES)


def _first(hours: Array, alarms: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float | None:
    return float(hours[np.argmax(alarms)]) if alarms.any() else None


def one(task: tuple[int, int, bool]) -> Alarms:
    """One run of a pattern, by its number and seed, with the peers or without."""
    number, seed, with_peers = task
    recorded = trace(PATTERNS[number], np.random.default_rng(seed))
    found = ours(recorded)
    if not with_peers:
        return Alarms(*found)
    peers: tuple[Callable[[Trace], float | None], ...] = (ols, mann_kendall, predict_linear)
    return Alarms(*found, *(peer(recorded) for peer in peers))


_WANDER_HOURS: Final = (6, 12, 24, 36)
_WANDER_GB: Final = (0.5, 1.0, 2.0)


def wandering(tau_h: float, sd_bytes: float, random: np.random.Generator) -> Trace:
    """72 hours of memory around 20 GB that forgets with a time constant, under the noise of the patterns."""
    count = HOURS * _HOUR
    kept = np.exp(-1 / (tau_h * _HOUR))
    steps = random.normal(0.0, sd_bytes * np.sqrt(1 - kept**2), count)
    level: Array = np.zeros(count, dtype=np.float64)
    at = random.normal(0.0, sd_bytes)
    for index, step in enumerate(steps):
        at = level[index] = kept * at + step
    sizes = 20e9 + level + random.normal(0.0, NOISE_MB * 1e6, count)
    return Trace(np.arange(count, dtype=np.float64) * STEP_S, np.asarray(sizes, dtype=np.float64))


def one_wandering(task: tuple[float, float, int]) -> Alarms:
    """One run of memory that wanders, by time constant, GB and seed."""
    tau_h, sd_gb, seed = task
    return Alarms(*ours(wandering(tau_h, sd_gb * 1e9, np.random.default_rng(seed))))


def _print_wandering(pool: ProcessPoolExecutor, runs: int) -> None:
    print("| time constant | standard deviation | suspect | leak |")
    print("| --- | --- | --- | --- |")
    for tau_h in _WANDER_HOURS:
        for sd_gb in _WANDER_GB:
            found = list(pool.map(one_wandering, [(tau_h, sd_gb, seed) for seed in range(runs)], chunksize=4))
            columns = ([each.suspect for each in found], [each.leak for each in found])
            print(f"| {tau_h} h | {sd_gb:g} GB | {' | '.join(map(_cell, columns))} |", flush=True)


def _cell(hours: Sequence[float | None]) -> str:
    known = [each for each in hours if each is not None]
    if not known:
        return "0"
    return f"{len(known) / len(hours):.0%} {median(known):.1f} h"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=112)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--wander", action="store_true", help="the table of memory that wanders instead")
    arguments = parser.parse_args()
    if arguments.wander:
        with ProcessPoolExecutor(arguments.workers) as pool:
            _print_wandering(pool, arguments.runs)
        return 0
    print(f"{arguments.runs} runs of 72 h a pattern, one sample a minute, noise 30 MB; peers {arguments.peers} runs")
    print("| pattern | suspect | leak | OLS 1 h | Mann-Kendall 1 h | predict_linear 6 h |")
    print("| --- | --- | --- | --- | --- | --- |")
    wrong = 0
    false = 0
    with ProcessPoolExecutor(arguments.workers) as pool:
        for number, pattern in enumerate(PATTERNS):
            tasks = [(number, seed, seed < arguments.peers) for seed in range(arguments.runs)]
            found = list(pool.map(one, tasks, chunksize=4))
            peers = found[: arguments.peers]
            columns = [[each.suspect for each in found], [each.leak for each in found]]
            columns += [[each.ols for each in peers], [each.mann_kendall for each in peers], [each.predict for each in peers]]
            print(f"| {pattern.name} | {' | '.join(map(_cell, columns))} |", flush=True)
            missed = sum((each.leak is not None) is not pattern.is_leak for each in found)
            wrong += missed
            false += 0 if pattern.is_leak else missed
    normal = sum(not pattern.is_leak for pattern in PATTERNS) * arguments.runs
    print(
        f"false leaks: {false} of {normal} normal runs; missed leaks: {wrong - false} of {len(PATTERNS) * arguments.runs - normal}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
