"""Thresholds by replay: false alarms stay as rare as asked for, also where values depend on each other; delays are as told."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import rankdata

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.calibrate import dependence, replay, waiting_time
from aie_agent.analysis.drift.offline import judge
from aie_agent.analysis.drift.reference import About, Aim, Reference

Floats = NDArray[np.float64]


def _stream(seed: int, count: int, rho: float) -> Floats:
    """Standard normal values of which each depends on the one before."""
    noise = np.random.default_rng(seed).normal(size=count) * np.sqrt(1 - rho * rho)
    noise[0] /= np.sqrt(1 - rho * rho)
    values: Floats = lfilter([1], [1, -rho], noise)
    return values


def _reference(rho: float, days: float, seed: int = 1, m: int = 2000) -> Reference:
    return build({"x": _stream(seed, m, rho).tolist()}, About(model="m"), Aim(days=days))


def _statistics(reference: Reference, stream: Floats) -> NDArray[np.int64]:
    """N of each disjoint window, by numpy."""
    ordered = np.array(reference.values["x"])
    m, n = len(ordered), 100
    windows = np.sort(stream[: len(stream) // n * n].reshape(-1, n), axis=1)
    lo, hi, index = np.searchsorted(ordered, windows), np.searchsorted(ordered, windows, "right"), np.arange(n)
    return np.maximum((n * lo - m * index).max(axis=1), (m * (index + 1) - n * hi).max(axis=1))


def _alarms(beyond: NDArray[np.bool_]) -> int:
    """Runs of five, each counted once a five."""
    edges = np.concatenate(([-1], np.flatnonzero(~beyond), [len(beyond)]))
    return int(((np.diff(edges) - 1) // 5).sum())


def test_independent_values_need_no_other_threshold_than_that_of_one_window() -> None:
    column = _reference(0.0, days=30).header.columns[0]
    assert column.critical == column.critical_p01
    assert column.dependence == pytest.approx(1.0, abs=0.2)
    assert column.outside == 10


def test_one_window_in_a_hundred_is_beyond_by_chance() -> None:
    reference = _reference(0.0, days=30)
    beyond = _statistics(reference, _stream(2, 1_000_000, 0.0)) >= reference.header.columns[0].critical
    assert 0.004 < beyond.mean() < 0.025, "0.01, and the error of one reference"
    assert _alarms(beyond) == 0


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.7, 0.9])
def test_dependent_values_raise_no_more_alarms_than_asked_for(rho: float) -> None:
    # A reference of 10,000, so that what is learned of the dependence is worth something; one alarm a day at one a second.
    reference = _reference(rho, days=1, m=10_000)
    column, aim = reference.header.columns[0], reference.header.aim
    stream = _stream(3, 4_000_000, rho)
    asked_for = len(stream) / aim.requests
    statistics = _statistics(reference, stream)
    assert _alarms(statistics >= column.critical) <= 2 * asked_for
    if rho == 0.9:
        assert _alarms(statistics >= column.critical_p01) > 10 * asked_for, "without calibration"


def test_the_dependence_is_that_of_the_process() -> None:
    for rho in (0.3, 0.5, 0.7):
        found = dependence(_stream(4, 20_000, rho).tolist())
        assert found.values == pytest.approx((1 + rho) / (1 - rho), rel=0.25)
        assert found.error < 0.1
    assert dependence([1.0] * 1000).values == 1.0


@pytest.mark.parametrize(("rho", "count"), [(0.0, 500), (0.0, 2000), (0.3, 2000), (0.7, 2000)])
def test_the_dependence_is_that_of_the_process_in_the_mean(rho: float, count: int) -> None:
    found = [dependence(_stream(seed, count, rho).tolist()).values for seed in range(60)]
    assert np.mean(found) == pytest.approx((1 + rho) / (1 - rho), rel=0.1)
    assert rho or max(found) < 1.5, "chance finds none that would matter"


def _in_turn(seed: int, count: int, kinds: int, switch: float, spell: float) -> list[float]:
    """Kinds of request far apart, of which the next comes after each request with this probability; under them spells of six
    hundred requests of two populations, this far apart."""
    rng = np.random.default_rng(seed)
    kind = np.cumsum(rng.random(count) < switch) % kinds
    population = (np.arange(count) + rng.integers(1200)) // 600 % 2
    values: list[float] = (rng.normal(size=count) + 12.0 * kind + spell * population).tolist()
    return values


@pytest.mark.parametrize(("kinds", "switch"), [(2, 0.6), (2, 0.9), (2, 1.0), (3, 1.0)])
def test_spells_are_seen_though_kinds_of_request_take_turns(kinds: int, switch: float) -> None:
    """The first correlation is negative: what is added up to the first that is none found nothing, and every stream alarmed."""
    for seed in range(3):
        values = rankdata(_in_turn(seed, 6000, kinds, switch, 2.0)).tolist()
        assert dependence(values).values > 8.0
        assert dependence(rankdata(_in_turn(seed, 6000, kinds, switch, 0.0)).tolist()).values < 1.1, "turns alone are no harm"


def test_traffic_in_spells_whose_kinds_take_turns_is_no_drift() -> None:
    reference = build({"x": _in_turn(0, 6000, 2, 0.6, 2.0)}, About(model="m"))
    verdicts = [judge(reference, {"x": _in_turn(seed, 12_000, 2, 0.6, 2.0)}) for seed in range(1, 6)]
    assert not any(verdict.alarm or verdict.unsteady for verdict in verdicts)


@pytest.mark.parametrize(("shift", "least", "most"), [("0.5", 500, 900), ("1", 500, 520)])
def test_delays_are_as_told(shift: str, least: float, most: float) -> None:
    reference = _reference(0.0, days=30)
    told = reference.header.columns[0].delay_requests[shift]
    assert told is not None
    assert least <= told <= most
    beyond = _statistics(reference, _stream(5, 500_000, 0.0) + float(shift)) >= reference.header.columns[0].critical
    p = float(beyond.mean())
    simulated = waiting_time(p)
    assert simulated is not None
    assert told == pytest.approx(100 * simulated, rel=0.25)


def test_a_run_of_successes_takes_as_long_as_it_takes() -> None:
    rng = np.random.default_rng(6)
    waits = []
    for _ in range(2000):
        run = trials = 0
        while run < 5:
            trials, run = trials + 1, run + 1 if rng.random() < 0.6 else 0
        waits.append(trials)
    assert waiting_time(0.6) == pytest.approx(np.mean(waits), rel=0.1)
    assert waiting_time(1.0) == 5.0
    assert waiting_time(0.0) is None


def test_more_statistics_share_the_false_alarms() -> None:
    columns = {name: _stream(seed, 2000, 0.8).tolist() for seed, name in enumerate("abcdefgh")}
    alone = build({"a": columns["a"]}, About(model="m")).header.columns[0].critical
    together = build(columns, About(model="m")).header
    assert together.columns[0].critical > alone
    assert together.run_length_requests >= 0.99 * together.aim.requests


def test_a_replay_is_the_same_each_time() -> None:
    values = _stream(7, 1000, 0.5).tolist()
    assert replay(values, seed=1) == replay(values, seed=1)
    with pytest.raises(ValueError, match="too few"):
        replay(values[:499])
