"""How often AieMemoryGrows is wrong: its rule on simulated years of what is normal, and on memory that wanders at random."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tests.fakes.alert_files import ALERT_RULES

Series = NDArray[np.float64]
EXPRESSION: Final = next(rule.table["expr"] for rule in ALERT_RULES if rule.name == "AieMemoryGrows")
RISE_BYTES: Final = float(re.findall(r"> (60e6)", EXPRESSION)[0])
RATE_BYTES_PER_HOUR: Final = float(re.findall(r"/ 24 > (\S+)", EXPRESSION)[0])
LATEST: Final = float(re.findall(r"\) \* (\d+) >", EXPRESSION)[0])
BLOCKS: Final = EXPRESSION.count(f"> {60}e6") + 1
"""The last must have half of its share, which is as much and more: the rule does not ask for both."""
STEP_MIN: Final = 5
BLOCK: Final = 4 * 60 // STEP_MIN
DAYS: Final = 1000
MINUTES: Final = np.arange(DAYS * 24 * 60 // STEP_MIN) * float(STEP_MIN)


def alarms(memory: Series) -> int:
    """How often the rule begins to hold."""
    floors = sliding_window_view(memory, BLOCK).min(axis=1)
    shifted = [floors[(BLOCKS - k) * BLOCK : len(floors) - k * BLOCK or None] for k in range(BLOCKS + 1)]
    rise = shifted[0] - shifted[-1]
    holds = (rise / (BLOCKS * 4) > RATE_BYTES_PER_HOUR) & ((shifted[0] - shifted[1]) * LATEST > rise)
    for newer, older in pairwise(shifted):
        holds &= newer - older > RISE_BYTES
    begins = np.flatnonzero(holds & ~np.concatenate([[False], holds[:-1]]))
    return int(np.sum(np.diff(begins, prepend=-BLOCK) > BLOCK // 8))  # what ends for half an hour is kept firing


def test_the_rule_is_of_six_blocks() -> None:
    assert BLOCKS == 6


def test_a_leak_is_told() -> None:
    assert alarms(8e9 + MINUTES[:1000] * 1e6) == 1


@pytest.mark.parametrize(
    "memory",
    [
        8e9 + 2e9 * np.sin(2 * np.pi * MINUTES / 1440),
        8e9 + 1e9 * (MINUTES % 1440) / 1440,
        8e9 + 4e9 * (MINUTES > 5 * 1440),
        8e9 + 4e9 * (1 - np.exp(-MINUTES / 300)),
        8e9 + 100e3 * MINUTES,
    ],
    ids=["load by day", "flushed by night", "a step", "a cache that fills in hours", "slower than the limit"],
)
def test_what_is_normal_is_silent(memory: Series) -> None:
    noise = np.random.default_rng(1).normal(0, 100e6, len(MINUTES))
    assert alarms(memory + noise) == 0


@pytest.mark.parametrize(("bytes_per_minute", "at_most"), [(20e6, DAYS // 6), (10e6, DAYS // 17), (5e6, 0)])
def test_memory_that_wanders(bytes_per_minute: float, at_most: int) -> None:
    """What the runbook says: once a week at 20 MB a minute, once in three weeks at 10, never at 5."""
    steps = np.random.default_rng(1).normal(0, bytes_per_minute * STEP_MIN**0.5, len(MINUTES))
    assert alarms(np.cumsum(steps)) <= at_most
