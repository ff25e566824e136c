"""Counters that survive their owners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aie_agent.sources.monotonic import MonotonicSum


def test_the_first_update_starts_where_the_owners_stand() -> None:
    assert MonotonicSum[str]().update({"a": 5, "b": 7}, ()) == 12


def test_what_an_owner_counted_stays_when_it_ends() -> None:
    total = MonotonicSum[str]()
    total.update({"a": 5, "b": 7}, ())
    assert total.update({"b": 9}, ()) == 14
    assert total.update({}, ()) == 14


def test_a_newborn_counts_whole_and_an_old_stranger_from_now_on() -> None:
    total = MonotonicSum[str]()
    total.update({"a": 5}, ())
    assert total.update({"a": 5, "born": 3, "old": 1000}, {"born"}) == 8
    assert total.update({"a": 5, "born": 4, "old": 1002}, ()) == 11


def test_a_counter_that_fell_has_a_new_owner_of_the_same_name() -> None:
    total = MonotonicSum[int]()
    total.update({1: 100}, ())
    assert total.update({1: 3}, ()) == 103


@given(st.lists(st.dictionaries(st.integers(0, 5), st.floats(0, 1e9)), max_size=20))
def test_it_never_falls(updates: list[dict[int, float]]) -> None:
    total = MonotonicSum[int]()
    last = 0.0
    for readings in updates:
        now = total.update(readings, ())
        assert now >= last
        last = now
