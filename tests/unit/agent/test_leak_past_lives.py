"""An engine that leaks and is restarted each night, live: what rises in each life is told over its restarts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes.leak_lives import Shape, flat_life, goes_on, is_told, leaks, lives_of
from tests.fakes.leak_world import GB, HOUR, MB, World


def test_what_rises_in_each_life_is_told_over_restarts_of_engine_and_agent() -> None:
    world = World("cpu")
    lives_of(world, leaks, 1)
    assert [each.severity for each in world.found()] == ["info"]
    lives_of(world, leaks, 1, hours=1)
    assert world.found() == [], "one life is none"
    lives_of(world, leaks, 1)
    assert "a restart ended each" not in str(world.only().evidence), "a life of an hour says nothing, and one before it is one"
    lives_of(world, leaks, 1)
    lives_of(world, leaks, 1, hours=1)
    world.restart_agent()
    goes_on(world, leaks, 1, since=1.0)
    finding = world.only()
    assert (finding.cause, finding.severity, finding.device) == ("memory_leak", "info", "cpu")
    assert "it rises in each of its lives, by " in finding.summary
    assert "rose in each of 3 lives by 3." in finding.evidence[0].text
    assert finding.confidence is not None
    assert finding.confidence <= 0.5
    lives_of(world, leaks, 1)
    assert any("rose in each of 3 lives" in each.text for each in world.only().evidence), "beside what it tells by itself"


def test_a_life_without_a_rise_ends_it() -> None:
    world = World("cpu")
    lives_of(world, leaks, 2)
    lives_of(world, flat_life, 1, hours=12)
    assert is_told(world)
    goes_on(world, flat_life, 5, since=12.0)
    assert not is_told(world)
    lives_of(world, flat_life, 1, hours=1)
    assert not is_told(world)


def _by_day(hour: float) -> float:
    """The load of a life that begins at one at night: from six in the morning to midnight."""
    return 3.0 if 5 <= hour < 23 else 0.0


def _leaks_by_day(hour: float) -> float:
    return leaks(min(max(hour - 5, 0), 18))


def test_a_leak_that_goes_with_the_load_of_the_day() -> None:
    """It takes until the evening to be suspect, so what it does until the afternoon forgets nothing."""
    world = World("cpu")
    lives_of(world, _leaks_by_day, 2, 24, _by_day)
    lives_of(world, _leaks_by_day, 1, 15, _by_day)
    assert is_told(world)
    goes_on(world, _leaks_by_day, 9, _by_day, since=15.0)
    assert any("rose in each of 2 lives" in each.text for each in world.only().evidence)
    lives_of(world, flat_life, 1, 15, _by_day)
    assert "rose in each of 3 lives" in world.only().evidence[0].text
    goes_on(world, flat_life, 8, _by_day, since=15.0)
    assert not is_told(world), "it would tell by the end of the day"


def test_time_without_load_forgets_nothing() -> None:
    world = World("cpu")
    lives_of(world, leaks, 2)
    lives_of(world, flat_life, 1, 20, lambda _: 0.0)
    assert is_told(world)
    goes_on(world, flat_life, 17, since=20.0)
    assert not is_told(world), "the load is back, and it stands still"


def test_time_that_nobody_saw_forgets_nothing() -> None:
    world = World("cpu")
    lives_of(world, leaks, 2)
    lives_of(world, flat_life, 1, 2)
    world.now_s += 14 * HOUR
    goes_on(world, flat_life, 1)
    assert is_told(world), "the agent was away"
    world.now_s += 14 * HOUR
    lives_of(world, flat_life, 1, 1)
    assert is_told(world), "a life of three hours that were seen is none"


@pytest.mark.parametrize(("hours", "told"), [(10.0, False), (6.0, True)])
def test_a_life_that_ends_before_it_could_tell_leaves_the_newest(hours: float, told: bool) -> None:
    """Else what is mended and restarted twice a day would be told for days. Where it is not mended, the next tells of two."""
    world = World("cpu")
    lives_of(world, leaks, 3)
    lives_of(world, flat_life, 1, hours)
    assert is_told(world)
    lives_of(world, flat_life, 1, 1)
    assert is_told(world) is told
    lives_of(world, leaks, 1)
    lives_of(world, leaks, 1, 1)
    assert f"rose in each of {4 if told else 2} lives" in world.only().evidence[0].text


def _half_a_day(hour: float) -> float:
    return 3.0 if 6 <= hour < 18 else 0.0


def _leaks_half_a_day(hour: float) -> float:
    return leaks(min(max(hour - 6, 0), 12))


@pytest.mark.parametrize("restarted", [False, True], ids=["engine", "engine and agent"])
@pytest.mark.parametrize(("shape", "told"), [(flat_life, False), (_leaks_half_a_day, True)], ids=["mended", "leaks"])
def test_a_day_of_twelve_hours_that_is_restarted_each_night(shape: Shape, told: bool, restarted: bool) -> None:
    """It tells in the last hours of a day, so a day that does not rise ends before all of the time that would be asked."""
    world = World("cpu")
    lives_of(world, _leaks_half_a_day, 4, 24, _half_a_day)
    for _ in range(2):
        if restarted:
            world.restart_agent()
        lives_of(world, shape, 1, 23, _half_a_day)
    assert bool(world.found()) is told
    lives_of(world, shape, 1, 1, _half_a_day)
    assert is_told(world) is told


@pytest.mark.parametrize("restarted", [False, True], ids=["engine", "engine and agent"])
@pytest.mark.parametrize("load", [2.0, 0.0])
def test_what_does_not_rise_under_little_load_is_told_for_two_days(load: float, restarted: bool) -> None:
    """Mended and scaled out, or an engine that tells its load no more; it is a leak again where the next life rises so."""
    world = World("cpu")
    lives_of(world, leaks, 2, load=lambda _: 10.0)
    lives_of(world, flat_life, 1, 24, lambda _: load)
    if restarted:
        world.restart_agent()
    lives_of(world, flat_life, 1, 23, lambda _: load)
    assert is_told(world)
    goes_on(world, flat_life, 2, lambda _: load, since=23.0)
    assert not is_told(world)
    lives_of(world, leaks, 1, load=lambda _: 10.0)
    lives_of(world, leaks, 1, 1, load=lambda _: 10.0)
    assert "rose in each of 2 lives" in world.only().evidence[0].text


def test_crashes_each_hour_after_it_was_mended() -> None:
    world = World("cpu")
    lives_of(world, leaks, 2)
    lives_of(world, flat_life, 47, 1)
    assert is_told(world)
    lives_of(world, flat_life, 3, 1)
    assert not is_told(world)


@pytest.mark.parametrize(("hours", "told"), [(2.5, False), (9.0, True)])
def test_a_life_is_as_long_as_the_engine_was_up(hours: float, told: bool) -> None:
    """A cache that fills in the morning hours in which it runs, so that the fast lane suspects it, is no life of eight hours."""
    world = World("cpu")
    for _ in range(2):
        world.state, world.tgids = "up", [each + 10 for each in world.tgids]
        world.run(hours, lambda second: {"physical": 12 * GB + 400 * MB * second / HOUR + world.noise(1.0)})
        assert [each.severity for each in world.found()] == ["info"]
        world.state = "down"
        for _ in range(int(14 * HOUR)):
            world.now_s += 1
            world.analyser.observe(world.view, world.now_s)
    world.state = "up"
    lives_of(world, flat_life, 1, 1)
    assert is_told(world) is told


@pytest.mark.parametrize(
    ("shape", "hours"),
    [
        (lambda hour: 12 * GB, 20.0),
        (lambda hour: 12 * GB + 4 * GB * min(hour / 8, 1), 20.0),
        (lambda hour: 12 * GB + 3 * GB * (1 - np.exp(-hour / 2)), 20.0),
        (lambda hour: 12 * GB + 2 * GB * (hour / 6 % 1), 20.0),
        (lambda hour: 12 * GB - 1.5 * GB * np.cos(2 * np.pi * hour / 24), 24.0),
        (leaks, 6.0),
    ],
    ids=["flat", "a cache of 8 hours", "a warm-up", "a sawtooth", "the time of day", "crashes each six hours"],
)
def test_what_is_normal_is_not_told_over_restarts(shape: Shape, hours: float) -> None:
    world = World("cpu")
    lives_of(world, shape, 2, hours)
    lives_of(world, shape, 1, hours=1)
    assert world.found() == []
