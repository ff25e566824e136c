"""What chance gives of windows and values beyond a reference: over streams, and over references that might have been recorded."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta, betabinom, binom

from aie_agent.analysis.drift.bounds import bounds_of
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.chance import beyond_extremes, windows_beyond
from aie_agent.analysis.drift.critical import critical_integer
from aie_agent.analysis.drift.hard_checks import LEAST_OUTSIDE
from aie_agent.analysis.drift.offline import UNSTEADY_CHANCE, judge
from aie_agent.analysis.drift.reference import About

Floats = NDArray[np.float64]


def _normal(count: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0, 1) for _ in range(count)]


def _beyond(reference: Floats, windows: Floats, critical: int) -> int:
    """How many windows, each in ascending order, are beyond the threshold."""
    m, n, index = len(reference), windows.shape[1], np.arange(windows.shape[1])
    ranks = np.searchsorted(reference, windows)
    return int((np.maximum((n * ranks - m * index).max(axis=1), (m * (index + 1) - n * ranks).max(axis=1)) >= critical).sum())


@pytest.mark.parametrize("m", [500, 1000, 2000])
def test_of_references_that_might_have_been_recorded_as_many_have_so_many_windows_beyond_as_is_told(m: int) -> None:
    rng = np.random.default_rng(m)
    critical = critical_integer(m, 100, 0.01)
    counts = [_beyond(np.sort(rng.random(m)), np.sort(rng.random((100, 100)), axis=1), critical) for _ in range(500)]
    for share in (0.1, 0.02):
        told = next(k for k in range(100) if windows_beyond(k, 100, m, 0.0) <= share)
        assert sum(count >= told for count in counts) <= 1.5 * share * len(counts)
        alone = next(k for k in range(100) if binom.sf(k - 1, 100, 0.01) <= share)
        assert told > alone or m > 500


def test_a_large_reference_has_next_to_no_error_of_its_own() -> None:
    for beyond in (5, 10, 20):
        alone = float(binom.sf(beyond - 1, 200, 0.01))
        assert alone < windows_beyond(beyond, 200, 1_000_000, 0.0) < 1.5 * alone


def test_windows_of_values_that_hang_together_are_beyond_as_often_as_five_in_a_row_say() -> None:
    alone = float(binom.sf(39, 200, 0.1))
    assert alone < windows_beyond(40, 200, 1_000_000, 1e-5) < 1.5 * alone


@pytest.mark.parametrize(("n", "k", "m"), [(2000, 21, 2000), (10_000, 4, 500), (1000, 900, 1000)])
def test_values_beyond_the_extremes_are_beta_binomial(n: int, k: int, m: int) -> None:
    assert beyond_extremes(n, k, m) == pytest.approx(betabinom.pmf(np.arange(k, n + 1), n, 2, m - 1).sum(), rel=1e-6)


def test_of_an_unlucky_reference_a_long_stream_is_not_unsteady() -> None:
    """One of a thousand references of 500 requests, of which 5 % of windows are beyond the threshold."""
    unlucky = build({"x": _normal(500, 870)}, About(model="m"))
    verdict = judge(unlucky, {"x": _normal(100_000, 1)})
    beyond, windows = verdict.per_statistic["x"].windows_beyond, verdict.per_statistic["x"].windows
    share = unlucky.header.columns[0].false_alarm ** 0.2
    assert binom.sf(beyond - 1, windows, share) < UNSTEADY_CHANCE, "it would be, if windows did not share its error"
    assert (verdict.alarm, verdict.unsteady) == (False, ())


@pytest.mark.parametrize(("m", "every"), [(500, 4), (1000, 8), (2000, 10)])
def test_a_long_stream_of_which_a_part_changed_is_unsteady(m: int, every: int) -> None:
    values = [value + (1.0 if number // 100 % every == 0 else 0.0) for number, value in enumerate(_normal(20_000, 2))]
    verdict = judge(build({"x": _normal(m, 3)}, About(model="m")), {"x": values})
    assert (verdict.alarm, verdict.unsteady) == (False, ("x",))


@pytest.mark.parametrize("m", [500, 600, 750, 999, 1000, 5000])
def test_few_references_leave_so_many_values_beyond_all_of_theirs(m: int) -> None:
    """That five windows in a row have too many, in 30 days at a request a second: 1 in a million references."""
    made = build({"x": _normal(500, 3)}, About(model="m"))
    column = msgspec.structs.replace(made.header.columns[0], m=m, dependence=1.0)
    too_many = bounds_of(column, made.values["x"]).too_many_unseen
    shares = np.linspace(0.0, 0.2, 20_001)
    ever = -np.expm1(26_000 * np.log1p(-(binom.sf(too_many - 1, 100, shares) ** 5)))
    assert np.trapezoid(beta(2, m - 1).pdf(shares) * ever, shares) < 1.5e-6


@pytest.mark.parametrize(("m", "windows"), [(500, 8.6e8), (1000, 3.2e12)])
def test_the_error_of_the_percentiles_is_in_what_is_told_of_them(m: int, windows: float) -> None:
    shares, edge = np.linspace(0.0, 0.3, 30_001), 2 * (m // 100 + 1)
    five = binom.sf(LEAST_OUTSIDE - 1, 100, shares) ** 5
    assert 1.0 / np.trapezoid(beta(edge, m + 1 - edge).pdf(shares) * five, shares) == pytest.approx(windows, rel=0.5)
