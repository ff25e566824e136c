"""Which restarts, sleeps and loads interrupt what is followed, and what goes on over them; caches that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from aie_agent.analysis.leaks.events import restarts_warm_up
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.low_readings import LowReadings
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import WholeVerdict, judge
from tests.fakes.leak_world import GB, HOUR, LEAK_S, MB, World, live_tensors

SETTINGS = LeakSettings()
STEP_S = 120.0
LEAK_MB_PER_HOUR = 168.0
Size = Callable[[float], float]


def _judge(
    hours: float, size_mb: Size, event: Callable[[int], str] = lambda _: "", *, seed: int = 0, empty_s: float = -1.0
) -> WholeVerdict:
    """Of a row in two minutes; sizes are of hours, events of the row's number. The row at `empty_s` has no size."""
    rng = np.random.default_rng(seed)

    def rows() -> Iterator[Sample]:
        for row in range(int(hours * 3600 / STEP_S)):
            size = size_mb(row * STEP_S / 3600) + rng.normal(0.0, 30.0)
            known = None if row * STEP_S == empty_s else size * MB
            yield Sample(row * STEP_S, physical_bytes=known, event=event(row))

    return judge(rows(), Seen(), SETTINGS)


def _leak(hour: float) -> float:
    return 20_000 + LEAK_MB_PER_HOUR * hour


def _each(rows: int, name: str) -> Callable[[int], str]:
    return lambda row: name if row % rows == 0 else ""


def _told(verdict: WholeVerdict) -> str:
    return "\n".join(verdict.evidence)


@pytest.mark.parametrize(("hours", "leaks"), [(72, True), (40, False)])
def test_single_readings_that_are_far_too_low_are_gaps(hours: int, leaks: bool) -> None:
    def size(hour: float) -> float:
        return 500 if hour > 0 and round(hour * 30) % 150 == 0 else 20_000 + leaks * LEAK_MB_PER_HOUR * hour

    verdict = _judge(hours, size)
    assert verdict.verdict == ("leak" if leaks else "none")
    assert "physical sizes of less than half were passed over" in _told(verdict)
    assert "restarted" not in _told(verdict)


def test_two_low_readings_are_a_restart_with_a_warm_up_after_it() -> None:
    """A warm-up of 3 GB over four hours, after the start and after the restart, is none of it."""

    def size(hour: float) -> float:
        since = hour if hour < 36 else hour - 36
        return 500 if 36 <= hour < 36.1 else 20_000 + 3000 * (1 - np.exp(-since / 1.5))

    verdict = _judge(60, size)
    assert verdict.verdict == "none"
    assert "1 times the engine restarted" in _told(verdict)


@pytest.mark.parametrize("empty_s", [-1.0, 1800.0], ids=["all known", "no size at the end of the warm-up"])
def test_a_restart_of_which_one_row_tells_ends_no_leak_as_retained(empty_s: float) -> None:
    verdict = _judge(60, lambda hour: 500 if 40 <= hour < 40.01 else _leak(hour if hour < 40 else hour - 40), empty_s=empty_s)
    assert verdict.verdict == "leak"
    assert "the engine restarted then" in _told(verdict)


def test_low_sizes_in_turn() -> None:
    told = {True: [], False: []}  # type: ignore[var-annotated]
    sizes = [20.0, 5.0, None, 5.0, 12.0, 19.0, 5.0, 12.0, 12.0]
    for known, found in told.items():
        low = LowReadings(wake_s=30.0, longest_s=100.0)
        found += [low.take(20.0 * at, size, 20.0, restarts_told=known) for at, size in enumerate(sizes)]
    usual, gap, restart = "usual", "gap", "restart"
    assert told[True] == [usual, gap, gap, gap, gap, usual, gap, gap, gap]
    assert told[False][:4] == [usual, gap, gap, restart]
    low = LowReadings(wake_s=30.0, longest_s=100.0)
    assert low.take(0.0, 5.0, None, restarts_told=True) == usual, "not warm yet"
    assert [low.take(50.0 * at, 5.0, 20.0, restarts_told=True) for at in range(1, 5)] == [gap, gap, restart, restart]


@pytest.mark.parametrize(
    "name", ["load test", "load-balancer added", "capture of packets", "scale note", "graph looks odd", "start of shift"]
)
def test_notes_interrupt_nothing(name: str) -> None:
    assert not restarts_warm_up(name)
    assert _judge(36, _leak, _each(150, name)).verdict == "leak"


@pytest.mark.parametrize("name", ["lora_load", "graph_capture", "model reloaded", "deployed v2"])
@pytest.mark.parametrize("rows", [30, 180])
def test_what_goes_on_over_loads_is_suspect(name: str, rows: int) -> None:
    """Every hour, and every six: too short for a floor of a day."""
    assert restarts_warm_up(name)
    verdict = _judge(48, _leak, _each(rows, name))
    assert verdict.verdict == "suspect"
    assert verdict.rate_bytes_per_s == pytest.approx(LEAK_MB_PER_HOUR * MB / 3600, rel=0.1)
    assert "none of them gives back what came before" in _told(verdict)


