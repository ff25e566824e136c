"""When requests that end badly are a finding, and all that is normal."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.engine_world import EngineWorld

from aie_agent.analysis.engine_causes.outcomes import client_flood, error_rate, requests_rejected
from aie_agent.analysis.findings import EngineCause
from aie_telemetry.catalogue import CATALOGUE

CAUSES: tuple[EngineCause, ...] = (error_rate, client_flood, requests_rejected)
ALL = {"ok": 0, "error": 0, "timeout": 0, "rejected": 0, "cancelled": 0}


def outcomes(**counts: Any) -> dict[str, Any]:
    return {"outcomes": {**ALL, **counts}}


def found_at(cause: EngineCause, seconds: int, world: EngineWorld, **kwargs: Any) -> int | None:
    """After how many such seconds a cause is found."""
    for second in range(1, seconds + 1):
        world.serve(1, **kwargs)
        if world.engine(cause):
            return second
    return None


def test_all_requests_fail() -> None:
    world = EngineWorld()
    world.serve(100, **outcomes(ok=2))
    assert found_at(error_rate, 20, world, **outcomes(error=2)) == 3
    world.serve(10, **outcomes(error=2))
    finding = world.engine(error_rate)
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity) == ("error_rate", "e", "critical")
    assert "limit 20% and 5 requests" in finding.evidence[0].text
    assert "log" in finding.advice
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def test_some_of_many_fail() -> None:
    world = EngineWorld()
    assert found_at(error_rate, 100, world, **outcomes(ok=10, timeout=1)) is not None
    finding = world.engine(error_rate)
    assert finding is not None
    assert finding.severity == "warning"
    assert "deadline" in finding.advice


def test_most_of_few_fail() -> None:
    world = EngineWorld()
    world.serve(100, **outcomes(ok=1))
    world.serve(220, **outcomes(error=lambda second: second % 40 == 0))
    finding = world.engine(error_rate)
    assert finding is not None
    assert "last 240 s" in finding.evidence[0].text


ERRORS: dict[str, dict[str, Any]] = {
    "all are well": outcomes(ok=5),
    "one error in a quiet minute": outcomes(ok=lambda second: second % 30 == 0, error=lambda second: second == 100),
    "four errors in a quiet minute": outcomes(ok=lambda second: second % 30 == 0, error=lambda second: 100 <= second < 104),
    "one of a hundred": outcomes(ok=10, error=lambda second: second % 10 == 0),
    "one of twenty-one": outcomes(ok=20, error=1),
    "clients that leave": outcomes(ok=1, cancelled=5),
    "requests that are refused": outcomes(ok=1, rejected=5),
    "nothing ends": outcomes(),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_that_are_normal(name: str) -> None:
    assert found_at(error_rate, 280, EngineWorld(), **ERRORS[name]) is None


def test_a_restart_is_no_failure() -> None:
    """Counters begin at 0 again; what they show then is what came since."""
    world = EngineWorld()
    world.serve(60, **outcomes(ok=10, error=0))
    after = EngineWorld()
    after.store, after.now_s = world.store, world.now_s
    after.serve(60, **outcomes(ok=10, error=0))
    assert after.engine(error_rate) is None


def test_a_flood_is_found_within_ten_seconds() -> None:
    world = EngineWorld()
    world.serve(60, requests_waiting=0, requests_running=2, requests_received_total=5, **outcomes(ok=5))
    flood = {"requests_waiting": 30, "requests_running": 16, "requests_received_total": 200, **outcomes(ok=5, rejected=195)}
    after = found_at(client_flood, 20, world, **flood)
    assert after is not None
    assert after <= 10
    finding = world.engine(client_flood)
    assert finding is not None
    assert finding.cause == "client_flood"
    assert "requests a second came" in finding.evidence[1].text
    assert "200.0 requests a second came since it refuses some; 5.0 in the" in finding.evidence[1].text
    assert "30 requests wait now beside 16" in finding.evidence[2].text
    assert [each[:28] for each in finding.not_visible] == ["why requests are refused: it", "whether these are new reques"]
    assert finding.since_s == world.now_s - after
    assert world.engine(requests_rejected) is None, "one thing has one name"
    assert world.engine(error_rate) is None
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def test_what_an_engine_refuses_for_want_of_a_place_is_a_flood_and_the_rest_is_not() -> None:
    queue = {"requests_waiting": 30, "requests_running": 16}
    bad, flood, both = EngineWorld(), EngineWorld(), EngineWorld()
    for world in (bad, flood, both):
        world.serve(60, requests_refused_full_total=0, **outcomes(ok=5))
    bad.serve(60, requests_refused_full_total=0, **queue, **outcomes(ok=5, rejected=20))
    flood.serve(60, requests_refused_full_total=20, **queue, **outcomes(ok=5, rejected=20))
    both.serve(60, requests_refused_full_total=12, **queue, **outcomes(ok=5, rejected=20))
    found = [[cause.__name__ for cause in CAUSES if world.engine(cause)] for world in (bad, flood, both)]
    assert found == [["requests_rejected"], ["client_flood"], ["client_flood", "requests_rejected"]]
    told = both.engine(client_flood)
    assert told is not None
    assert "120 were refused" in told.evidence[0].text
    assert [each[:27] for each in told.not_visible] == ["whether these are new reque"], "nobody knows who asks again"


def test_without_the_reason_a_long_queue_is_it_and_a_short_one_is_not() -> None:
    long, short = EngineWorld(), EngineWorld()
    for world in (long, short):
        world.serve(60, requests_waiting=0, **outcomes(ok=5))
    long.serve(60, requests_waiting=8, **outcomes(ok=5, rejected=20))
    short.serve(60, requests_waiting=7, **outcomes(ok=5, rejected=20))
    told = long.engine(client_flood)
    assert told is not None
    assert "why requests are refused" in told.not_visible[0]
    assert short.engine(client_flood) is None
    assert short.engine(requests_rejected) is not None


@pytest.mark.parametrize(("ok", "severity"), [(20, "info"), (1, "warning")])
def test_requests_that_are_refused_without_a_queue(ok: int, severity: str) -> None:
    world = EngineWorld()
    world.serve(60, requests_waiting=0, **outcomes(ok=ok, rejected=4))
    finding = world.engine(requests_rejected)
    assert finding is not None
    assert (finding.cause, finding.severity) == ("requests_rejected", severity)
    assert world.engine(client_flood) is None


REFUSED: dict[str, dict[str, Any]] = {
    "none": outcomes(ok=5),
    "one broken request in a minute": outcomes(ok=lambda second: second % 20 == 0, rejected=lambda second: second % 60 == 0),
    "a few of many": outcomes(ok=20, rejected=1),
    "one of eleven": outcomes(ok=10, rejected=1),
}


@pytest.mark.parametrize("cause", [client_flood, requests_rejected])
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_that_are_normal(name: str, cause: EngineCause) -> None:
    assert found_at(cause, 200, EngineWorld(), requests_waiting=5, **REFUSED[name]) is None


@pytest.mark.parametrize("cause", CAUSES)
def test_nothing_is_said_of_what_is_not_known(cause: EngineCause) -> None:
    world = EngineWorld()
    assert world.engine(cause) is None
    world.serve(60, outcomes={"error": 5, "rejected": 5})
    assert world.engine(cause) is None, "how many end well is not said"
