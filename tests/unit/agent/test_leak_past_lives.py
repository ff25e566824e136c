"""An engine that leaks and is restarted each night, live: what rises in each life is told over its restarts."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from aie_agent.analysis.leaks.past_lives import PastLives
from aie_agent.analysis.leaks.settings import LeakSettings
from tests.fakes.leak_world import GB, HOUR, LEAK_S, MB, SCALE, World

Shape = Callable[[float], float]


def _lives(world: World, shape: Shape, count: int, hours: float = 20.0) -> None:
    """So many lives of an engine, each of which begins with a restart; `shape` is in bytes, of scaled hours since then."""
    for _ in range(count):
        world.tgids = [each + 10 for each in world.tgids]
        world.run(hours, lambda second: {"physical": shape(second / HOUR) + world.noise()})


def _leaks(hour: float) -> float:
    return 12 * GB + LEAK_S * HOUR * hour


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
    world.run(1, lambda second: {"physical": _leaks(1 + second / HOUR) + world.noise()})
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
    _lives(world, lambda _: 12 * GB, 1, hours=12)
    assert world.only().summary.count("in each of its lives") == 1
    world.run(3, lambda _: {"physical": 12 * GB + world.noise()})
    assert world.found() == []
    _lives(world, lambda _: 12 * GB, 1, hours=1)
    assert world.found() == []


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


def test_a_saved_life_that_was_tampered_with() -> None:
    world = World("cpu")
    _lives(world, _leaks, 2)
    _lives(world, _leaks, 1, hours=0.5)
    saved = json.loads(json.dumps(world.analyser.dump()))["engines"]["e"]["lives"]["cpu"]
    settings = LeakSettings().scaled(SCALE)
    assert PastLives.restored(saved, settings).dump() == saved
    assert len(PastLives.restored(saved, settings).alike) == 2
    for broken in ([["physical"]], [["x", *saved[0][1:]]], [[saved[0][0], "x", saved[0][2]]], 5):
        with pytest.raises((ValueError, TypeError, KeyError)):
            PastLives.restored(broken, settings)  # type: ignore[arg-type]
    assert saved[0][2][5][0] == pytest.approx(12 * GB, abs=400 * MB)
