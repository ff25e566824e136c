"""Lives of an engine whose memory a test shapes, each of which begins with a restart."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.leak_world import GB, HOUR, LEAK_S, World

Shape = Callable[[float], float]


def busy(_: float) -> float:
    """Three requests in flight."""
    return 3.0


def goes_on(world: World, shape: Shape, hours: float, load: Shape = busy, *, since: float = 0.0) -> None:
    """So many hours of a life, of which so many are over; `shape` is in bytes, of scaled hours of it."""

    def tick(second: float) -> dict[str, float]:
        hour = since + second / HOUR
        return {"physical": shape(hour) + world.noise(), "requests_running": load(hour)}

    world.run(hours, tick)


def lives_of(world: World, shape: Shape, count: int, hours: float = 20.0, load: Shape = busy) -> None:
    """So many lives of an engine, each of which begins with a restart."""
    for _ in range(count):
        world.tgids = [each + 10 for each in world.tgids]
        goes_on(world, shape, hours, load)


def leaks(hour: float) -> float:
    """The memory of one that leaks, in bytes, after so many scaled hours."""
    return 12 * GB + LEAK_S * HOUR * hour


def flat_life(_: float) -> float:
    """Of one that does not."""
    return 12 * GB


def is_told(world: World) -> bool:
    """Whether it is told of the lives before, and nothing else is."""
    found = world.found()
    assert len(found) < 2
    assert all("it rises in each of its lives, by " in each.summary for each in found)
    return bool(found)