def test_what_rose_is_told_where_nothing_can_be_said() -> None:
    verdict = _judge(20, _leak, _each(150, "lora_load"))
    assert verdict.verdict == "not_enough_data"
    assert "over the whole recording physical memory rose by 3." in _told(verdict)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "size",
    [
        lambda hour: 20_000,
        lambda hour: 20_000 + 3000 * (1 - np.exp(-(hour % 12) / 2)),
        lambda hour: 20_000 + LEAK_MB_PER_HOUR * (hour % 12),
        lambda hour: 20_000 + 500 * min(hour // 12, 3),
        lambda hour: 20_000 + 1500 * np.sin(2 * np.pi * hour / 24),
    ],
    ids=["flat", "warm-ups", "leaks that restarts end", "three adapters", "the time of day"],
)
def test_nothing_goes_on_over_restarts_that_end_it(size: Size, seed: int) -> None:
    """Restarts every twelve hours."""
    verdict = _judge(72, size, _each(360, "engine_restart"), seed=seed)
    assert "none of them gives back" not in _told(verdict)
    assert verdict.verdict in ("none", "not_enough_data", "suspect")


def _with_cache(hours: float, physical_mb: Size, cache_mb: Size) -> WholeVerdict:
    rng = np.random.default_rng(1)
    times = [row * STEP_S for row in range(int(hours * 3600 / STEP_S))]
    rows = (
        Sample(t, physical_bytes=(physical_mb(t / 3600) + rng.normal(0, 30)) * MB, cache_bytes=cache_mb(t / 3600) * MB)
        for t in times
    )
    return judge(rows, Seen(), SETTINGS)


def test_a_cache_that_grows_for_days_is_suspect() -> None:
    verdict = _with_cache(60, _leak, lambda hour: LEAK_MB_PER_HOUR * hour)
    assert (verdict.verdict, verdict.leak_class) == ("suspect", "cache_growth")
    assert "it is a cache that grows" in _told(verdict)


def test_a_leak_beside_a_cache_is_the_leak_and_says_what_was_taken_off() -> None:
    verdict = _with_cache(48, lambda hour: _leak(hour) + 100 * hour, lambda hour: 100 * hour)
    assert (verdict.verdict, verdict.leak_class) == ("leak", "unknown")
    assert "what known caches hold is taken off: " in _told(verdict)
    assert "4.77 GB of the last" in _told(verdict)


@pytest.mark.parametrize(
    ("physical", "cache"),
    [
        (lambda hour: 20_000, lambda hour: 100 * hour),
        (lambda hour: 20_000 + 600 * min(hour, 8), lambda hour: 600 * min(hour, 8)),
        (lambda hour: 20_000 + 150 * min(hour, 30), lambda hour: 150 * min(hour, 30)),
    ],
    ids=["a pool of fixed size that fills", "full after 8 hours", "full after 30 hours"],
)
def test_a_cache_that_fills_is_none(physical: Size, cache: Size) -> None:
    verdict = _with_cache(72, physical, cache)
    assert verdict.verdict == "none"
    assert "what known caches hold is taken off: " in _told(verdict)


def test_one_low_reading_of_a_process_that_lives_clears_no_leak() -> None:
    world = World("cuda:0")
    world.run(27, live_tensors(world))
    before = world.only()
    world.tick(physical=4 * GB, allocated=10 * GB + LEAK_S * 27 * HOUR, reserved=11 * GB + LEAK_S * 27 * HOUR)
    after = world.only()
    assert (after.severity, after.cause, after.since_s) == (before.severity, before.cause, before.since_s)
    assert after.severity == "warning"


@pytest.mark.parametrize("leaks", [True, False])
def test_an_engine_that_sleeps_at_night_is_followed_over_its_nights(leaks: bool) -> None:
    """Weights are put away for an hour of each day: the same process, at 4 GB a day."""
    world = World("cpu")
    for second in range(int(50 * HOUR)):
        asleep = second / HOUR % 24 > 23
        world.tick(physical=3 * GB if asleep else 20 * GB + leaks * LEAK_S * second + world.noise())
    assert [each.severity for each in world.found()] == (["warning"] if leaks else [])


def test_where_no_process_is_known_two_low_readings_are_a_restart() -> None:
    world = World("cpu")
    world.tgids = []
    world.run(14, lambda second: {"physical": 20 * GB + LEAK_S * second + world.noise()})
    assert world.found()
    for _ in range(2):
        world.tick(physical=3 * GB)
    assert world.found() == []
