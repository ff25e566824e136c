"""An engine that leaks and is restarted each night, live: what rises in each life is told over its restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.past_lives import PastLives
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.watch import Watch
from aie_agent.samples import Batch
from tests.fakes.leak_world import GB, HOUR, LEAK_S, MB, SCALE, World

Shape = Callable[[float], float]


def _busy(_: float) -> float:
    return 3.0


def _goes_on(world: World, shape: Shape, hours: float, load: Shape = _busy, *, since: float = 0.0) -> None:
    """So many hours of a life, of which so many are over; `shape` is in bytes, of scaled hours of it."""

    def tick(second: float) -> dict[str, float]:
        hour = since + second / HOUR
        return {"physical": shape(hour) + world.noise(), "requests_running": load(hour)}

    world.run(hours, tick)


def _lives(world: World, shape: Shape, count: int, hours: float = 20.0, load: Shape = _busy) -> None:
    """So many lives of an engine, each of which begins with a restart."""
    for _ in range(count):
        world.tgids = [each + 10 for each in world.tgids]
        _goes_on(world, shape, hours, load)


def _leaks(hour: float) -> float:
    return 12 * GB + LEAK_S * HOUR * hour


def _flat(_: float) -> float:
    return 12 * GB


def _is_told(world: World) -> bool:
    """Whether it is told of the lives before, and nothing else is."""
    found = world.found()
    assert len(found) < 2
    assert all("it rises in each of its lives, by " in each.summary for each in found)
    return bool(found)


def test_what_rises_in_each_life_is_told_over_restarts_of_engine_and_agent() -> None:
    world = World("cpu")
    _lives(world, _leaks, 1)
    assert [each.severity for each in world.found()] == ["info"]
    _lives(world, _leaks, 1, hours=1)
    assert world.found() == [], "one life is none"
    _lives(world, _leaks, 1)
    assert "a restart ended each" not in str(world.only().evidence), "a life of an hour says nothing, and one before it is one"
    _lives(world, _leaks, 1)
    _lives(world, _leaks, 1, hours=1)
    world.restart_agent()
    _goes_on(world, _leaks, 1, since=1.0)
    finding = world.only()
    assert (finding.cause, finding.severity, finding.device) == ("memory_leak", "info", "cpu")
    assert "it rises in each of its lives, by " in finding.summary
    assert "rose in each of 3 lives by 3." in finding.evidence[0].text
    assert finding.confidence is not None
    assert finding.confidence <= 0.5
    _lives(world, _leaks, 1)
    assert any("rose in each of 3 lives" in each.text for each in world.only().evidence), "beside what it tells by itself"


def test_a_life_without_a_rise_ends_it() -> None:
    world = World("cpu")
    _lives(world, _leaks, 2)
    _lives(world, _flat, 1, hours=12)
    assert _is_told(world)
    _goes_on(world, _flat, 5, since=12.0)
    assert not _is_told(world)
    _lives(world, _flat, 1, hours=1)
    assert not _is_told(world)


def _by_day(hour: float) -> float:
    """The load of a life that begins at one at night: from six in the morning to midnight."""
    return 3.0 if 5 <= hour < 23 else 0.0


def _leaks_by_day(hour: float) -> float:
    return _leaks(min(max(hour - 5, 0), 18))


def test_a_leak_that_goes_with_the_load_of_the_day() -> None:
    """It takes until the evening to be suspect, so what it does until the afternoon forgets nothing."""
    world = World("cpu")
    _lives(world, _leaks_by_day, 2, 24, _by_day)
    _lives(world, _leaks_by_day, 1, 15, _by_day)
    assert _is_told(world)
    _goes_on(world, _leaks_by_day, 9, _by_day, since=15.0)
    assert any("rose in each of 2 lives" in each.text for each in world.only().evidence)
    _lives(world, _flat, 1, 15, _by_day)
    assert "rose in each of 3 lives" in world.only().evidence[0].text
    _goes_on(world, _flat, 8, _by_day, since=15.0)
    assert not _is_told(world), "it would tell by the end of the day"


def test_time_without_load_forgets_nothing() -> None:
    world = World("cpu")
    _lives(world, _leaks, 2)
    _lives(world, _flat, 1, 20, lambda _: 0.0)
    assert _is_told(world)
    _goes_on(world, _flat, 17, since=20.0)
    assert not _is_told(world), "the load is back, and it stands still"


def test_time_that_nobody_saw_forgets_nothing() -> None:
    world = World("cpu")
    _lives(world, _leaks, 2)
    _lives(world, _flat, 1, 2)
    world.now_s += 14 * HOUR
    _goes_on(world, _flat, 1)
    assert _is_told(world), "the agent was away"
    world.now_s += 14 * HOUR
    _lives(world, _flat, 1, 1)
    assert _is_told(world), "a life of three hours that were seen is none"


@pytest.mark.parametrize(("hours", "told"), [(10.0, False), (6.0, True)])
def test_a_life_that_ends_before_it_could_tell_leaves_the_newest(hours: float, told: bool) -> None:
    """Else what is mended and restarted twice a day would be told for days. Where it is not mended, the next tells of two."""
    world = World("cpu")
    _lives(world, _leaks, 3)
    _lives(world, _flat, 1, hours)
    assert _is_told(world)
    _lives(world, _flat, 1, 1)
    assert _is_told(world) is told
    _lives(world, _leaks, 1)
    _lives(world, _leaks, 1, 1)
    assert f"rose in each of {4 if told else 2} lives" in world.only().evidence[0].text


def _half_a_day(hour: float) -> float:
    return 3.0 if 6 <= hour < 18 else 0.0


def _leaks_half_a_day(hour: float) -> float:
    return _leaks(min(max(hour - 6, 0), 12))


@pytest.mark.parametrize("restarted", [False, True], ids=["engine", "engine and agent"])
@pytest.mark.parametrize(("shape", "told"), [(_flat, False), (_leaks_half_a_day, True)], ids=["mended", "leaks"])
def test_a_day_of_twelve_hours_that_is_restarted_each_night(shape: Shape, told: bool, restarted: bool) -> None:
    """It tells in the last hours of a day, so a day that does not rise ends before all of the time that would be asked."""
    world = World("cpu")
    _lives(world, _leaks_half_a_day, 4, 24, _half_a_day)
    for _ in range(2):
        if restarted:
            world.restart_agent()
        _lives(world, shape, 1, 23, _half_a_day)
    assert bool(world.found()) is told
    _lives(world, shape, 1, 1, _half_a_day)
    assert _is_told(world) is told


@pytest.mark.parametrize("restarted", [False, True], ids=["engine", "engine and agent"])
@pytest.mark.parametrize("load", [2.0, 0.0])
def test_what_does_not_rise_under_little_load_is_told_for_two_days(load: float, restarted: bool) -> None:
    """Mended and scaled out, or an engine that tells its load no more; it is a leak again where the next life rises so."""
    world = World("cpu")
    _lives(world, _leaks, 2, load=lambda _: 10.0)
    _lives(world, _flat, 1, 24, lambda _: load)
    if restarted:
        world.restart_agent()
    _lives(world, _flat, 1, 23, lambda _: load)
    assert _is_told(world)
    _goes_on(world, _flat, 2, lambda _: load, since=23.0)
    assert not _is_told(world)
    _lives(world, _leaks, 1, load=lambda _: 10.0)
    _lives(world, _leaks, 1, 1, load=lambda _: 10.0)
    assert "rose in each of 2 lives" in world.only().evidence[0].text


def test_crashes_each_hour_after_it_was_mended() -> None:
    world = World("cpu")
    _lives(world, _leaks, 2)
    _lives(world, _flat, 47, 1)
    assert _is_told(world)
    _lives(world, _flat, 3, 1)
    assert not _is_told(world)


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
    _lives(world, _flat, 1, 1)
    assert _is_told(world) is told


@pytest.mark.parametrize(
    ("shape", "hours"),
    [
        (lambda hour: 12 * GB, 20.0),
        (lambda hour: 12 * GB + 4 * GB * min(hour / 8, 1), 20.0),
        (lambda hour: 12 * GB + 3 * GB * (1 - np.exp(-hour / 2)), 20.0),
        (lambda hour: 12 * GB + 2 * GB * (hour / 6 % 1), 20.0),
        (lambda hour: 12 * GB - 1.5 * GB * np.cos(2 * np.pi * hour / 24), 24.0),
        (_leaks, 6.0),
    ],
    ids=["flat", "a cache of 8 hours", "a warm-up", "a sawtooth", "the time of day", "crashes each six hours"],
)
def test_what_is_normal_is_not_told_over_restarts(shape: Shape, hours: float) -> None:
    world = World("cpu")
    _lives(world, shape, 2, hours)
    _lives(world, shape, 1, hours=1)
    assert world.found() == []


def test_lives_that_are_not_alike() -> None:
    """Twice as fast, or from another level."""
    for other in (lambda hour: 12 * GB + 2.5 * LEAK_S * HOUR * hour, lambda hour: _leaks(hour) + 3 * GB):
        world = World("cpu")
        _lives(world, _leaks, 1)
        _lives(world, other, 1)
        _lives(world, _leaks, 1, hours=1)
        assert world.found() == []


def _saved(world: World) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(json.dumps(world.analyser.dump()))["engines"]["e"]["lives"]["cpu"]
    return saved


def test_when_a_life_told_is_known_after_a_restart_of_the_agent() -> None:
    world = World("cpu")
    _lives(world, _leaks, 1, hours=15)
    world.restart_agent()
    _goes_on(world, _leaks, 5, since=15.0)
    _lives(world, _leaks, 1, hours=1)
    ((line, _, _, told_bins, _),) = _saved(world)["lives"][0]
    assert line == "physical"
    assert 24 <= told_bins <= 29, "half hours, of 39"


def test_a_saved_life_that_was_tampered_with() -> None:
    world = World("cpu")
    _lives(world, _leaks, 2)
    saved = _saved(world)
    assert set(saved["told"]) == {"physical"}
    _lives(world, _leaks, 1, hours=1)
    saved = _saved(world)
    settings = LeakSettings().scaled(SCALE)
    assert PastLives.restored(saved, settings).dump() == saved
    assert len(PastLives.restored(saved, settings).alike) == 2
    assert PastLives.restored({**saved, "rose_s": None}, settings).alike, "an older agent's"
    first = saved["lives"][0][0]
    assert first[2][5][0] == pytest.approx(12 * GB, abs=400 * MB)
    lives: tuple[Any, ...] = (
        5, [[]], [5], [[["physical"]]], [[["x", *first[1:]]]], [[[first[0], "x", first[2], 3]]],
        [[[*first[:3], -1]]], [[[*first[:3], float("inf")]]], [[[*first, 1]]], [[first[:2]]],
        [[[*first[:4], 5]]], [[[*first[:4], [1.0, "x"]]]], [[[*first[:4], [1.0, 0.0, 0.0]]]],
    )  # fmt: skip
    wrong = [{**saved, "lives": each} for each in lives]
    wrong += [{**saved, "told": {"x": 1}}, {**saved, "told": {"physical": "x"}}, {**saved, "warm_s": "x"}, {**saved, "rose_s": "x"}]
    for broken in (*wrong, {}, 5, "x", [5]):
        with pytest.raises((ValueError, TypeError, KeyError)):
            PastLives.restored(broken, settings)


def test_a_state_in_which_a_life_was_one_line() -> None:
    world = World("cpu")
    _lives(world, _leaks, 3)
    saved = json.loads(json.dumps(world.analyser.dump()))
    of_cpu = saved["engines"]["e"]["lives"]
    of_cpu["cpu"] = [life[0][:3] for life in of_cpu["cpu"]["lives"]]
    world.analyser.restore(saved, world.now_s)
    _lives(world, _leaks, 1, hours=1)
    assert "rose in each of 3 lives" in world.only().evidence[0].text
    of_cpu["cpu"] = [["physical", "unknown"]]
    with pytest.raises(ValueError, match="not enough values"):
        world.analyser.restore(saved, world.now_s)


def test_lives_under_other_loads_are_alike() -> None:
    """One begins with five requests in flight, one with seventy, each of which needs memory while it runs."""
    world = World("cpu")
    for base in (5.0, 70.0):

        def load(hour: float, base: float = base) -> float:
            return base + 3 * float(np.sin(2.4 * int(hour * 6)))

        _lives(world, lambda hour, load=load: _leaks(hour) + 20 * MB * load(hour), 1, load=load)  # type: ignore[misc]
    _lives(world, lambda hour: _leaks(hour) + 60 * MB, 1, hours=1)
    assert _is_told(world)
    assert "rose in each of 2 lives by 3." in world.only().evidence[0].text


def _wavy(hour: float) -> float:
    return 70 + 3 * float(np.sin(2.4 * int(hour * 6)))


def _steady(_: float) -> float:
    return 70.0


@pytest.mark.parametrize(("first", "second"), [(_wavy, _steady), (_steady, _wavy), (_steady, _steady)])
@pytest.mark.parametrize(("more_bytes", "told"), [(0.0, True), (3 * GB, False)])
def test_lives_of_which_only_one_tells_what_a_request_needs(first: Shape, second: Shape, more_bytes: float, told: bool) -> None:
    """An engine whose load never changes, as a saturated one's, does not; their levels are compared all the same."""
    world = World("cpu")
    _lives(world, lambda hour: _leaks(hour) + 20 * MB * first(hour), 1, load=first)
    _lives(world, lambda hour: _leaks(hour) + 20 * MB * second(hour) + more_bytes, 1, load=second)
    _lives(world, lambda hour: _leaks(hour) + 20 * MB * second(hour), 1, hours=1, load=second)
    assert _is_told(world) is told


