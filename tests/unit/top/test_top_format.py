"""Numbers on the screen: three digits, always a unit, never wider than their column, never an exception."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aie_agent.analysis.window import quantile
from aie_telemetry.catalogue import CATALOGUE
from aie_top import format as fmt
from aie_top.latency import writer

WIDTHS: list[tuple[Callable[[float | None], str], int]] = [
    (fmt.rate, fmt.RATE_WIDTH),
    (fmt.count, fmt.COUNT_WIDTH),
    (fmt.percent, fmt.PERCENT_WIDTH),
    (fmt.duration, fmt.DURATION_WIDTH),
    (fmt.age, fmt.AGE_WIDTH),
    (fmt.size, fmt.SIZE_WIDTH),
]


@given(st.none() | st.floats(), st.sampled_from(WIDTHS))
@example(9_999.5, WIDTHS[1])
@example(999.5e18, WIDTHS[0])
@example(0.99999, WIDTHS[2])
@example(1023.6, WIDTHS[5])
def test_any_float_fits_its_column(value: float | None, kind: tuple[Callable[[float | None], str], int]) -> None:
    write, width = kind
    assert 1 <= len(write(value)) <= width


@given(st.sampled_from([None, float("nan"), float("inf"), float("-inf")]), st.sampled_from(WIDTHS))
def test_unknown_is_a_dash_and_never_zero(value: float | None, kind: tuple[Callable[[float | None], str], int]) -> None:
    assert kind[0](value) == fmt.UNKNOWN


@given(st.floats(min_value=1e-300, max_value=1e15), st.sampled_from([fmt.rate, fmt.percent, fmt.duration]))
def test_what_is_above_zero_never_reads_as_zero(value: float, write: Callable[[float | None], str]) -> None:
    assert write(value) not in ("0", "0%", "0 s", "0.00")


@pytest.mark.parametrize(
    ("field", "above"),
    [
        ("time_to_first_token", ">80 s"),
        ("inter_token", ">8 s"),
        ("queue", ">640 s"),
        ("prefill", ">640 s"),
        ("duration", ">655 s"),
    ],
)
def test_a_quantile_above_the_highest_bound_says_no_more(field: str, above: str) -> None:
    buckets = CATALOGUE[f"aie_engine_{field.replace('duration', 'request_duration')}_seconds"].buckets
    write = writer(field)
    assert write(quantile(buckets, [1.0, *[0.0] * (len(buckets) - 1), 99.0], 0.99)) == above
    within = quantile(buckets, [*[0.0] * (len(buckets) - 1), 99.0, 0.0], 0.99)
    assert write(within) == fmt.duration(within) != above
    assert write(None) == fmt.UNKNOWN
    assert len(above) <= fmt.DURATION_WIDTH


@given(st.floats(min_value=1e-6, max_value=9e5))
def test_a_duration_reads_back_within_its_digits(seconds: float) -> None:
    number, unit = fmt.duration(seconds).split()
    factor = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}[unit]
    tolerance = 0.006 if unit in ("µs", "ms", "s") else 0.5
    assert float(number) * factor == pytest.approx(seconds, rel=tolerance)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (fmt.rate, 0.0, "0"),
        (fmt.rate, 0.004, "<.01"),
        (fmt.rate, 6.423, "6.42"),
        (fmt.rate, 99.96, "100"),
        (fmt.rate, 999.6, "1.00k"),
        (fmt.rate, 12_345.0, "12.3k"),
        (fmt.count, 3.0, "3"),
        (fmt.count, 3.25, "3.2"),
        (fmt.count, 1204.0, "1204"),
        (fmt.count, 31_000.0, "31k"),
        (fmt.percent, 0.0, "0%"),
        (fmt.percent, 0.0001, "<0.1%"),
        (fmt.percent, 0.621, "62.1%"),
        (fmt.percent, 0.99999, "99.9%"),
        (fmt.percent, 1.0, "100%"),
        (fmt.percent, -0.1, "<0%"),
        (fmt.duration, 0.0, "0 s"),
        (fmt.duration, 0.00085, "850 µs"),
        (fmt.duration, 0.0312, "31.2 ms"),
        (fmt.duration, 0.99951, "1.00 s"),
        (fmt.duration, 1.234, "1.23 s"),
        (fmt.duration, 1020.0, "17 min"),
        (fmt.duration, -1.0, "-"),
        (fmt.age, 48.9, "48 s"),
        (fmt.age, -3.0, "0 s"),
        (fmt.age, 7200.0, "2 h"),
        (fmt.age, 259_200.0, "3 d"),
        (fmt.size, 0.0, "0 B"),
        (fmt.size, 1023.0, "1023 B"),
        (fmt.size, 1.5 * 2**30, "1.50 GiB"),
        (fmt.size, 1023.0 * 2**20, "1023 MiB"),
        (fmt.size, -3.2 * 2**20, "-3.20 MiB"),
    ],
)
def test_reads(write: Callable[[float | None], str], value: float, text: str) -> None:
    assert write(value) == text
