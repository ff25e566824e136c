"""What looks like a leak for a day or for hours and is none: flushes, host caches, pools that fill ever more slowly, load."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.load_adjust import LoadFit, may_be_load
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import WholeVerdict, judge

Array = NDArray[np.float64]
Shape = Callable[[Array], Array]

SETTINGS = LeakSettings()
STEP_S = 120.0
MB = 1e6


def samples(
    hours: float, shape_mb: Shape, load: Shape | None = None, noise_mb: float = 30.0, step_s: float = STEP_S
) -> Iterator[Sample]:
    """A row in so many seconds; shapes are of hours."""
    t = np.arange(hours * 3600 / step_s) * step_s / 3600
    sizes = 12_000 + shape_mb(t) + np.random.default_rng(0).normal(0.0, noise_mb, len(t))
    loads = None if load is None else load(t)
    for row, hour in enumerate(t):
        in_flight = None if loads is None else float(loads[row])
        yield Sample(float(hour) * 3600, physical_bytes=float(sizes[row]) * MB, load=in_flight)


def whole(rows: Iterator[Sample], capacity_bytes: float | None = None) -> WholeVerdict:
    return judge(rows, Seen(), SETTINGS, capacity_bytes)


def leaks_at(rows: Iterator[Sample], line: Line | None = None) -> tuple[list[float], Line]:
    """In which hours a line became a leak."""
    line = Line(SETTINGS, SETTINGS.warm_up_s) if line is None else line
    began: list[float] = []
    before = line.level
    for row in rows:
        if row.time_s >= SETTINGS.warm_up_s and row.physical_bytes is not None:
            line.add(row.time_s, row.physical_bytes, row.load or 0.0)
            if line.level == "leak" != before:
                began.append(row.time_s / 3600)
            before = line.level
    return began, line


def flushed(period_h: float, phase: float, size_mb: float = 3000.0) -> Shape:
    return lambda t: size_mb * np.mod(t / period_h + phase, 1.0)


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("period_h", [24.0, 26.0, 30.0])
def test_a_daily_flush_is_no_leak(period_h: float, phase: float) -> None:
    """3 GB that are given back each day. A first cycle that rises for more than a day cannot be told from a leak; a second can."""
    rows = list(samples(120, flushed(period_h, phase)))
    verdict = whole(iter(rows))
    assert verdict.verdict in ("none", "retention"), verdict.evidence
    began, _ = leaks_at(iter(rows))
    assert len(began) <= (0 if period_h == 24 else 1)


def test_what_was_given_back_is_told() -> None:
    verdict = whole(samples(48, flushed(30.0, 0.0)))
    assert verdict.verdict == "retention"
    assert any("70 % of it or more was given back" in sentence for sentence in verdict.evidence)


def test_a_rise_beyond_what_was_given_back_is_a_leak() -> None:
    verdict = whole(samples(75, lambda t: np.where(t < 30, 100.0 * t, 150.0 * (t - 30))))
    assert verdict.verdict == "leak", verdict.evidence


def test_what_was_given_back_is_remembered_over_a_restart_of_the_agent() -> None:
    rows = list(samples(66, flushed(30.0, 0.0)))
    began, line = leaks_at(iter(rows[:1000]))
    assert len(began) == 1
    again, _ = leaks_at(iter(rows[1000:]), Line.restored(line.dump(), SETTINGS))
    assert again == []


def crashing(period_h: float, rate: float, event: str = "") -> Iterator[Sample]:
    """So many MB an hour, and back to the first level at once, over and over for three days."""
    before = 0.0
    for row in samples(72, lambda t: rate * np.mod(t, period_h), step_s=60.0):
        again = row.time_s % (period_h * 3600) < before
        before = row.time_s % (period_h * 3600)
        yield row._replace(event=event if again else "")


@pytest.mark.parametrize(("period_h", "rate"), [(12.0, 1200.0), (20.0, 300.0), (23.0, 480.0)])
def test_a_leak_that_crashes_each_day_is_not_called_none(period_h: float, rate: float) -> None:
    """Without events it is no other than a cache without a limit that is cleared."""
    verdict = whole(crashing(period_h, rate))
    assert verdict.verdict == "not_enough_data"
    assert "rises in each of " in verdict.evidence[0]
    assert "falls back at once" in verdict.evidence[0]
    restarted = whole(crashing(period_h, rate, "restart"))
    assert restarted.verdict == "suspect"
    assert restarted.rate_bytes_per_s == pytest.approx(rate * MB / 3600, rel=0.1)
    assert any("falls at restarts" in sentence for sentence in restarted.evidence)


def test_a_small_flush_each_day_says_what_repeats() -> None:
    verdict = whole(samples(96, flushed(24.0, 0.3)))
    assert verdict.verdict == "none"
    assert "rises in each of " in verdict.evidence[0]


@pytest.mark.parametrize(
    "shape",
    [
        lambda t: 9000 * (1 - np.exp(-np.mod(t, 24.0) / 4.0)),  # a cache that is cleared daily, and fills
        lambda t: 9000 * np.minimum(np.mod(t, 24.0) / 8.0, 1.0),
        lambda t: 9000 * np.mod(t / 6.0, 1.0),  # several times a day
        lambda t: 6000 * (1 + np.sin(2 * np.pi * t / 24.0)),  # load of a day that nobody tells
        lambda t: 9000 * (np.mod(t, 24.0) < 10.0),
        lambda t: 0 * t,
    ],
)
def test_what_saturates_or_falls_slowly_is_no_life_of_a_leak(shape: Shape) -> None:
    for noise_mb in (5.0, 30.0, 150.0):
        verdict = whole(samples(96, shape, noise_mb=noise_mb))
        assert verdict.verdict == "none", verdict.evidence
        assert not any("lives" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize(("gb", "hours"), [(20, 6.0), (30, 8.0), (60, 12.0)])
def test_a_host_cache_that_fills_in_hours_is_at_most_suspect(gb: int, hours: float) -> None:
    def fill(t: Array) -> Array:
        return -4000 + gb * 1000 * np.minimum(t / hours, 1.0)

    assert whole(samples(hours, fill)).verdict == "suspect"
    assert whole(samples(hours + 12, fill)).verdict == "none"
    assert leaks_at(samples(hours + 12, fill))[0] == []


def test_what_fills_memory_within_hours_is_a_leak_where_its_size_is_known() -> None:
    def rows() -> Iterator[Sample]:
        return samples(6, lambda t: -4000 + 3400 * t)

    assert whole(rows(), capacity_bytes=40e9).verdict == "leak"
    assert whole(rows(), capacity_bytes=400e9).verdict == "suspect"


@pytest.mark.parametrize("tau_h", [15.0, 20.0, 25.0])
def test_what_fills_ever_more_slowly_ends(tau_h: float) -> None:
    """8 GB (1 - exp(-t / tau)): at 72 hours it rises by less than the limit."""
    for noise_mb in (1.0, 30.0):
        verdict = whole(samples(72, lambda t: 8000 * (1 - np.exp(-t / tau_h)), noise_mb=noise_mb))
        assert verdict.verdict == "none", verdict.evidence


def test_a_leak_beside_a_step_stays_one() -> None:
    """A pool taken in one step, in the first hours, is no curve that flattens."""
    began, line = leaks_at(samples(72, lambda t: 168 * t + np.where(t > 5, 4000.0, 0.0)))
    assert line.level == "leak"
    assert len(began) == 1


def test_a_leak_that_slows_with_its_load_stays_one() -> None:
    slower_h = 30.0

    def rise(t: Array) -> Array:
        return 168 * np.where(t < slower_h, t, slower_h + 0.3 * (t - slower_h))

    began, line = leaks_at(samples(72, rise, load=lambda t: np.where(t < slower_h, 40.0, 12.0)))
    assert line.level == "leak"
    assert len(began) == 1


@pytest.mark.parametrize(("hours", "idle_h"), [(132.0, 90.0), (54.0, 12.0)])
def test_a_leak_outlives_its_traffic(hours: float, idle_h: float) -> None:
    """42 hours of a leak, then no request comes, and memory stands still, for longer than anything is remembered."""
    busy_h = hours - idle_h

    def rows(until_h: float = hours) -> Iterator[Sample]:
        return samples(until_h, lambda t: 168 * np.minimum(t, busy_h), load=lambda t: np.where(t < busy_h, 5.0, 0.0), step_s=300.0)

    began, line = leaks_at(rows())
    assert line.level == "leak"
    assert len(began) == 1
    assert whole(rows()).verdict == "leak"
    _, again = leaks_at((row for row in rows() if row.time_s > 50 * 3600), Line.restored(leaks_at(rows(50.0))[1].dump(), SETTINGS))
    assert again.level == "leak", "a restart of the agent changes nothing"


def test_a_leak_that_stopped_ends_after_a_day_with_load_whatever_lies_between() -> None:
    """It rises for 42 hours; then requests come for eight hours a day, and it rises no more: a day of those is three days."""

    def load(t: Array) -> Array:
        return np.where((t < 42) | (np.mod(t - 42, 24) > 16), 5.0, 0.0)

    recorded = list(samples(42 + 24 * 5, lambda t: 168 * np.minimum(t, 42.0), load=load, step_s=300.0))
    _, line = leaks_at(row for row in recorded if row.time_s < (42 + 24 * 2) * 3600)
    assert line.level == "leak"
    _, line = leaks_at(iter(recorded))
    assert line.level == "none"
    assert whole(iter(recorded)).verdict == "none"


@pytest.mark.parametrize("noise_mb", [0.0, 30.0])
def test_a_suspicion_outlives_a_pause_and_ends_with_load(noise_mb: float) -> None:
    """Of the fast lane, and of half a day."""
    rise_h = 2.0 if noise_mb == 0 else 14.0

    def rows(again: float) -> Iterator[Sample]:
        def load(t: Array) -> Array:
            return np.where((t > rise_h) & (t < rise_h + 10), 0.0, again)

        return samples(rise_h + 18, lambda t: 168 * np.minimum(t, rise_h), load=load, noise_mb=noise_mb, step_s=60.0)

    _, paused = leaks_at(row for row in rows(5.0) if row.time_s < (rise_h + 10) * 3600)
    assert paused.level == "suspect"
    _, ended = leaks_at(rows(5.0))
    assert ended.level == "none"


def test_memory_that_rises_evenly_with_the_load_is_not_told() -> None:
    verdict = whole(samples(48, lambda t: 50 * t, load=lambda t: t))
    assert verdict.verdict == "not_enough_data"
    assert "rises evenly with the load" in verdict.evidence[0]
    assert "; warning: 2.3" in verdict.evidence[0], "GB, of 2.4 in all"
    assert "49.7 MB/h, are beyond what is known to go with requests; half a day" in verdict.evidence[0]
    quiet = whole(samples(2, lambda t: 50 * t, load=lambda t: t, noise_mb=0.0, step_s=60.0))
    assert quiet.verdict == "not_enough_data"
    assert "rises evenly with the load" in quiet.evidence[0]


def test_a_leak_beside_load_that_goes_up_and_down_is_told() -> None:
    """It grows over days, but varies by the hour, and memory does not go with that."""
    random = np.random.default_rng(0)
    verdict = whole(samples(48, lambda t: 168 * t, load=lambda t: np.round(20 + t / 2 + random.normal(0, 3, len(t)))))
    assert verdict.verdict == "leak", verdict.evidence


def test_how_much_more_may_go_with_a_request() -> None:
    random = np.random.default_rng(0)
    even, varied = LoadFit(), LoadFit()
    assert even.unsure_bytes_per_load() == np.inf
    for load in random.normal(0, 5, 100):
        even.add(2.0, 100.0)
        varied.add(float(load), 50 * float(load) + float(random.normal(0, 30)))
    assert even.bytes_per_load() == 0
    assert even.unsure_bytes_per_load() == np.inf, "it never varied"
    assert varied.bytes_per_load() == pytest.approx(50, abs=3)
    assert 0 < varied.unsure_bytes_per_load() < 5
    assert may_be_load([1, 2, 3], 100.0, 25.0)
    assert not may_be_load([1, 2, 3], 100.0, 24.0), "it explains less than half"
    assert not may_be_load([1, 3, 2], 100.0, 1000.0), "the load fell"
    assert not may_be_load([2, 2, 2], 100.0, np.inf)


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_too_short_in_the_recordings_own_time(scale: float) -> None:
    verdict = judge(iter([Sample(0.0, 1e9)]), Seen(), SETTINGS.scaled(scale))
    assert verdict.verdict == "not_enough_data"
    assert verdict.evidence[0].endswith("quiet counters 70 min" if scale == 1 else "quiet counters 70 s")


def pool(hours: float, held_mb: Shape, kept_mb: Shape | None = None, by_request_mb: float = 100.0) -> Iterator[Sample]:
    """A preallocated pool of 20 GB: bytes are flat. Requests take blocks, and `held_mb` is held beyond them; `kept_mb` is what the
    column of evictable blocks says."""
    t = np.arange(hours * 3600 / STEP_S) * STEP_S / 3600
    load = np.maximum(np.round(8 + 8 * np.sin(t * 4)), 0.0)
    held = held_mb(t) + by_request_mb * load
    kept = None if kept_mb is None else kept_mb(t)
    for row, hour in enumerate(t):
        evictable = None if kept is None else float(kept[row]) * MB
        cache = float(held[row]) * MB
        yield Sample(float(hour) * 3600, 20e9, load=float(load[row]), cache_bytes=cache, evictable_bytes=evictable)


def test_a_prefix_cache_that_fills_its_pool_loses_nothing() -> None:
    """For 40 hours it holds more and more, on purpose: nothing that it took is given back when requests end."""
    filled = whole(pool(40, lambda t: 400 * t, by_request_mb=0.0))
    assert filled.verdict == "none", filled.evidence
    assert any("evictable_bytes" in sentence for sentence in filled.evidence)
    told = whole(pool(40, lambda t: 400 * t, lambda t: 400 * t))
    assert told.verdict == "none"
    assert not any("evictable_bytes" in sentence for sentence in told.evidence)


@pytest.mark.parametrize("low_rows", [1, 2])
@pytest.mark.parametrize("event", ["", "engine_restart"])
def test_a_prefix_cache_that_fills_loses_nothing_over_a_restart_either(low_rows: int, event: str) -> None:
    """A reading that failed, or two, which are a restart; the event is named with the first. From there on copies follow it."""
    first = int(2 * 3600 / STEP_S)
    rows = [
        row._replace(physical_bytes=5e9, event=event if at == first else "") if first <= at < first + low_rows else row
        for at, row in enumerate(pool(40, lambda t: 400 * t, by_request_mb=0.0))
    ]
    filled = whole(iter(rows))
    assert (filled.verdict, filled.leak_class) == ("none", None), filled.evidence
    assert any("evictable_bytes" in sentence for sentence in filled.evidence)


@pytest.mark.parametrize("low_rows", [1, 2])
def test_blocks_that_are_told_to_be_lost_are_so_over_a_restart(low_rows: int) -> None:
    first = int(2 * 3600 / STEP_S)
    rows = list(pool(40, lambda t: 490 * t, lambda t: 400 * t, by_request_mb=0.0))
    rows[first : first + low_rows] = [row._replace(physical_bytes=5e9) for row in rows[first : first + low_rows]]
    assert whole(iter(rows)).verdict == "accounting"


def test_blocks_that_nobody_holds_are_lost() -> None:
    assert whole(pool(40, lambda t: 90 * t)).verdict == "accounting", "requests give back what they took, and these stay"
    beside_a_prefix_cache = whole(pool(40, lambda t: 490 * t, lambda t: 400 * t, by_request_mb=0.0))
    assert beside_a_prefix_cache.verdict == "accounting"
    assert beside_a_prefix_cache.rate_bytes_per_s == pytest.approx(90 * MB / 3600, rel=0.05)