def test_a_state_in_which_lives_had_their_load_still() -> None:
    """As older agents wrote it: what a request needs was not saved with it."""

    def shape(hour: float) -> float:
        return _leaks(hour) + 50 * MB * _wavy(hour)

    world = World("cpu")
    _lives(world, shape, 1, load=_wavy)
    standing = world.analyser.dump()["engines"]["e"]["watches"]["cpu"]["lines"]["physical"]["standing"]
    _lives(world, shape, 1, load=_wavy)
    saved = json.loads(json.dumps(world.analyser.dump()))
    saved["engines"]["e"]["lives"]["cpu"] = [["physical", "unknown", standing]]
    world.analyser.restore(saved, world.now_s)
    _lives(world, shape, 1, hours=1, load=_wavy)
    assert _is_told(world)
    assert "rose in each of 2 lives by " in world.only().evidence[0].text


def test_two_lines_of_the_same_memory_whichever_rises_faster() -> None:
    """What the driver counts and what is beyond the allocator's are one leak on two lines."""
    settings = LeakSettings()
    watch, lives = Watch(settings), PastLives(settings)
    random, now_s = np.random.default_rng(0), 0.0
    for share in (0.95, 1.05):
        for minute in range(20 * 60):
            now_s += 60.0
            leaked = 2.8 * MB * minute
            physical, driver = (10.5 * GB + of * leaked + float(random.normal(0, 30 * MB)) for of in (1.0, share))
            watch.add(Sample(now_s, physical, 9 * GB, 10 * GB, driver, 3.0, requests=5.0 * minute))
            lives.pass_by(watch, now_s)
        assert [each.line.name for each in watch.found()] == sorted(("driver", "outside"), reverse=share < 1)
        lives.ended(watch, now_s)
        watch.restart()
    assert [each.line.name for each in lives.alike] == ["driver"] * 2


def test_two_devices_are_one_finding_the_worst_first() -> None:
    world = World("cuda:0")
    for hours in (20.0, 20.0, 1.0):
        world.tgids = [each + 10 for each in world.tgids]
        for second in range(int(hours * HOUR)):
            beside = world.gauge("aie_engine_memory_physical_bytes", 12 * GB + LEAK_S * second + world.noise(), device="cuda:1")
            world.store.apply(Batch("scrape:other", world.now_s + 1.0, beside))
            world.tick(physical=12 * GB + 2 * LEAK_S * second + world.noise())
    assert _is_told(world)
    finding = world.only()
    assert finding.device == "cuda:0"
    assert [each.text.split(" rose")[0] for each in finding.evidence] == [f"physical memory on cuda:{index}" for index in (0, 1)]
    assert "in each of 2 lives by 6." in finding.evidence[0].text
    assert "in each of 2 lives by 3." in finding.evidence[1].text
