"""Findings that come and go, as events and in the log."""

from __future__ import annotations

import logging

import pytest

from aie_agent.analysis.history import FindingHistory, is_current
from aie_agent.events import EventLog
from aie_agent.sources.statsd_events import PER_ENGINE, PER_MINUTE
from aie_telemetry.api import Finding


def finding(subject: str = "chat", cause: str = "engine_hung") -> Finding:
    return Finding(cause=cause, subject=subject, severity="critical", since_s=970.0, summary=f"engine {subject} hangs")


def test_one_that_comes_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    history = FindingHistory()
    assert history.update((), 999.0) == []
    (begun,) = history.update((finding(),), 1000.0)
    assert history.update((finding(),), 1001.0) == [], "it holds"
    (over,) = history.update((), 1060.0)
    assert history.update((), 1061.0) == []
    assert (begun.kind, begun.engine, begun.summary, begun.time_s) == ("finding", "chat", "engine chat hangs", 1000.0)
    assert begun.details == {"state": "begun", "cause": "engine_hung", "severity": "critical", "since_s": 970.0, "lasted_s": 30.0}
    assert (over.summary, over.time_s) == ("over after 90 s: engine chat hangs", 1060.0)
    assert (over.details["state"], over.details["since_s"], over.details["lasted_s"]) == ("over", 970.0, 90.0)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "engine chat hangs (engine_hung, for 30 s)"),
        ("INFO", "over after 90 s: engine chat hangs"),
    ]


def test_what_holds_is_told_once_where_findings_are_shown() -> None:
    history, events = FindingHistory(), EventLog()
    for event in history.update((finding(),), 1000.0):
        events.add(event, 1000.0)
    assert (len(events.newest()), events.newest(20, is_current)) == (1, ())
    for event in history.update((), 1001.0):
        events.add(event, 1001.0)
    assert [event.details["state"] for event in events.newest()] == ["over", "begun"]
    assert [event.details["state"] for event in events.newest(20, is_current)] == ["over"]


def test_one_that_comes_and_goes_all_the_time_is_told_so_often_and_no_more() -> None:
    history = FindingHistory()
    told = [event for second in range(50) for event in history.update((finding(),) * (second % 2), 1000.0 + second)]
    assert len(told) == PER_ENGINE
    many = FindingHistory().update([finding(f"e{at}") for at in range(100)], 1000.0)
    assert len(many) == PER_MINUTE
