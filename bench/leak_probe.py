"""How often a true leak of a busy engine would be called retention: by two readings, and by the floors that must confirm them.

    python bench/leak_probe.py

An allocator that leaks and holds more while a step runs, as often as `duty` says, is followed for 100 minutes (the fast lane) or
14 hours; then it is read once before and once after a probe that gives back nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.settings import LeakSettings

MB: Final = 1e6
SAMPLE_S: Final = 10.0
AFTER_S: Final = 1200.0
RUNS: Final = 200


class Case(NamedTuple):
    """How much leaks in a minute, what requests hold in a step, in which share of readings, and for how long it leaks before it is
    asked."""

    leak_bytes: float
    activations_bytes: float
    duty: float
    hours: float


CASES: Final = (
    Case(2.8 * MB, 100 * MB, 0.3, 1.7),
    Case(2.8 * MB, 300 * MB, 0.5, 1.7),
    Case(0.6 * MB, 300 * MB, 0.5, 14.0),
)


class Outcome(NamedTuple):
    """Of one run: whether it was suspect, whether two readings said that half came back, and whether floors confirmed it."""

    suspect: bool
    claimed: bool
    confirmed: bool


def run(case: Case, seed: int) -> Outcome:
    """One engine."""
    random = np.random.default_rng(seed)
    line = Line(LeakSettings(), 0.0)

    def reading(time_s: float) -> float:
        return 10_000 * MB + case.leak_bytes / 60 * time_s + case.activations_bytes * (random.random() < case.duty)

    end_s = case.hours * 3600
    for time_s in np.arange(0.0, end_s, SAMPLE_S):
        line.add(time_s, reading(time_s))
    if line.level == "none":
        return Outcome(False, False, False)
    line.probed(end_s, reading(end_s) - reading(end_s))
    claimed = line.claim is not None
    for time_s in np.arange(end_s, end_s + AFTER_S, SAMPLE_S):
        line.add(time_s, reading(time_s))
    return Outcome(True, claimed, line.take_confirmed() is not None)


def main() -> None:
    """Prints a row for each case."""
    print("| leaks a minute | a step holds | in | asked after | suspect | two readings say retained | called retention |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        found = [run(case, seed) for seed in range(RUNS)]
        suspect, claimed, confirmed = (sum(column) for column in zip(*found, strict=True))
        what = f"{case.leak_bytes / MB:g} MB | {case.activations_bytes / MB:.0f} MB | {case.duty:.0%} | {case.hours:g} h"
        print(f"| {what} | {suspect} of {RUNS} | {claimed} | {confirmed} |")


if __name__ == "__main__":
    main()
