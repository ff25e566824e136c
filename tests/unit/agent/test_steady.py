"""Hysteresis: what flutters is one finding, what is over goes, and what comes back again and again stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aie_agent.analysis.steady import Steadiness, Steady
from aie_telemetry import api

NOW = 1_700_000_000.0


def _finding(cause: str, since_s: float = NOW, severity: api.Severity = "warning") -> api.Finding:
    return api.Finding(cause=cause, subject="chat", severity=severity, since_s=since_s, summary=f"{cause} of chat")


def test_a_cause_without_a_rule_is_shown_and_goes_at_once() -> None:
    steady = Steady({})
    assert steady.update([_finding("x")], NOW) == [_finding("x")]
    assert steady.update([], NOW + 1) == []


def test_what_must_hold_for_a_while_is_not_shown_for_a_blink() -> None:
    steady = Steady({"x": Steadiness(begins_after_s=3.0)})
    shown = [bool(steady.update([_finding("x")] if tick != 2 else [], NOW + tick)) for tick in range(8)]
    assert shown == [False, False, False, False, False, False, True, True], "the gap at 2 begins the time anew"


def test_what_lingers_bridges_gaps_as_it_was_last() -> None:
    steady = Steady({"x": Steadiness(lingers_s=5.0)})
    holds = {0, 1, 4, 6}
    shown = [len(steady.update([_finding("x")] if tick in holds else [], NOW + tick)) for tick in range(13)]
    assert shown == [1] * 11 + [0, 0]


def test_what_goes_on_keeps_the_moment_that_it_began() -> None:
    steady = Steady({"x": Steadiness(lingers_s=5.0)})
    shown = [steady.update([_finding("x", since_s=NOW + tick - 10.0)], NOW + tick) for tick in range(4)]
    assert [finding.since_s for (finding,) in shown] == [NOW - 10.0] * 4
    assert steady.update([], NOW + 20.0) == []
    assert steady.update([_finding("x", since_s=NOW + 11.0)], NOW + 21.0)[0].since_s == NOW + 11.0, "another one"


def test_a_graver_severity_lingers_as_its_finding_does() -> None:
    steady = Steady({"x": Steadiness(lingers_s=5.0)})
    severities: tuple[api.Severity, ...] = ("info", "warning", "info", "info", "warning") + ("info",) * 6
    told = [steady.update([_finding("x", severity=each)], NOW + at)[0].severity for at, each in enumerate(severities)]
    assert told == ["info", *["warning"] * 8, "info", "info"]
    at_once = Steady({})
    assert [at_once.update([_finding("x", severity=each)], NOW)[0].severity for each in severities] == list(severities)


def shown_at(steady: Steady, holds: Callable[[int], bool], seconds: int) -> list[bool]:
    """Whether the cause `x`, which holds at some seconds, is shown at each."""
    return [bool(steady.update([_finding("x")] if holds(at) else [], NOW + at)) for at in range(seconds)]


def begins(shown: list[bool]) -> int:
    return sum(now and not before for before, now in zip([False, *shown], shown, strict=False))


RETURNS = Steadiness(lingers_s=10.0, returns_s=120.0)


@pytest.mark.parametrize(("holds_s", "every_s"), [(1, 20), (15, 60), (30, 90), (5, 120)])
def test_what_comes_back_again_and_again_stays(holds_s: int, every_s: int) -> None:
    shown = shown_at(Steady({"x": RETURNS}), lambda at: at % every_s < holds_s, 3600)
    assert begins(shown) <= 5
    assert all(shown[600:])


def test_it_stays_no_longer_than_two_minutes_after_it_held_last() -> None:
    shown = shown_at(Steady({"x": RETURNS}), lambda at: at < 900 and at % 60 < 15, 1200)
    last = max(at for at in range(900) if at % 60 < 15)
    assert shown[last + 20], "longer than usual"
    assert not any(shown[last + 120 :])


def test_what_stayed_away_lingers_as_at_first() -> None:
    shown = shown_at(Steady({"x": RETURNS}), lambda at: at in (0, 30, 200), 400)
    assert [at for at in range(1, 400) if shown[at - 1] and not shown[at]] == [10, 50, 210]


def test_a_blink_that_was_not_shown_is_no_return() -> None:
    steady = Steady({"x": RETURNS._replace(begins_after_s=3.0)})
    assert not any(shown_at(steady, lambda at: at % 20 < 2, 300))
    assert sum(shown_at(Steady({"x": RETURNS._replace(begins_after_s=3.0)}), lambda at: at < 4, 100)) == 1 + 9


def test_others_linger_no_longer_however_often_they_come() -> None:
    shown = shown_at(Steady({"x": Steadiness(lingers_s=5.0)}), lambda at: at % 20 < 3, 200)
    assert shown == [at % 20 < 2 + 5 for at in range(200)]
