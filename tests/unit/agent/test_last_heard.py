"""What ran in an engine that is gone is known for as long as it is down, whatever the store forgets."""

from __future__ import annotations

import pytest
from fakes.engine_world import EngineWorld, down

from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.engine_causes.gone import OLD_NEWS_S, engine_down
from aie_agent.samples import Batch, Point
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import Kind

MOMENTS_S = (10, 298, 302, 599, 601, 1200)
"""Seconds after an engine went: around when the store has forgotten it, and after `OLD_NEWS_S`."""


def told_of(gone: EngineWorld) -> list[Finding]:
    """What the diagnosis, which looks each second, shows at these moments, of a store that forgets as the agent's does."""
    diagnosis, went_s = Diagnosis(engine_causes=(engine_down,), subject_causes=()), gone.now_s
    shown: list[Finding] = []
    for second in range(1, MOMENTS_S[-1] + 1):
        gone.now_s = went_s + second
        found = diagnosis.update(gone.view, gone.now_s)
        gone.store.evict(gone.now_s)
        shown += found if second in MOMENTS_S else ()
    assert not gone.store.scalars("aie_engine_requests_running"), "nobody else knows any more"
    return shown


@pytest.mark.parametrize(
    ("configured", "requests", "severities"),
    [
        (frozenset({"e"}), 3, ["critical"] * 6),
        (frozenset({"e"}), 0, ["info", *["warning"] * 5]),
        (frozenset(), 3, [*["critical"] * 4, "info", "info"]),
        (frozenset(), 0, ["info"] * 6),
    ],
)
def test_what_ran_in_it_is_remembered_for_as_long_as_it_is_down(
    configured: frozenset[str], requests: int, severities: list[str]
) -> None:
    world = EngineWorld()
    world.serve(30, requests_running=requests)
    gone = down(world, world.now_s + 1, configured=configured)
    told = told_of(gone)
    assert MOMENTS_S[3] < OLD_NEWS_S < MOMENTS_S[4] + 1
    assert [each.severity for each in told] == severities
    how = "is gone: it has no process left, and 3 requests were in it" if requests else "stopped while idle: it has no process left"
    assert {each.summary for each in told} == {f"engine e {how}"}
    text = f"{requests} requests ran when it was last heard, 1 s before it went (limit 0)"
    assert {each.evidence[1].text for each in told} == {text}
    assert {each.not_visible for each in told} == {()}


def test_what_it_told_before_it_went_may_come_a_little_later_and_another_end_is_another() -> None:
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(engine_down,), subject_causes=())
    world.serve(30, requests_running=3)
    went_s, shown = world.now_s, {}
    for second in range(1, 60):
        gone = down(world, went_s + 1 if second < 40 else went_s + 30)
        for late_s, running in ((3, 5.0), (7, 0.0)):
            if second == late_s:
                point = Point("aie_engine_requests_running", Kind.GAUGE, (("engine", "e"), ("model", "m")), running)
                world.store.apply(Batch("host", went_s, [point]))
        shown[second] = [each.summary for each in diagnosis.update(gone.view, went_s + second)]
    gone_with = "engine e is gone: it has no process left, and {} requests were in it"
    assert shown[3] == [gone_with.format(5)]
    assert shown[39] == [gone_with.format(5)], "what comes long after is not of then"
    assert shown[40] == ["engine e stopped while idle: it has no process left"]


def shown_in_a_loop(began_late_s: float) -> list[Finding]:
    """What is shown last of each crash of an engine that was killed with eight requests, and dies again each minute after 20 s
    without a page. Its processes say that they began `began_late_s` after it went before."""
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(engine_down,), subject_causes=())
    started = "aie_process_start_time_seconds engine=e"
    world.serve(30, requests_running=8, more={started: world.now_s - 600.0})
    begin_s, shown = world.now_s, list[Finding]()
    for crash in range(5):
        went_s = begin_s + 60.0 * crash + 1
        gone = down(world, went_s, configured=frozenset({"e"}))
        for second in range(39):
            gone.now_s = went_s + second
            found = diagnosis.update(gone.view, gone.now_s)
        shown += found
        world.now_s = went_s + 38
        world.live(21, {started: went_s + began_late_s})
        diagnosis.update(world.view, world.now_s)
        world.store.evict(world.now_s)
    return shown


def test_what_was_lost_at_the_first_crash_is_not_lost_again_at_each() -> None:
    first, *others = shown_in_a_loop(39.0)
    assert first.severity == "critical"
    assert first.summary == "engine e is gone: it has no process left, and 8 requests were in it"
    assert {(each.severity, each.summary) for each in others} == {("warning", "engine e is gone: it has no process left")}
    assert {each.not_visible for each in others} == {("whether requests ran in it: it did not say, or too long ago",)}


def test_what_its_own_processes_told_is_of_them_however_long_ago() -> None:
    """They are as old as before: it was not restarted, and its page fell silent."""
    told = shown_in_a_loop(-1000.0)
    assert {each.summary for each in told[1:4]} == {
        "engine e is gone: it has no process left; 8 requests ran in it before: they had ended, or are lost"
    }


def test_a_process_that_begins_when_the_others_go_is_no_restart() -> None:
    """Whatever writes the core outlives them by a second."""
    world = EngineWorld()
    started = "aie_process_start_time_seconds engine=e"
    world.serve(30, requests_running=8, more={started: world.now_s - 600.0})
    world.live(1, {started: world.now_s + 1})
    gone = down(world, world.now_s + 1).engine(engine_down)
    assert gone is not None
    assert gone.summary.endswith("and 8 requests were in it")


@pytest.mark.parametrize(("went_again_s", "is_known"), [(0.0, True), (30.0, False)])
def test_it_is_remembered_when_the_clock_is_set_back(went_again_s: float, is_known: bool) -> None:
    """To before it went: what it told last is forgotten, and might come again. Not of what went another time."""
    world, diagnosis = EngineWorld(), Diagnosis(engine_causes=(engine_down,), subject_causes=())
    world.serve(30, requests_running=3)
    went_s = world.now_s + 1
    gone = down(world, went_s, configured=frozenset({"e"}))
    for second in range(700):
        diagnosis.update(gone.view, went_s + second)
        gone.store.evict(went_s + second)
    assert not gone.store.scalars("aie_engine_requests_running")
    after = down(world, went_s + went_again_s, configured=frozenset({"e"}))
    (found,) = diagnosis.update(after.view, went_s + went_again_s + 4)
    assert found.summary.endswith("and 3 requests were in it") is is_known
    assert bool(found.not_visible) is not is_known
