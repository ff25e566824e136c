"""Recordings of which little is known for hours: what a lone half hour between two gaps may tell, and what not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from aie_agent.analysis.leaks.block_floors import NO_ADJUST, Bin, Low
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.settings import TIERS, LeakSettings
from aie_agent.analysis.leaks.verdict import Rise, rise
from aie_agent.analysis.leaks.whole import WholeVerdict, judge
from tests.fakes.leak_patterns import Array

Shape = Callable[[Array], Array]
SeenAt = Callable[[Array], npt.NDArray[np.bool_]]
LEAK_TIER = TIERS[0]


def _judged(hours: float, shape: Shape, is_seen: SeenAt) -> WholeVerdict:
    """A row in five minutes of a shape in MB over hours, under noise of 30 MB, where it is seen."""
    at = np.arange(hours * 12) / 12
    at = at[is_seen(at)]
    sizes = (12_000 + shape(at) + np.random.default_rng(0).normal(0, 30, len(at))) * 1e6
    return judge((Sample(h * 3600, size) for h, size in zip(at.tolist(), sizes.tolist(), strict=True)), Seen(), LeakSettings())


def _peak(hours: Array) -> Array:
    """Of 6 GB at ten hours."""
    return 6000 * np.exp(-((hours - 10) ** 2))


def _lone(at_h: float) -> SeenAt:
    """Nothing from two hours to sixteen but one half hour."""
    return lambda t: (t < 2) | ((t >= at_h) & (t < at_h + 0.5)) | (t >= 16)


@pytest.mark.parametrize("lone_h", [9.5, 10.0])
def test_a_lone_half_hour_at_a_peak_hides_no_leak(lone_h: float) -> None:
    verdict = _judged(48, lambda t: _peak(t) + 168 * np.maximum(t - 16, 0), _lone(lone_h))
    assert verdict.verdict == "leak", verdict.evidence


def test_a_peak_between_gaps_is_no_leak() -> None:
    """Null: the same without a leak, and memory that rises no further than where it stood for two hours between them."""
    assert _judged(48, _peak, _lone(10.0)).verdict == "none"
    back = _judged(48, lambda t: np.where(t < 16, 5500, 168 * (t - 16)), lambda t: (t < 2) | ((t >= 9) & (t < 11)) | (t >= 16))
    assert back.verdict == "none", back.evidence


@pytest.mark.parametrize(("from_h", "told"), [(67, "leak"), (60, "suspect")])
def test_rows_that_lay_further_apart_before_make_no_half_day_of_six_hours(from_h: int, told: str) -> None:
    """A row an hour for 60 h, and one in five minutes at the end. What stands still is seen for 6 h of 13; null: for all."""
    verdict = _judged(
        73,
        lambda t: 300 * np.minimum(t, 60),
        lambda t: ((t < 60) & (np.abs(t - np.round(t)) < 0.01)) | (t >= from_h),
    )
    assert verdict.verdict == told, verdict.evidence


def _bins(known: dict[int, float]) -> list[Bin]:
    return [Bin(number, Low(size), size, 1e6, 0.0) for number, size in known.items()]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ({3: 9e9}, True),
        ({3: 9e9, 4: 9e9}, False),
        ({3: 9e9, 7: 2e9, 8: 2e9}, True),
        ({23: 9e9}, False),
    ],
    ids=["one of eight", "two of eight", "a peak in an hour", "all there is"],
)
def test_blocks_that_were_hardly_seen_are_no_ground(before: dict[int, float], told: bool) -> None:
    """Of a rise of 48 half hours from number 24 on, from 4 GB to 8 GB; blocks before it end with number 23."""
    rises = {24 + at: 4e9 + 4e9 * (at / 48) for at in range(48)}
    low = {} if 23 in before else dict.fromkeys(range(16, 24), 2e9)
    found = rise(_bins({**before, **low, **rises}), LEAK_TIER, NO_ADJUST, LeakSettings())
    assert isinstance(found, Rise) is told, found
