"""What a request costs the drift analysis, beside scipy's `ks_2samp` and river's KSWIN: CPU time, a peer a round, by turns.

    python bench/drift_cost.py      ten seconds; a part of `make bench-drift`

Each round measures all of them one after another, and a ratio is the median of the rounds' own: what else the host does meets them
alike. Fails where keeping a value costs the request path more than 2 us, or the analysis more than a tenth of an update of KSWIN.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import cycle
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from river.drift import KSWIN
from scipy.stats import ks_2samp

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About
from aie_agent.analysis.drift.rule import WINDOW
from aie_agent.analysis.drift.watch import StatisticWatch
from aie_agent.sources.statsd_aggregate import Aggregator
from aie_telemetry.statsd import Sample

ROUNDS: Final = 9
MOST_KEPT_US: Final = 2.0
LEAST_RATIO: Final = 10.0

_REQUESTS: Final = 2000
"""Of a round: twenty windows."""


class Contender(NamedTuple):
    """What is measured: in words, how many calls a round has, and one call."""

    what: str
    calls: int
    call: Callable[[], object]


def contenders() -> tuple[Contender, ...]:
    """The parts of what a request costs, then the peers."""
    rng = np.random.default_rng(7)
    made = build({"x": rng.normal(size=1000).tolist()}, About(model="m"))
    column, ordered = made.header.columns[0], np.array(made.values["x"])
    values = rng.normal(size=20_000).tolist()
    window = np.array(values[:WINDOW])
    watch, shown = (StatisticWatch(column, made.values["x"]) for _ in range(2))
    arriving, arriving_too = cycle(values), cycle(values)

    def with_estimate() -> None:
        shown.take(next(arriving_too), 0.0)
        shown.running_distance()

    return (
        Contender("StatsD thread: a sample of a histogram", _REQUESTS, _aggregation("aie_engine_inter_token_seconds", values)),
        Contender("StatsD thread: the same, its value kept", _REQUESTS, _aggregation("aie_engine_output_entropy_nats", values)),
        Contender("analysis: a value, with its windows", _REQUESTS, lambda: watch.take(next(arriving), 0.0)),
        Contender("analysis: the same, and the running estimate", _REQUESTS, with_estimate),
        Contender(f"scipy {version('scipy')}: ks_2samp, a call (m = 1000)", 20, lambda: ks_2samp(ordered, window)),
        Contender(f"river {version('river')}: KSWIN, an update (its own window of 100)", 50, _kswin(values)),
    )


def _aggregation(name: str, values: Sequence[float]) -> Callable[[], object]:
    tags = (("engine", "e"), ("model", "m"))
    samples = cycle([Sample(name, "histogram", abs(value), tags) for value in values[:_REQUESTS]])
    aggregator = Aggregator()
    return lambda: aggregator.add(next(samples))


def _kswin(values: Sequence[float]) -> Callable[[], object]:
    """With its window full: it computes only then."""
    update: Callable[[float], object] = KSWIN(seed=1).update
    for value in values[:WINDOW]:
        update(value)
    rest = cycle(values[WINDOW:])
    return lambda: update(next(rest))


def measured(each: Contender) -> float:
    """Microseconds of CPU a call."""
    call = each.call
    start = time.process_time()
    for _ in range(each.calls):
        call()
    return (time.process_time() - start) / each.calls * 1e6


def rounds(table: Sequence[Contender]) -> list[list[float]]:
    """Microseconds, a row a round and a column a contender; a first round that counts for nothing warms caches."""
    gc.disable()
    try:
        return [[measured(each) for each in table] for _ in range(1 + ROUNDS)][1:]
    finally:
        gc.enable()


def rows(table: Sequence[Contender], found: Sequence[Sequence[float]]) -> Iterator[list[str]]:
    """Of the table: medians, and how many times the analysis' cost that is."""
    for at, each in enumerate(table):
        us = median(row[at] for row in found)
        times = [row[at] / row[_ANALYSIS] for row in found]
        spread = f"{median(times):,.3g} ({min(times):,.3g} to {max(times):,.3g})"
        yield [each.what, f"{us:,.2f}" if us < 100 else f"{us:,.0f}", spread if at > _ANALYSIS else "-"]


_PLAIN, _KEPT, _ANALYSIS, _KSWIN = 0, 1, 3, 5


def cost() -> None:
    """Prints the table, and ends the program where something costs too much."""
    table = contenders()
    found = rounds(table)
    header = ["what", "us of CPU, median", "times the analysis' (least to most)"]
    print(f"\n### A request and statistic, {ROUNDS} rounds\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows(table, found):
        print(f"| {' | '.join(row)} |")
    kept = median(row[_KEPT] - row[_PLAIN] for row in found)
    if kept > MOST_KEPT_US:
        sys.exit(f"keeping a value takes {kept:.2f} us, more than {MOST_KEPT_US:g}")
    ratio = median(row[_KSWIN] / row[_ANALYSIS] for row in found)
    if ratio < LEAST_RATIO:
        sys.exit(f"the analysis takes more than a tenth of what KSWIN does: KSWIN takes {ratio:.1f} times as long")


if __name__ == "__main__":
    cost()
