"""Rates, quantiles and histories, beside the rules they follow."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.analysis.window import bucket_increase, gain, increase, level_history, quantile, quantiles_of, rate, rate_history
from aie_agent.series import HistogramSeries, Series
from aie_telemetry.catalogue import Kind


def counter(*points: tuple[float, float]) -> Series:
    series = Series("c", Kind.COUNTER, (), "test", 100)
    for time_s, value in points:
        series.append(time_s, value)
    series.valid_until_s = series.last_time_s + 5
    return series


def histogram(*states: tuple[float, list[float]], bounds: tuple[float, ...] = (1.0, 2.0)) -> HistogramSeries:
    series = HistogramSeries("h", (), "test", bounds, 100)
    for time_s, counts in states:
        series.append(time_s, counts, 0.0)
    return series


def test_rate_over_the_window_only() -> None:
    series = counter((0, 0), (10, 100), (20, 130), (30, 160))
    assert rate([series], 10.0, 30.0) == pytest.approx(3.0)


def test_a_restart_counts_what_was_gained_since() -> None:
    assert increase(counter((0, 90), (10, 100), (20, 7), (30, 9)), 0.0, 30.0) == (10 + 7 + 2, 30.0)


def test_silence_is_no_rise() -> None:
    assert rate([counter((9, 0), (10, 30))], 0.0, 69.0) == pytest.approx(30 / 60)


def test_unknown_is_not_zero() -> None:
    assert rate([], 0.0, 10.0) is None
    assert rate([Series("c", Kind.COUNTER, (), "test", 10)], 0.0, 10.0) is None
    assert rate([counter((10, 5))], 0.0, 10.0) is None


def test_rates_of_several_series_add_up() -> None:
    assert rate([counter((0, 0), (10, 10)), counter((5, 0), (10, 10))], 0.0, 10.0) == pytest.approx(1 + 2)


def test_histogram_increase_ignores_what_came_before_and_survives_a_restart() -> None:
    series = histogram((0, [5, 5, 5]), (10, [6, 7, 8]), (20, [1, 0, 0]))
    assert bucket_increase(series, 0.0) == [1 + 1, 2, 3]
    assert bucket_increase(series, 10.0) == [1, 0, 0]
    assert bucket_increase(histogram(), 0.0) == [0, 0, 0]


VALUES = st.sampled_from([0.0, 1.0, 2.5, 7.0, float("nan")])
CAPACITY = 8


@given(st.lists(st.tuples(st.integers(0, 2), VALUES), max_size=30), st.integers(-2, 40))
def test_a_rise_is_what_its_points_gain_one_by_one(steps: list[tuple[int, float]], start: int) -> None:
    """Also of a ring that went round, with counters that fell and with breaks."""
    series = Series("c", Kind.COUNTER, (), "test", CAPACITY)
    points: list[tuple[float, float]] = []
    for wait_s, value in steps:
        points.append((points[-1][0] + wait_s if points else 0.0, value))
        series.append(*points[-1])
    points = points[-CAPACITY:]
    known = points[max(sum(time_s <= start for time_s, _ in points) - 1, 0) :]
    assert list(map(repr, series.ring.since(start))) == list(map(repr, known))
    found = increase(series, start, 50.0)
    if not known:
        assert found is None
    else:
        gains = sum(gain(before, value) for (_, before), (_, value) in pairwise(known))
        assert found == (gains, 50.0 - max(known[0][0], start))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5))
def test_a_level_is_the_last_that_was_told_while_it_counts(waits: list[int], hold: int) -> None:
    times = list(accumulate(waits, initial=0))
    series = counter(*((float(time_s), float(index)) for index, time_s in enumerate(times)))
    series.valid_until_s = series.last_time_s + hold
    history = level_history([series], 60.0, 60, 1.0)
    for moment in range(1, 61):
        last = max(time_s for time_s in times if time_s <= moment)
        index = len(times) - 1 - times[::-1].index(last)
        assert history[moment - 1] == (index if moment < last + hold else None)


def test_quantile_as_prometheus_gives_it() -> None:
    # histogram_quantile(0.5, ...) over le=1: 1, le=2: 3, le=+Inf: 4 is 1 + (2 - 1) * (2 - 1) / 2
    assert quantile((1.0, 2.0), [1, 2, 1], 0.5) == pytest.approx(1.5)
    assert quantile((1.0, 2.0), [1, 2, 1], 0.99) == 2.0
    assert quantile((1.0, 2.0), [4, 0, 0], 0.5) == pytest.approx(0.5)
    assert quantile((1.0, 2.0), [0, 0, 0], 0.5) is None


@given(st.lists(st.floats(0.011, 9.9), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    bounds = tuple(np.geomspace(0.01, 10.0, 25))
    counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1).astype(float).tolist()
    estimate = quantile(bounds, counts, q)
    true = float(np.quantile(values, q, method="inverted_cdf"))
    bucket = int(np.searchsorted(bounds, true))
    assert estimate is not None
    assert bounds[bucket - 1] * (1 - 1e-9) <= estimate <= bounds[bucket] * (1 + 1e-9)


def test_quantiles_merge_only_equal_buckets() -> None:
    first = histogram((0, [0, 0, 0]), (10, [2, 0, 0]))
    second = histogram((0, [0, 0, 0]), (10, [0, 2, 0]))
    other = histogram((0, [0, 0]), (10, [0, 9]), bounds=(50.0,))
    assert quantiles_of([first, second, other], 0.0, (0.5, 1.0)) == [1.0, 2.0]
    assert quantiles_of([], 0.0, (0.5,)) == [None]


def test_histories_have_one_point_a_step_whatever_the_jitter() -> None:
    gauge = counter((0.97, 1), (2.03, 2), (2.98, 3), (4.01, 4))
    assert level_history([gauge], 4.5, 5, 1.0) == (None, 1, 2, 3, 4)
    rising = counter((0.0, 0), (1.04, 10.4), (1.97, 19.7), (3.0, 30))
    assert rate_history([rising], 3.0, 3, 1.0) == pytest.approx((10.0, 10.0, 10.0), abs=1e-6)


def test_history_has_holes_where_nothing_was_known() -> None:
    gauge = counter((1.0, 1), (20.0, 2))
    gauge.valid_until_s = 22.0
    history = level_history([gauge], 20.5, 20, 1.0)
    assert history[0] == 1
    assert history[5:18] == (None,) * 13
    assert history[-1] == 2


SIGNED = (-10.0, 0.0, 10.0)


@pytest.mark.parametrize(
    ("counts", "q", "expected"),
    [
        ([4.0, 0.0, 0.0, 0.0], 0.5, -10.0),  # all below the lowest bound: as Prometheus, that bound
        ([0.0, 4.0, 0.0, 0.0], 0.5, -5.0),
        ([0.0, 0.0, 4.0, 0.0], 0.25, 2.5),
        ([1.0, 2.0, 1.0, 0.0], 0.5, -5.0),
        ([0.0, 0.0, 0.0, 4.0], 0.5, 10.0),
    ],
)
def test_bounds_below_zero(counts: list[float], q: float, expected: float) -> None:
    assert quantile(SIGNED, counts, q) == pytest.approx(expected)


def test_a_lowest_bound_of_zero_begins_there() -> None:
    assert quantile((0.0, 1.0), [3.0, 0.0, 0.0], 0.5) == 0.0


@given(
    st.lists(st.one_of(st.none(), st.lists(st.integers(0, 4), min_size=3, max_size=3)), min_size=1, max_size=12),
    st.integers(2, 12),
    st.integers(-1, 13),
)
def test_a_histogram_that_fell_or_broke_counts_run_by_run(states: list[list[int] | None], capacity: int, start: int) -> None:
    """Against the states as `since` gives them, cut into runs in which the total only rises: each has what its last state has more
    than its first. A run after a fall began at 0, one after a break where it stands."""
    series = HistogramSeries("h", (), "s", (1.0, 2.0), capacity)
    for time_s, counts in enumerate(states):
        if counts is None:
            series.interrupt()
        else:
            series.append(float(time_s), [float(count) for count in counts], 0.0)
    runs: list[list[list[float]]] = []
    begins_anew = False
    for _, known in series.since(float(start)):
        if known is None:
            begins_anew = True
            continue
        counts_now = list(known)
        if not runs or begins_anew:
            runs.append([counts_now])
        elif sum(counts_now) < sum(runs[-1][-1]):
            runs.append([[0.0] * 3, counts_now])
        else:
            runs[-1].append(counts_now)
        begins_anew = False
    expected = [sum(max(run[-1][bucket] - run[0][bucket], 0.0) for run in runs) for bucket in range(3)]
    assert bucket_increase(series, float(start)) == expected
    rise = series.rise(float(start))
    if rise is not None:
        assert len(runs) == 1
        assert [list(state) for state in rise] == [runs[0][0], runs[0][-1]]
