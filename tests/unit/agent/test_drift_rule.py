"""When windows are an alarm, how scatter is kept, and what is wrong without statistics."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from functools import cache

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.collapse import equal_answers
from aie_agent.analysis.drift.hard_checks import EqualValues, equal_in_a_row
from aie_agent.analysis.drift.reference import About, Reference
from aie_agent.analysis.drift.rule import Run
from aie_agent.analysis.drift.stability import merged, moments
from aie_agent.analysis.drift.watch import Check, StatisticWatch


@pytest.fixture(scope="module")
def reference() -> Reference:
    rng = random.Random(3)
    return build({"x": [rng.gauss(0, 1) for _ in range(1000)]}, About(model="m"))


def _watch(reference: Reference) -> StatisticWatch:
    return StatisticWatch(reference.header.columns[0], next(iter(reference.values.values())))


def _take(watch: StatisticWatch, values: list[float], start: int = 0) -> list[tuple[int, Check]]:
    return [(start + at, check) for at, value in enumerate(values, 1) for check in watch.take(value, float(start + at))]


def test_five_in_a_row_begin_an_alarm_and_five_others_end_it() -> None:
    run = Run()
    began = [run.window(beyond=beyond, now_s=float(now)) for now, beyond in enumerate([1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1])]
    assert began == [False] * 9 + [True, False]
    assert run.since_s == 5.0
    for now in range(11, 15):
        run.window(beyond=False, now_s=float(now))
        assert run.since_s == 5.0
    run.window(beyond=False, now_s=15.0)
    assert run.since_s is None


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), min_size=1, max_size=12))
def test_scatter_of_parts_is_the_scatter_of_all(parts: list[list[float]]) -> None:
    everything = [value for part in parts for value in part]
    assert merged([moments(part) for part in parts]).deviation == pytest.approx(statistics.pstdev(everything), rel=1e-6, abs=1e-6)


def test_equal_values_are_counted_in_a_row() -> None:
    equal = EqualValues[float]()
    assert [equal.add(value) for value in (1.0, 1.0, 2.0, 2.0, 2.0, 1.0)] == [1, 2, 1, 2, 3, 1]


@pytest.mark.parametrize(("share", "expected"), [(0.001, 100), (0.5, 100), (0.9, 263), (1.0, None)])
def test_the_commoner_a_value_the_longer_it_may_last(share: float, expected: int | None) -> None:
    assert equal_in_a_row(share) == expected


def test_normal_traffic_raises_nothing(reference: Reference) -> None:
    rng = random.Random(4)
    watch = _watch(reference)
    assert _take(watch, [rng.gauss(0, 1) for _ in range(20_000)]) == []
    assert watch.windows == 200
    assert watch.windows_beyond <= 12, "about two are expected"
    assert watch.stability_ratio == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda value: value + 1.0, Check.KS),
        (lambda value: value * 0.45, Check.KS),
        (lambda value: value if abs(value) < 1.2 else 4 * value, Check.OUT_OF_RANGE),
        (lambda value: 0.25, Check.KS),
        (lambda value: 1e3 if value > 1.3 else value, Check.OUT_OF_RANGE),  # nine of a hundred, far out
        (lambda value: 1e39, Check.NONFINITE),
        (lambda value: math.nan, Check.NONFINITE),
        (lambda value: math.inf, Check.NONFINITE),
    ],
)
def test_a_change_is_found_by_its_check(reference: Reference, change: object, check: Check) -> None:
    rng = random.Random(5)
    watch = _watch(reference)
    assert _take(watch, [rng.gauss(0, 1) for _ in range(1000)]) == []
    assert callable(change)
    found = _take(watch, [change(rng.gauss(0, 1)) for _ in range(1000)], 1000)
    assert found[0][1] is check
    assert found[0][0] <= 1000 + 6 * 100


@cache
def _with_a_probe(share: float, value: float, mean: float = 2.5, deviation: float = 0.5) -> Reference:
    """Of traffic of which a share is one prompt, whose answer is further out than all others."""
    return build({"x": _probed(2000, 10, share, value, mean, deviation)}, About(model="m"))


def _probed(count: int, seed: int, share: float, value: float, mean: float = 2.5, deviation: float = 0.5) -> list[float]:
    rng = random.Random(seed)
    return [value if rng.random() < share else rng.gauss(mean, deviation) for _ in range(count)]


@pytest.mark.parametrize(
    ("share", "before", "now", "found"),
    [
        (0.06, 0.0123456, 0.0123455, False),
        (0.06, 5.0, 5.03125, False),  # a step of bfloat16
        (0.06, 0.0123456, -0.3, True),
        (0.06, 5.0, 5.3, True),
        (0.12, 0.0123456, 0.0123455, False),  # it is the percentile, too
        (0.12, 5.0, 5.03125, False),
        (0.12, 0.0123456, -0.3, True),
        (0.12, 5.0, 5.3, True),
    ],
)
def test_the_last_digit_of_the_farthest_answer_is_no_alarm(share: float, before: float, now: float, found: bool) -> None:
    """A step is one: of the percentile and of the farthest alike."""
    began = [check for _, check in _take(_watch(_with_a_probe(share, before)), _probed(4000, 11, share, now))]
    assert began == ([Check.OUT_OF_RANGE] if found else [])


@pytest.mark.parametrize(("sure", "now", "found"), [(0.02, 0.0, True), (0.02, 0.019, False), (1e-7, 0.0, False)])
def test_nothing_is_not_like_little(sure: float, now: float, found: bool) -> None:
    """Entropies: of 15 % of the answers that were sure nothing is left to chance any more, or hardly less than before."""

    def entropies(seed: int, of_sure: float) -> list[float]:
        rng = random.Random(seed)
        return [of_sure if rng.random() < 0.15 else 0.02 + rng.gammavariate(6.0, 0.1) for _ in range(2000)]

    watch = _watch(build({"x": entropies(1, sure)}, About(model="m")))
    assert (Check.OUT_OF_RANGE in [check for _, check in _take(watch, entropies(3, now))]) is found


@pytest.mark.parametrize("deviation", [0.3, 1.0])
@pytest.mark.parametrize(("now", "found"), [(21.875, False), (21.0, True)])
def test_the_last_digit_of_a_large_value_is_no_alarm(deviation: float, now: float, found: bool) -> None:
    """Of the log-sum-exp: at 22 a step of bfloat16 is a tenth, which may be more than a tenth of the scatter."""
    reference = _with_a_probe(0.12, 22.0, 25.0, deviation)
    began = [check for _, check in _take(_watch(reference), _probed(4000, 11, 0.12, now, 25.0, deviation))]
    assert (Check.OUT_OF_RANGE in began) is found
    assert began == [] or found


@cache
def _around(mean: float, deviation: float, *outliers: float) -> Reference:
    rng = random.Random(3)
    values = [rng.gauss(mean, deviation) for _ in range(2000 - len(outliers))]
    return build({"x": [*values, *outliers]}, About(model="m"))


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_how_far_values_are_from_zero_is_nothing_to_what_lies_outside(mean: float, far: bool) -> None:
    """A tenth of the requests nine standard deviations off, and none."""
    stream = _probed(3000, 5, 0.1 if far else 0.0, mean + 0.9, mean, 0.1)
    assert _take(_watch(_around(mean, 0.1)), stream) == ([(500, Check.OUT_OF_RANGE)] if far else [])


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("outliers", [(), (1e4,)])
def test_one_outlier_of_the_reference_hides_nothing(outliers: tuple[float, ...], far: bool) -> None:
    """Fourteen of two hundred requests far out at the other end, and none."""
    stream = _probed(3000, 5, 0.07 if far else 0.0, -10.0)
    began = _take(_watch(_around(2.5, 0.5, *outliers)), stream)
    assert [check for _, check in began] == ([Check.OUT_OF_RANGE] if far else [])


@pytest.mark.parametrize(("now", "found"), [(4.999, False), (4.9, True)])
def test_the_last_digit_of_nearly_all_answers_is_no_alarm(now: float, found: bool) -> None:
    """Both percentiles are one prompt's answer: there is no spread to measure by."""
    others = [value for at in range(1, 16) for value in (5.0 - at / 10, 5.0 + at / 10)]
    watch = _watch(build({"x": random.Random(1).sample([5.0] * 1970 + others, 2000)}, About(model="m")))
    assert (watch.column.low, watch.column.high, watch.column.untested) == (5.0, 5.0, "")
    rng = random.Random(2)
    began = [check for _, check in _take(watch, [now if rng.random() < 0.16 else 5.0 for _ in range(900)])]
    assert began == ([Check.OUT_OF_RANGE] if found else [])


