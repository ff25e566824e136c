"""When a source is due again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aie_agent.sources.base import next_start_s


@given(st.floats(0, 1e7), st.floats(0, 100), st.sampled_from((0.05, 0.1, 1.0, 5.0, 10.0)))
def test_it_is_due_at_a_multiple_of_its_period_and_never_at_once(last_s: float, took_s: float, period_s: float) -> None:
    now_s = last_s + took_s
    start_s = next_start_s(now_s, last_s, period_s)
    assert abs(start_s / period_s - round(start_s / period_s)) < 1e-3
    assert start_s >= now_s
    assert start_s - last_s >= period_s / 2
    assert start_s - now_s <= 1.5 * period_s + 1e-6


def test_all_of_one_period_come_together_from_the_second_time_on() -> None:
    due = {next_start_s(began_s + 0.01, began_s, 1.0) for began_s in (100.0, 100.1, 100.49)}
    assert due == {101.0}
    assert next_start_s(100.99, 100.98, 1.0) == 102.0  # too soon to say anything of the time between


def test_who_is_woken_a_moment_early_is_not_woken_twice() -> None:
    assert next_start_s(99.9999999, 99.9999998, 1.0) == 101.0


def test_what_took_longer_than_its_period_is_not_made_up_for() -> None:
    assert next_start_s(103.5, 101.0, 1.0) == 104.0
