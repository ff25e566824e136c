"""The pure parts of the leak analysis: slopes against scipy, floors, load, and what each rule refuses."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aie_agent.analysis.leaks.block_floors import Adjust, Bin, Floor, Low, block_floors, failed, increments, noise, scatter
from aie_agent.analysis.leaks.events import gives_back, restarts_warm_up
from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.load_adjust import LoadFit
from aie_agent.analysis.leaks.settings import SUSPECT, TIERS, LeakSettings
from aie_agent.analysis.leaks.theil_sen import theil_sen
from aie_agent.analysis.leaks.verdict import Rise, fast_rise, rise

SETTINGS = LeakSettings()
LEAK_TIER = TIERS[0]
MB = 1e6
FINITE = st.floats(-1e9, 1e9, allow_nan=False).map(lambda value: round(value, 3))


@given(st.lists(FINITE, min_size=4, max_size=24, unique=True))
def test_theil_sen_is_scipys(values: list[float]) -> None:
    times = [float(index) for index in range(len(values))]
    ours = theil_sen(times, values, z=float(stats.norm.ppf(0.975)), correlation=1.0)
    theirs = stats.theilslopes(values, times, alpha=0.95)
    assert ours.value == pytest.approx(theirs.slope, rel=1e-9, abs=1e-9)
    assert ours.low == pytest.approx(theirs.low_slope, rel=1e-9, abs=1e-9)
    assert ours.high == pytest.approx(theirs.high_slope, rel=1e-9, abs=1e-9)


def test_theil_sen_of_one_moment() -> None:
    with pytest.raises(ValueError, match="no two times"):
        theil_sen([1.0, 1.0], [1.0, 2.0])


def test_the_interval_holds_the_slope_as_often_as_it_says() -> None:
    """One side is 10 %: of 400 lines with noise, the lower bound is above the slope in 2 to 18 %."""
    random = np.random.default_rng(0)
    times = [float(index) for index in range(12)]
    noisy = ([3.0 * t + error for t, error in zip(times, random.normal(0, 5, 12), strict=True)] for _ in range(400))
    above = sum(theil_sen(times, values, correlation=1.0).low > 3.0 for values in noisy)
    assert 8 <= above <= 72


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e9)), min_size=12, max_size=50))
def test_load_fit_is_least_squares(rows: list[tuple[float, float]]) -> None:
    fit = LoadFit()
    for load, size in rows:
        fit.add(load, size)
    found = fit.bytes_per_load()
    assert found >= 0
    if found > 0:
        theirs = stats.linregress([load for load, _ in rows], [size for _, size in rows])
        assert found == pytest.approx(theirs.slope, rel=1e-3)


def test_load_that_has_nothing_to_do_with_memory_is_not_taken_off() -> None:
    random = np.random.default_rng(0)
    fits = []
    for _ in range(200):
        fit = LoadFit()
        for load, size in zip(random.normal(0, 5, 100), random.normal(0, 30 * MB, 100), strict=True):
            fit.add(load, size)
        fits.append(fit.bytes_per_load())
    assert sum(each > 0 for each in fits) <= 2, "three standard errors, one side: 0.13 %"


def bins(sizes: list[float], per_bin_noise: float = 1.0 * MB) -> list[Bin]:
    return [Bin(number, Low(size), size, per_bin_noise, 0.0) for number, size in enumerate(sizes)]


def tier_bins(floors: list[float]) -> list[Bin]:
    """Bins of which the floors of the tier of four hours are these, in MB."""
    return bins([floor * MB for floor in floors for _ in range(LEAK_TIER.bins)])


def test_floors_are_minima_of_blocks() -> None:
    found = block_floors(bins([5.0, 3.0, 9.0, 8.0, 7.0, 2.0, 6.0, 6.5]), 2, 4, Adjust())
    assert found == [Floor(3, 3.0), Floor(2, 8.0), Floor(1, 2.0), Floor(0, 6.0)]
    assert block_floors(bins([5.0, 3.0, 9.0]), 2, 2, Adjust()) is None, "half of the oldest is missing"
    assert block_floors([], 2, 2, Adjust()) is None


def test_floors_pass_over_what_was_not_seen() -> None:
    rows = bins([1.0] * 8 + [5.0] * 8 + [9.0] * 8)
    seen = [row for row in rows if not 8 <= row.number < 16]
    assert block_floors(seen, 8, 2, Adjust()) == [Floor(2, 1.0), Floor(0, 9.0)]
    assert increments([Floor(2, 1.0), Floor(0, 9.0)]) == [4.0], "for each block between them"
    assert block_floors([rows[0], rows[-1]], 8, 2, Adjust()) is None, "a bin of eight is no block"


def test_scatter_knows_no_trend() -> None:
    random = np.random.default_rng(0)
    sizes = [100.0 * index + error for index, error in enumerate(random.normal(0, 7.0, 2000))]
    assert scatter(sizes) == pytest.approx(7.0, rel=0.15)
    assert scatter([1.0, 2.0]) is None
    assert noise(bins([0.0], per_bin_noise=-1.0), [Floor(2 - index, float(index**2)) for index in range(3)]) > 0


@pytest.mark.parametrize(
    ("sizes", "before", "index"),
    [
        ([10.0, 11.0, 2.0, 10.5, 11.0, 10.0], 10.0, 2),
        ([2.0, 11.0, 10.0, 10.5, 11.0, 10.0], 10.0, 0),
        ([2.0, 11.0, 10.0, 10.5, 11.0, 10.0], None, None),  # what was before is not known
        ([10.0, 11.0, 10.0, 10.5, 11.0, 2.0], 10.0, None),  # nor what comes: it may have been given back
        ([10.0, 11.0, 2.0, 2.1, 2.2, 2.3], 10.0, None),  # given back
        ([10.0, 11.0, 9.0, 10.5, 11.0, 10.0], 10.0, None),  # noise
        ([10.0, 2.0, 10.0], 10.0, None),  # too few
    ],
)
def test_which_size_is_a_reading_that_failed(sizes: list[float], before: float | None, index: int | None) -> None:
    assert failed(sizes, before) == index


def judged(floors: list[float]) -> Rise | str | None:
    return rise(tier_bins(floors), LEAK_TIER, Adjust(), SETTINGS)


@pytest.mark.parametrize(
    ("floors", "reason"),
    [
        ([0, 700, 1400, 1300, 2000, 2700], "falls"),
        ([0, 0, 700, 700, 1400, 2100], "flat"),
        ([0, 700, 1400, 2100, 2800, 2801], "flat"),
        ([0, 1400, 2600, 3300, 3900, 4400], "levels_off"),
        ([0, 300, 600, 2900, 3300, 3700], "one_step"),
        ([0, 60, 120, 180, 240, 300], "slow"),
    ],
)
def test_what_is_no_rise(floors: list[float], reason: str) -> None:
    assert judged([12_000 + floor for floor in floors]) == reason


def test_what_is_a_rise() -> None:
    found = judged([12_000 + 672 * index for index in range(6)])
    assert isinstance(found, Rise)
    assert found.slope.value == pytest.approx(672 * MB / (4 * 3600))
    assert found.share == 1.0
    assert judged([12_000.0 + 672 * index for index in range(5)]) is None, "too few"
    assert isinstance(judged([12_000 + floor for floor in (0, 672, 2011, 2016, 2688, 4027)]), Rise), "a sawtooth of 6 h on a leak"


def test_back_to_where_it_was_is_no_rise() -> None:
    morning = [12_000 + 400 * index for index in range(6)]
    day = [*morning, *reversed(morning), *morning]
    rows = bins([floor * MB for floor in day for _ in range(SUSPECT.bins)])
    assert rise(rows, SUSPECT, Adjust(), SETTINGS) == "been_there"
    higher = bins([floor * MB for floor in [*day[:12], *[floor + 300 for floor in morning]] for _ in range(SUSPECT.bins)])
    assert isinstance(rise(higher, SUSPECT, Adjust(), SETTINGS), Rise)


def test_floors_in_random_order_seldom_rise() -> None:
    """1/720 a look for six of them, whatever their distribution."""
    random = np.random.default_rng(0)
    found = [
        judged([float(each) for each in random.permutation([12_000.0 + 700 * index for index in range(6)])]) for _ in range(3000)
    ]
    rises = sum(isinstance(each, Rise) for each in found)
    assert rises <= 15, "4 are expected"


@pytest.mark.parametrize(
    ("lows", "is_rise"),
    [
        ([14.0 * index for index in range(8)], True),
        ([0.0] * 8, False),
        ([14.0 * index + (5 if index % 2 else 0) for index in range(8)], False),  # not quiet
        ([1000 * (1 - math.exp(-index * 5 / 120)) for index in range(8)], False),  # a warm-up of two hours
        ([2.0 * index for index in range(8)], False),  # 0.4 MB a minute
        ([14.0 * index for index in range(7)] + [70.0], False),  # it fell
    ],
)
def test_fast_lane(lows: list[float], is_rise: bool) -> None:
    sizes = [5000 * MB + low * MB for low in lows]
    assert (fast_rise(sizes, -math.inf, SETTINGS) is not None) is is_rise
    assert fast_rise(sizes, 6000 * MB, SETTINGS) is None, "it was there before"


@given(st.lists(st.tuples(st.floats(0, 4000), st.floats(0, 1e11), st.floats(0, 1000)), min_size=1, max_size=300))
def test_a_line_is_the_same_after_a_restart(rows: list[tuple[float, float, float]]) -> None:
    """Whatever comes: dumped and restored at any moment, it goes on as if nothing had been."""
    settings = SETTINGS.scaled(30.0)
    one, other = Line(settings, 0.0), Line(settings, 0.0)
    now_s = 0.0
    for index, (apart_s, size, load) in enumerate(rows):
        now_s += apart_s / 30
        one.add(now_s, round(size), round(load))
        other.add(now_s, round(size), round(load))
        if index % 7 == 0:
            one.close()
            other.close()
            other = Line.restored(other.dump(), settings)
    assert other.standing.level == one.standing.level
    assert len(other.dump()["bins"]) == len(one.dump()["bins"]) <= 120


def test_scaling() -> None:
    scaled = SETTINGS.scaled(60.0)
    assert scaled.bin_s == SETTINGS.bin_s / 60
    assert scaled.limit_bytes_per_s == SETTINGS.limit_bytes_per_s * 60
    assert scaled.scaled(2.0).time_scale == 120.0
    for scale in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="above 0"):
            SETTINGS.scaled(scale)


def test_words_of_events() -> None:
    assert all(
        map(restarts_warm_up, ("model_load", "LoRA load", "graph-capture", "re-shard", "restart", "warm-up", "engine started"))
    )
    assert not any(
        map(
            restarts_warm_up,
            (
                "",
                "note",
                "gc_collect",
                "malloc_trim",
                "alert fired",
                "load test",
                "model load test",
                "autoscale",
                "scale",
                "capture",
                "start",
            ),
        )
    )
    assert all(map(gives_back, ("gc.collect", "empty_cache", "malloc_trim(0)", "probe")))
    assert not any(map(gives_back, ("model_load", "note")))


def test_tiers_get_graver_first() -> None:
    assert [tier.level for tier in TIERS] == ["leak", "leak", "suspect", "suspect"]
    assert all(a.bins * a.blocks > 0 for a, _ in pairwise(TIERS))
