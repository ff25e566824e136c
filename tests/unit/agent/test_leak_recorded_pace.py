"""The same memory, recorded at a row in ten minutes, an hour or two: what rules call half a day is time, and no count of rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from aie_agent.analysis.leaks.block_floors import NO_ADJUST
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.lives import Repeats
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import WholeVerdict, judge
from tests.fakes.leak_patterns import Array

_MB: Final = 1e6
Shape = Callable[[Array], Array]
PACES_S: Final = pytest.mark.parametrize("step_s", [600, 3600, 7200])


def _judged(
    days: float, shape: Shape, step_s: int, load: Shape | None = None, event: tuple[float, str] | None = None, seed: int = 0
) -> WholeVerdict:
    """A file of a shape in MB over hours, under noise of 30 MB."""
    hours = np.arange(days * 86_400 / step_s) * step_s / 3600
    sizes = (shape(hours) + np.random.default_rng(seed).normal(0, 30, len(hours))) * _MB
    loads = [None] * len(hours) if load is None else load(hours).tolist()
    named = {} if event is None else {int(event[0] * 3600 / step_s): event[1]}
    rows = zip(hours.tolist(), sizes.tolist(), loads, strict=True)
    samples = (Sample(h * 3600, size, load=at, event=named.get(i, "")) for i, (h, size, at) in enumerate(rows))
    return judge(samples, Seen(), LeakSettings())


def _two_lives(first_h: float, second_h: float) -> Shape:
    """Of 168 MB/h; the second one stands still at its end."""
    return lambda t: 12_000 + 168 * np.where(t < first_h, t, np.minimum(t - first_h, second_h))


@PACES_S
@pytest.mark.parametrize(("still_h", "told"), [(30, "suspect"), (80, "none")])
def test_a_life_that_stands_after_one_that_was_restarted(still_h: float, told: str, step_s: int) -> None:
    verdict = _judged((64 + still_h) / 24, _two_lives(30, 34), step_s, event=(30, "restart"))
    assert verdict.verdict == told, verdict.evidence


@PACES_S
def test_a_cache_that_filled_in_office_hours_is_none(step_s: int) -> None:
    """It stands for 48 half hours with load, which are 12 rows of two hours each."""

    def load(hours: Array) -> Array:
        at = np.mod(hours, 24)
        return np.where((hours < 64) | ((at >= 9) & (at < 18)), 20.0, 0.0)

    verdict = _judged(8.5, _two_lives(30, 34), step_s, load, (30, "restart"))
    assert verdict.verdict == "none", verdict.evidence
    assert any("a cache or pool that fills" in sentence for sentence in verdict.evidence)


@PACES_S
def test_a_leak_that_a_restart_cut_short_and_that_has_load_stays_one(step_s: int) -> None:
    """Null: for 16 h of load the life after it stands still, which is less than a day of it."""
    load = np.vectorize(lambda hour: 20.0 if hour < 80 else 0.0)
    assert _judged(5, _two_lives(30, 34), step_s, load, (30, "restart")).verdict == "leak"


@PACES_S
def test_what_stands_still_for_half_a_day_is_suspect(step_s: int) -> None:
    verdict = _judged(44 / 24, lambda t: 12_000 + 300 * np.minimum(t, 30), step_s)
    assert verdict.verdict == "suspect", verdict.evidence
    assert any("stood still for the last half day" in sentence for sentence in verdict.evidence)
    assert _judged(44 / 24, lambda t: 12_000 + 300 * t, step_s).verdict == "leak"


_LIVES: Final = re.compile(r"physical memory rises in each of \d+ lives by ([\d.]+) GB, at (\d+) MB/h from ([\d.]+) GB")


@pytest.mark.parametrize("step_s", [600, 2100, 2700, 3000, 3600, 4500, 5400, 6300, 7200])
@pytest.mark.parametrize(("life_h", "risen_gb"), [(24, 10.0), (22, 8.75), (20, 7.5)])
def test_crashes_each_day_are_told(life_h: int, risen_gb: float, step_s: int) -> None:
    """500 MB/h from 20 GB, for ten days: from the first sixth of each life to its last, whatever the number of its rows is."""
    verdict = _judged(10, lambda t: 20_000 + 500 * np.mod(t, life_h), step_s)
    assert verdict.verdict == "not_enough_data", verdict.evidence
    told = _LIVES.match(verdict.evidence[0])
    assert told is not None
    risen, rate, first = map(float, told.groups())
    assert risen == pytest.approx(risen_gb, rel=0.02)
    assert rate == pytest.approx(500, rel=0.025)
    assert first == pytest.approx(20.0, abs=0.5)


@pytest.mark.parametrize("phase_min", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("life_h", [8.5, 9.0, 10.5, 12.0])
def test_weights_that_load_in_view_are_no_level_of_a_life(life_h: float, phase_min: float) -> None:
    """They take three minutes of each life; the rows that see it are there at another moment each time. Of lives of 9 and 12 h the
    half hour in which they load is one of those of six blocks."""

    def shape(hours: Array) -> Array:
        up = np.mod(hours + phase_min / 60 + 0.003 * np.floor(hours / life_h), life_h)
        return np.minimum(6700 * up * 60, 20_000 + 600 * up)

    verdict = _judged(4 * life_h / 24, shape, 60)
    assert verdict.verdict == "suspect", verdict.evidence
    told = _LIVES.match(verdict.evidence[0])
    assert told is not None
    assert float(told.group(3)) == pytest.approx(20.0, abs=0.5)


@pytest.mark.parametrize(("seen", "told"), [(6, "suspect"), (3, "not_enough_data")])
def test_restarts_of_which_rows_see_most_are_told(seen: int, told: str) -> None:
    """Of nine; null: of a few, so that a process that lives on clears a cache in the others."""

    def shape(hours: Array) -> Array:
        up = np.mod(hours, 10.5)
        return np.where((hours >= 10.5 * (9 - seen)) & (up < 0.04), 500, 20_000 + 1000 * up)

    verdict = _judged(4, shape, 60)
    assert verdict.verdict == told, verdict.evidence
    assert _LIVES.match(verdict.evidence[0])
    assert ("falls at restarts" in verdict.evidence[0]) is (told == "suspect")


@pytest.mark.parametrize("life_h", [9.0, 12.0, 24.0])
def test_a_warm_up_hides_no_life(life_h: float) -> None:
    """0.9 GB in the first ten minutes of each, of which a row in five minutes sees two."""

    def shape(hours: Array) -> Array:
        up = np.mod(hours, life_h)
        return 20_000 + 900 * np.minimum(up * 6, 1) + 300 * up

    verdict = _judged(4 * life_h / 24, shape, 300)
    assert verdict.verdict == "none", "by less than a third of the level"
    told = _LIVES.match(verdict.evidence[0])
    assert told is not None
    assert float(told.group(2)) == pytest.approx(300, rel=0.05)


@pytest.mark.parametrize("step_s", [600, 2700, 4500, 5400, 7200])
def test_lives_that_rise_by_less_than_a_third_are_none(step_s: int) -> None:
    """Null: 16 h each, of which a cache is likelier; the same sentence."""
    verdict = _judged(10, lambda t: 20_000 + 500 * np.mod(t, 16), step_s)
    assert verdict.verdict == "none"
    assert _LIVES.match(verdict.evidence[0])


@PACES_S
@pytest.mark.parametrize("phase", [0.1, 0.35, 0.6])
@pytest.mark.parametrize(
    "shape",
    [
        lambda t: 12_000 + 0 * t,
        lambda t: 18_000 - 5000 * np.cos(2 * np.pi * t / 24),
        lambda t: 13_000 - 9000 * (np.mod(t, 24) >= 10),
        lambda t: 20_000 + 3000 * np.mod(t / 6, 1),
        lambda t: 20_000 + 6000 * np.minimum(t / 8, 1),
        lambda t: 20_000 + 6000 * (1 - np.exp(-t / 20)),
    ],
    ids=["flat", "a day's traffic", "ten hours of it", "an allocator", "a pool that fills", "slower and slower"],
)
def test_what_is_normal_is_nothing_at_any_pace(shape: Shape, phase: float, step_s: int) -> None:
    """Null."""
    verdict = _judged(8, lambda t: shape(t + 24 * phase), step_s, seed=int(10 * phase))
    assert verdict.verdict == "none", verdict.evidence


def test_two_weeks_are_kept_at_any_pace() -> None:
    repeats = Repeats(LeakSettings())
    for hour in range(40 * 24):
        repeats.add(Sample(hour * 3600.0, 20e9), 0)
    assert len(repeats.bins) == 14 * 24
    assert repeats.begin_s(repeats.bins[0].number) == 26 * 86_400.0


@pytest.mark.parametrize(("high_h", "times"), [(6, 9), (10, None)])
def test_bursts_are_of_eight_hours(high_h: int, times: int | None) -> None:
    """Of a row an hour: 4 GB, 12 GB for some hours of each day, and back."""
    repeats = Repeats(LeakSettings())
    for hour in range(10 * 24):
        repeats.add(Sample(hour * 3600.0, 12e9 if hour % 24 >= 24 - high_h else 4e9), 0)
    bursts = repeats.bursts(NO_ADJUST)
    assert (None if bursts is None else bursts.times) == times