def test_answers_that_scatter_less_are_less_stable(reference: Reference) -> None:
    rng = random.Random(6)
    watch = _watch(reference)
    # At the quartiles, the distribution function is off by little, and the scatter by much.
    found = _take(watch, [rng.gauss(0, 0.3) for _ in range(2000)])
    assert Check.STABILITY in [check for _, check in found]
    assert watch.stability_ratio is not None
    assert watch.stability_ratio < 0.4


def _few_far(rng: random.Random, count: int) -> list[float]:
    """Of which 3 in 1000 make nearly all the scatter."""
    return [rng.gauss(50, 5) if rng.random() < 0.003 else rng.gauss(1, 0.3) for _ in range(count)]


def _zeros(rng: random.Random, count: int) -> list[float]:
    """One-token answers, of which 97 in 100 leave nothing to chance."""
    return [0.0 if rng.random() < 0.97 else rng.gammavariate(0.7, 0.3) for _ in range(count)]


def _wide(rng: random.Random, count: int) -> list[float]:
    return [rng.lognormvariate(-5, 2) for _ in range(count)]


@pytest.mark.parametrize(("draw", "seed"), [(_few_far, 4), (_few_far, 6), (_zeros, 1), (_zeros, 26), (_wide, 5), (_wide, 9)])
def test_that_hardly_any_of_the_few_values_came_that_scatter_is_chance(
    draw: Callable[[random.Random, int], list[float]], seed: int
) -> None:
    rng = random.Random(seed)
    watch = _watch(build({"entropy": draw(rng, 1000)}, About(model="m")))
    assert _take(watch, draw(rng, 10_000)) == []


