"""The integer statistic and its critical value, against scipy."""

from __future__ import annotations

import random
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from aie_agent.analysis.drift.critical import critical_integer, survival
from aie_agent.analysis.drift.ks import distance, ks_integer, rank

NUMBERS = st.floats(-1e9, 1e9)
TIED = st.integers(-5, 5).map(float)


def _scipy(reference: list[float], window: list[float]) -> float:
    return float(ks_2samp(reference, window, method="asymp").statistic)


@given(st.lists(NUMBERS, min_size=1, max_size=80), st.lists(NUMBERS, min_size=1, max_size=80))
def test_any_two_samples_have_scipys_distance(reference: list[float], window: list[float]) -> None:
    assert distance(sorted(reference), window) == pytest.approx(_scipy(reference, window), abs=1e-12)


@given(st.lists(TIED, min_size=1, max_size=120), st.lists(TIED, min_size=1, max_size=120))
def test_two_tied_samples_have_scipys_distance(reference: list[float], window: list[float]) -> None:
    assert distance(sorted(reference), window) == pytest.approx(_scipy(reference, window), abs=1e-12)


@given(st.lists(TIED, min_size=1, max_size=60), st.randoms())
def test_a_sample_is_at_no_distance_from_itself(sample: list[float], rng: random.Random) -> None:
    shuffled = rng.sample(sample, len(sample))
    assert ks_integer([rank(sorted(sample), value) for value in shuffled], len(sample)) == 0


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        ks_integer([], 5)


# D of p < 0.01 with windows of 100, by the size of the reference: from the exact path of scipy.
@pytest.mark.parametrize(("m", "expected"), [(100, 0.23), (500, 0.178), (1000, 0.169), (2000, 0.165), (5000, 0.1626)])
def test_the_critical_distance_is_the_exact_one(m: int, expected: float) -> None:
    assert critical_integer(m, 100, 0.01) / (m * 100) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_chance_is_as_scipy_says(m: int, n: int, data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 1000)))
    reference, window = [rng.random() for _ in range(m)], [rng.random() for _ in range(n)]
    statistic = ks_integer([rank(sorted(reference), value) for value in window], m)
    assert survival(m, n, statistic) == pytest.approx(float(ks_2samp(reference, window, method="exact").pvalue), rel=1e-6)


@given(st.integers(1, 60), st.integers(1, 40), st.sampled_from([0.2, 0.05, 0.01, 1e-4]))
def test_the_critical_integer_is_the_smallest_that_is_rare_enough(m: int, n: int, alpha: float) -> None:
    critical = critical_integer(m, n, alpha)
    assert survival(m, n, critical) < alpha
    assert survival(m, n, critical - gcd(m, n)) >= alpha, "the next smaller value that the statistic can have"


@pytest.mark.parametrize("arguments", [(0, 100, 0.01), (100, 0, 0.01), (100, 100, 0.0), (100, 100, 1.0)])
def test_what_has_no_critical_value_is_refused(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="no critical value"):
        critical_integer(*arguments)
