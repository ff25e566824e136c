"""For how long what a level was told to be counts: over a restart, and where a page is seldom read."""

from __future__ import annotations

import pytest
from fakes.cause_world import BEGIN_S
from fakes.engine_world import E, EngineWorld

from aie_agent.analysis.engine_causes.readings import RUNNING, highest, told_since_s
from aie_agent.samples import Batch, Point
from aie_telemetry.catalogue import Kind


def always(begin_s: float, end_s: float) -> bool:
    """Each long time without a level is a gap."""
    return end_s > begin_s


@pytest.mark.parametrize(("away_s", "most"), [(90.0, 0.0), (15.0, 0.0), (2.0, 8.0)])
def test_what_ran_in_the_process_before_does_not_run_in_this_one(away_s: float, most: float) -> None:
    """Within the last ten seconds, of which two seconds away are a part."""
    world = EngineWorld()
    world.serve(5, requests_running=8)
    world.now_s += away_s
    world.serve(3, requests_running=0)
    assert highest(world.view, "e", RUNNING, world.now_s - 10.0, world.now_s) == most


@pytest.mark.parametrize(("after_s", "most"), [(2.0, 5.0), (45.0, 3.0)])
def test_what_is_told_once_a_minute_counts_until_it_is_told_again(after_s: float, most: float) -> None:
    world = EngineWorld()
    for time_s, value in ((BEGIN_S, 5.0), (BEGIN_S + 60.0, 3.0)):
        world.store.apply(Batch("scrape:e", time_s, [Point(RUNNING, Kind.GAUGE, E, value)], period_s=60.0))
    now_s = BEGIN_S + 60.0 + after_s
    assert highest(world.view, "e", RUNNING, now_s - 10.0, now_s) == most


@pytest.mark.parametrize(("away_s", "told_s"), [(90.0, 2.0), (10.0, 60.0)])
def test_a_gap_in_what_is_told_is_one_that_is_too_long_for_a_page_that_is_late(away_s: float, told_s: float) -> None:
    world = EngineWorld()
    world.serve(100, requests_running=1)
    world.now_s += away_s
    world.serve(3, requests_running=1)
    assert told_since_s(world.view, "e", RUNNING, always, world.now_s - 60.0, world.now_s) == world.now_s - told_s


def test_a_long_time_without_a_level_is_a_gap_if_it_is_found_to_be_one() -> None:
    world, asked = EngineWorld(), list[tuple[float, float]]()
    world.serve(100, requests_running=1)
    gap = (world.now_s, world.now_s + 21.0)
    world.now_s += 20.0
    world.serve(3, requests_running=1)
    is_gap = lambda begin_s, end_s: bool(asked.append((begin_s, end_s)))  # noqa: E731
    assert told_since_s(world.view, "e", RUNNING, is_gap, world.now_s - 60.0, world.now_s) == world.now_s - 60.0
    assert asked == [gap]


def test_what_is_first_told_is_told_since_then_and_what_is_not_told_is_not() -> None:
    world = EngineWorld()
    assert told_since_s(world.view, "e", RUNNING, always, world.now_s - 60.0, world.now_s) == world.now_s
    world.serve(3, requests_running=1)
    assert told_since_s(world.view, "e", RUNNING, always, world.now_s - 60.0, world.now_s) == world.now_s - 2.0
    world.live(10, {})
    assert told_since_s(world.view, "e", RUNNING, always, world.now_s - 60.0, world.now_s) == world.now_s