def test_every_window_has_scipys_distance(reference: Reference) -> None:
    rng = random.Random(8)
    watch = _watch(reference)
    for _ in range(20):
        window = [round(rng.gauss(0.2, 1.2), 1) for _ in range(100)]
        _take(watch, window)
        assert watch.last is not None
        assert watch.last.distance == pytest.approx(ks_2samp(list(reference.values["x"]), window).statistic, abs=1e-12)
        assert watch.last.distance == watch.running_distance()
        low, high = watch.bounds.low, watch.bounds.high
        assert watch.last.outside == sum(value < low or value > high for value in window)


def test_equal_values_of_one_statistic_are_noticed_and_no_alarm(reference: Reference) -> None:
    watch = _watch(reference)
    assert _take(watch, [1.0] * 99) == []
    assert watch.equal_since_s is None
    assert _take(watch, [1.0], 99) == []
    assert (watch.equal_since_s, watch.equal_in_a_row, watch.alarms) == (100.0, 100, {})
    watch.take(2.0, 101.0)
    assert watch.equal_since_s is None


@pytest.mark.parametrize(("equal", "since_s", "same_prompt"), [("xy", 150.0, None), ("x", None, None), ("y", None, None)])
def test_answers_are_alike_where_all_that_is_measured_of_them_is(
    reference: Reference, equal: str, since_s: float | None, same_prompt: bool | None
) -> None:
    rng = random.Random(9)
    watches = {name: _watch(reference) for name in "xy"}
    for at in range(1, 161):
        for name, watch in watches.items():
            watch.take(0.5 if name in equal and at > (50 if name == "y" else 20) else rng.gauss(0, 1), float(at))
    found = equal_answers(watches)
    assert (None if found is None else found.since_s) == since_s
    assert found is None or (found.requests, found.too_many, found.same_prompt) == (110, 100, same_prompt)


def test_a_value_that_is_none_is_forgotten_after_a_window_of_numbers(reference: Reference) -> None:
    rng = random.Random(12)
    watch = _watch(reference)
    _take(watch, [rng.gauss(0, 1) for _ in range(50)])
    assert watch.take(1e39, 51.0) == (Check.NONFINITE,)
    _take(watch, [rng.gauss(0, 1) for _ in range(50)], 51)
    assert watch.alarms == {Check.NONFINITE: 51.0}, "a window is complete, and half of it was before"
    restarted = _watch(reference)
    restarted.restore(watch.dump())
    for each in (watch, restarted):
        _take(each, [rng.gauss(0, 1) for _ in range(99)], 101)
        assert each.alarms == {Check.NONFINITE: 51.0}
        _take(each, [rng.gauss(0, 1)], 200)
        assert each.alarms == {}
    assert watch.take(-1e39, 202.0) == (Check.NONFINITE,)


@pytest.mark.parametrize("cut", [1, 99, 100, 1550, 2120])
def test_a_restart_changes_nothing(reference: Reference, cut: int) -> None:
    rng = random.Random(7)
    values = [rng.gauss(0, 1) for _ in range(1400)] + [rng.gauss(0.9, 1) for _ in range(1200)]
    whole, before, after = _watch(reference), _watch(reference), _watch(reference)
    found = _take(before, values[:cut])
    after.restore(msgspec.json.decode(msgspec.json.encode(before.dump())))
    found += _take(after, values[cut:], cut)
    assert found == _take(whole, values) == [(1900, Check.KS)]
    assert whole.dump() == after.dump()
    assert whole.alarms == after.alarms


@pytest.mark.parametrize(
    "damage",
    [{"buffer": None}, {"buffer": [math.nan]}, {"shift": 3}, {"taken": -1}, {"since_s": {"unknown": 1.0}}, {"stability": [1]}],
)
def test_a_state_that_is_none_is_refused(reference: Reference, damage: dict[str, object]) -> None:
    watch = _watch(reference)
    with pytest.raises(ValueError, match=r"."):
        watch.restore(watch.dump() | damage)
