"""The agent's time never goes back."""

from __future__ import annotations

import time

import pytest

from aie_agent.clock import SteadyClock, Watchfulness


def test_a_wall_clock_that_is_set_back_or_forth(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    wall, monotonic = 1000.0, 50.0
    monkeypatch.setattr(time, "time", lambda: wall)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic)
    clock = SteadyClock()
    assert clock() == 1000.0
    wall, monotonic = 400.0, 51.0  # set back by ten minutes
    assert clock() == 1001.0
    wall, monotonic = 401.0, 52.0
    assert clock() == 1002.0
    wall, monotonic = 5000.0, 53.0  # set forth
    assert clock() == 5000.0
    assert [record.message for record in caplog.records] == [
        "the wall clock was set back by 601 s: the agent's time counts on",
        "the wall clock was set forward by 3997 s",
    ]


def test_what_was_not_looked_at_did_not_last() -> None:
    watch = Watchfulness(5.0)
    for now_s in (100.0, 101.0, 106.0):
        watch.look(now_s)
    assert watch.seen_since_s(103.0) == 103.0
    assert watch.seen_since_s(90.0) == 100.0, "before the first look"
    watch.look(111.5)
    assert watch.seen_since_s(103.0) == 111.5, "stopped, paused, or the clock was set"
    watch.look(112.0)
    assert watch.seen_since_s(111.7) == 111.7
