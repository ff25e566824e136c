"""Verdicts about whole files: what blocks of hours do not see, what the end of a file disproves, and how lives end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from aie_agent.analysis.leaks.block_floors import NO_ADJUST, Bin, Low
from aie_agent.analysis.leaks.events import gives_back, may_end_a_life, restarts_warm_up
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.over_days import rises_by_days
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import WholeVerdict, judge
from tests.fakes.leak_patterns import Array

_MB: Final = 1e6
Shape = Callable[[Array], Array]


def _traffic(hours: Array, phase: float = 0.0) -> Array:
    """Requests in flight: 10 at night, 70 by day."""
    return np.asarray(40 - 30 * np.cos(2 * np.pi * (hours / 24 + phase)))


def _judged(
    days: float, shape: Shape, load: Shape | None = None, events: dict[float, str] | None = None, seed: int = 0, step_s: int = 600
) -> WholeVerdict:
    """A file of 12 GB and a shape in MB over hours, under noise of 30 MB."""
    random = np.random.default_rng(seed)
    hours = np.arange(days * 86_400 / step_s) * step_s / 3600
    sizes = (12_000 + shape(hours) + random.normal(0, 30, len(hours))) * _MB
    loads = [None] * len(hours) if load is None else load(hours).tolist()
    named = {int(hour * 3600 / step_s): event for hour, event in (events or {}).items()}
    rows = zip(hours.tolist(), sizes.tolist(), loads, strict=True)
    samples = (Sample(h * 3600, size, load=at, event=named.get(i, "")) for i, (h, size, at) in enumerate(rows))
    return judge(samples, Seen(), LeakSettings())


def _poisson(hours: Array) -> Array:
    at = np.cumsum(np.random.default_rng(2).exponential(12, 200))
    return np.asarray(2000.0 * np.searchsorted(at, hours))


_SLOW: Final[dict[str, tuple[float, Shape]]] = {
    "traffic, 100 MB/h": (14, lambda t: 100 * t + 50 * _traffic(t)),
    "traffic, 60 MB/h beneath 6 GB": (7, lambda t: 60 * t + 100 * _traffic(t, 0.3)),
    "2 GB a day": (10, lambda t: 2000 * np.floor(t / 24)),
    "1.5 GB in 14 h": (10, lambda t: 1500 * np.floor((t + 3) / 14)),
    "1.5 GB in 20 h": (10, lambda t: 1500 * np.floor((t + 7) / 20)),
    "steps at random": (7, _poisson),
}


@pytest.mark.parametrize("name", _SLOW)
def test_what_rises_from_day_to_day_is_suspect(name: str) -> None:
    days, shape = _SLOW[name]
    verdict = _judged(days, shape)
    assert (verdict.verdict, verdict.leak_class, verdict.confidence) == ("suspect", "unknown", 0.5)
    hours = np.arange(days * 24)
    slope = np.polyfit(hours, shape(hours), 1)[0]
    assert verdict.rate_bytes_per_s is not None
    assert verdict.rate_bytes_per_s * 3600 / _MB == pytest.approx(slope, rel=0.2)
    assert "on the first day to" in verdict.evidence[0]


@pytest.mark.parametrize(
    ("sizes_gb", "rises"),
    [
        ([10.0, 12.4, 14.8, 14.7, 17.2, 19.6], False),
        ([10.0, 12.4, 14.8, 14.9, 17.2, 19.6], True),
        ([10.0, 12.4, 14.8, 14.7, 17.2, 19.6, 22.0], True),
        ([10.0, 12.4, 14.8, 13.4, 17.2, 19.6, 22.0], False),
    ],
)
def test_a_day_that_is_lower_than_the_one_before(sizes_gb: list[float], rises: bool) -> None:
    """Of seven days one may be, by a tenth of the rise; six are not sure enough for that."""
    bins = [Bin(number, Low(size * 1e9), size * 1e9, -1.0, 0.0) for number, size in enumerate(np.repeat(sizes_gb, 48).tolist())]
    assert (rises_by_days(bins, NO_ADJUST, LeakSettings()) is not None) is rises


@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_is_counted_at_moments_hides_no_leak(seed: int) -> None:
    random = np.random.default_rng(seed)

    def load(hours: Array) -> Array:
        return np.maximum(0, np.round(_traffic(hours, seed / 8) + random.normal(0, 6, len(hours))))

    verdict = _judged(7, lambda t: 100 * t + 50 * _traffic(t, seed / 8), load, step_s=300)
    assert verdict.verdict == "suspect"


def _grown(hours: Array, phase: float, a_day: float) -> Array:
    return np.asarray(_traffic(hours, phase) * (1 + a_day * hours / 24))


def _steps(hours: Array, phase: float) -> Array:
    at = np.sort(np.random.default_rng(int(phase * 8)).uniform(0, 240, 3))
    return np.asarray(2000.0 * np.searchsorted(at, hours))


_NORMAL: Final[dict[str, Callable[[Array, float], Array]]] = {
    "traffic": lambda t, p: 50 * _traffic(t, p),
    "weekend": lambda t, p: 200 * _traffic(t, p) * np.where((t / 24 + 7 * p) % 7 < 5, 1.0, 0.3),
    "weekly wave": lambda t, p: 2000 * np.sin(2 * np.pi * (t / 168 + p)) + 50 * _traffic(t),
    "flushed each day": lambda t, p: 3000 * np.mod(t / 24 + p, 1),
    "a cache fills for 60 h": lambda t, p: 12_000 * np.minimum(t / 60, 1) + 50 * _traffic(t, p),
    "a cache fills for 100 h": lambda t, p: 12_000 * np.minimum(t / 100, 1) + 50 * _traffic(t, p),
    "slower and slower, tau 20 h": lambda t, p: 10_000 * (1 - np.exp(-t / 20)) + 50 * _traffic(t, p),
    "slower and slower, tau 50 h": lambda t, p: 10_000 * (1 - np.exp(-t / 50)) + 50 * _traffic(t, p),
    "three steps of 2 GB": _steps,
    "traffic grows by a tenth a day, not told": lambda t, p: 50 * _grown(t, p, 0.1),
}


@pytest.mark.parametrize("name", _NORMAL)
@pytest.mark.parametrize("phase", [0.1, 0.6])
def test_what_is_normal_over_ten_days_is_nothing(name: str, phase: float) -> None:
    """Null: each of 400 such runs of 5 to 14 days was judged as without the days; docs/leaks.md has the rates."""
    verdict = _judged(10, lambda t: _NORMAL[name](t, phase), seed=int(8 * phase))
    assert (verdict.verdict, verdict.rate_bytes_per_s) == ("none", None)


@pytest.mark.parametrize("a_day", [0.05, 0.3])
def test_traffic_that_grows_and_is_told_is_nothing(a_day: float) -> None:
    def load(hours: Array) -> Array:
        noise = np.random.default_rng(0).normal(0, 6, len(hours))
        return np.maximum(0, np.round(_grown(hours, 0.2, a_day) + noise))

    verdict = _judged(10, lambda t: 100 * _grown(t, 0.2, a_day), load)
    assert verdict.verdict in ("none", "not_enough_data")


def _restarted(hours: Array, at_h: float) -> Array:
    return np.where(hours < at_h, hours, hours - at_h)


@pytest.mark.parametrize(
    "event",
    ["OOMKilled", "worker respawned", "Main process exited, code=killed", "Liveness probe failed: HTTP 503", "out of memory"],
)
def test_a_leak_that_ends_with_its_process_was_one(event: str) -> None:
    verdict = _judged(2.2, lambda t: 168 * _restarted(t, 40), events={40.0: event}, step_s=120)
    assert verdict.verdict == "leak"
    assert "the engine restarted then" in verdict.evidence


def test_events_that_ask_for_memory() -> None:
    asked = ("gc_collect", "gc.collect()", "empty_cache", "torch.cuda.empty_cache", "malloc_trim", "memory_probe", "gc")
    assert [event for event in asked if not gives_back(event)] == []
    others = ("Liveness probe failed: HTTP 503", "queue empty", "empty batch", "gc pause 300 ms", "collect metrics", "trim logs")
    assert [event for event in others if gives_back(event)] == []
    assert may_end_a_life("CUDA out of memory")
    assert not restarts_warm_up("CUDA out of memory"), "an engine may survive it"
    assert not may_end_a_life("memory at 80 %")


def test_an_oom_that_is_survived_makes_no_leak_less() -> None:
    verdict = _judged(3, lambda t: 168 * t, events={float(hour): "CUDA OOM" for hour in range(2, 70, 7)})
    assert verdict.verdict == "leak"


@pytest.mark.parametrize("untold", [False, True])
def test_a_cache_that_fills_again_and_stops_is_no_leak(untold: bool) -> None:
    """For longer than a weekend, as nothing tells the load."""

    def shape(hours: Array) -> Array:
        dip = 10_000 * ((hours >= 28) & (hours < 28.2)) if untold else 0
        return np.asarray(300 * np.where(hours < 28, hours, np.minimum(hours - 28, 36)) - dip)

    verdict = _judged(6, shape, events={} if untold else {28.0: "deploy"}, step_s=120)
    assert verdict.verdict == "none"
    assert any("a cache or pool that fills" in sentence for sentence in verdict.evidence)


def test_three_deploys_of_a_cache_that_fills_are_no_leak() -> None:
    deploys = {28.0: "deploy", 56.0: "deploy", 84.0: "deploy"}
    verdict = _judged(8, lambda t: 300 * np.where(t < 84, np.mod(t, 28), np.minimum(t - 84, 36)), events=deploys, step_s=300)
    assert verdict.verdict == "none"


def _then_idle(first_h: float, second_h: float) -> Shape:
    """Two lives of 168 MB/h; then nobody asks for anything, or a cache is full."""
    return lambda t: 168 * np.where(t < first_h, t, np.minimum(t - first_h, second_h))


@pytest.mark.parametrize(("first_h", "second_h", "still_h"), [(30, 60, 30), (30, 33, 30), (30, 33, 62), (30, 60, 72)])
def test_a_leak_that_nobody_asks_anything_of_is_not_none(first_h: float, second_h: float, still_h: float) -> None:
    """Without a load a pause and a cache that has filled look the same: for a weekend; or for longer, and twice as high."""
    days = (first_h + second_h + still_h) / 24
    verdict = _judged(days, _then_idle(first_h, second_h), events={first_h: "restart"}, step_s=120)
    assert (verdict.verdict, verdict.confidence) == ("suspect", 0.5)
    assert any("a leak that nobody asks anything of" in sentence for sentence in verdict.evidence)
    assert not any("and no leak" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize(
    ("second_h", "idle", "told"), [(33, 0.0, "leak"), (26, 0.0, "leak"), (33, 20.0, "none"), (60, 20.0, "none")]
)
def test_a_load_tells_a_pause_from_a_cache_that_has_filled(second_h: float, idle: float, told: str) -> None:
    def load(hours: Array) -> Array:
        return np.where(hours < 30 + second_h, 20.0, idle)

    verdict = _judged((60 + second_h) / 24, _then_idle(30, second_h), load, {30.0: "restart"}, step_s=120)
    assert verdict.verdict == told


def test_hours_without_load_keep_a_cache_none() -> None:
    """Half of the last day is one of load: that is enough."""
    verdict = _judged(4, _then_idle(30, 33), lambda t: np.where(np.mod(t, 24) < 9, 0.0, 20.0), {30.0: "restart"}, step_s=120)
    assert verdict.verdict == "none"


@pytest.mark.parametrize(
    ("days", "busy_h"),
    [
        (153 / 24, (63, 123)),  # full for 60 h of load, and then a weekend without any begins
        (185 / 24, (63, 123)),  # it ends: the line itself remembers nothing from before it
        (7, (9, 18)),  # offices, 9 h a day: never half of a day's half hours
        (8.5, (9, 18)),
    ],
)
def test_a_full_cache_that_idles_is_no_leak(days: float, busy_h: tuple[int, int]) -> None:
    """Null: it stood for a day's worth of load, whatever lies between."""

    def load(hours: Array) -> Array:
        first, last = busy_h
        at = hours if last > 24 else np.mod(hours, 24)
        return np.where((hours < 63) | ((at >= first) & (at < last)), 20.0, 0.0)

    verdict = _judged(days, _then_idle(30, 33), load, {30.0: "restart"}, step_s=300)
    assert verdict.verdict == "none"
    assert any("a cache or pool that fills" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize("days", [5, 8])
def test_a_leak_of_office_hours_that_a_restart_cut_short_stays_one(days: float) -> None:
    """It rises with its load, for 9 h a day from the third day on."""

    def load(hours: Array) -> Array:
        at = np.mod(hours, 24)
        return np.where((hours < 54) | ((at >= 9) & (at < 18)), 20.0, 0.0)

    def shape(hours: Array) -> Array:
        risen = 168 * np.cumsum(load(hours) > 0) * 300 / 3600
        return np.asarray(risen - np.where(hours < 30, 0.0, 168 * 30))

    assert _judged(days, shape, load, {30.0: "restart"}, step_s=300).verdict == "leak"


@pytest.mark.parametrize(("still_h", "told"), [(30, "suspect"), (78, "none")])
def test_a_suspicion_that_is_restarted_and_then_stands(still_h: float, told: str) -> None:
    """Nothing tells the load: a leak that nobody asks anything of for a day, or a cache, which stands for longer than a weekend."""
    verdict = _judged((40 + still_h) / 24, _then_idle(20, 20), events={20.0: "restart"}, step_s=120)
    assert verdict.verdict == told
    assert any("a leak that nobody asks anything of" in sentence for sentence in verdict.evidence) is (told == "suspect")


def test_a_leak_that_a_restart_cured_stays_one() -> None:
    """The last life stands still, and far below where the one before it was."""
    verdict = _judged(5, lambda t: np.where(t < 40, 168 * t, 500.0), events={40.0: "deploy"}, step_s=300)
    assert verdict.verdict == "leak"


@pytest.mark.parametrize(("rate", "risen_h", "still_h"), [(300, 29, 13), (300, 60, 14), (168, 60, 14), (168, 60, 18)])
def test_what_stands_still_at_the_end_is_suspect(rate: int, risen_h: int, still_h: int) -> None:
    """Floors of 8 h, which are two days, still rise then."""
    verdict = _judged((risen_h + still_h) / 24, lambda t: rate * np.minimum(t, risen_h), step_s=120)
    assert (verdict.verdict, verdict.confidence) == ("suspect", 0.5)
    assert any("stood still for the last half day" in sentence for sentence in verdict.evidence)


def test_what_stands_still_beneath_an_allocators_waves_is_suspect() -> None:
    verdict = _judged(74 / 24, lambda t: 168 * np.minimum(t, 60) + 2000 * np.mod(t / 0.75, 1), step_s=120)
    assert verdict.verdict == "suspect"


@pytest.mark.parametrize(
    ("step_h", "still_h"),
    [(8, 0.0), (8, 2.5), (8, 5.0), (8, 7.5), (9, 3.5), (10, 2.5), (10, 3.5), (12, 1.5), (12, 3.5), (12, 8.0)],
)
def test_a_staircase_stands_still_between_its_steps_and_is_a_leak(step_h: int, still_h: float) -> None:
    """Null: steps of 8 to 12 h, which floors of 8 h alone see; it ends so long after one of them."""
    verdict = _judged((80 // step_h * step_h + still_h) / 24, lambda t: 168 * step_h * np.floor(t / step_h))
    assert verdict.verdict == "leak", verdict.evidence


def test_what_is_not_given_back_is_said() -> None:
    verdict = _judged(10, lambda t: 168 * t - 0.8 * 168 * np.floor(t / 24) * 24, step_s=300)
    assert verdict.verdict == "suspect"
    assert "what is not given back adds up from day to day" in verdict.evidence
    assert any("70 % of it or more was given back" in sentence for sentence in verdict.evidence), "80 %, each night"


def test_crashes_within_hours_are_not_called_nothing() -> None:
    verdict = _judged(4, lambda t: 6000 * np.mod(t, 4), step_s=120)
    assert verdict.verdict == "not_enough_data"
    assert any("times it rose from 12" in sentence for sentence in verdict.evidence)
    assert _judged(4, lambda t: 2000 * np.mod(t / 6, 1), step_s=120).verdict == "none", "a sawtooth of an allocator"


def _office(hours: Array) -> Array:
    """8 GB more at one in the afternoon, nothing from 19 to 7."""
    return np.asarray(8000 * np.maximum(0, np.sin(np.pi * (np.mod(hours, 24) - 7) / 12)) * (np.abs(np.mod(hours, 24) - 13) <= 6))


@pytest.mark.parametrize("step_s", [300, 600])
@pytest.mark.parametrize(
    "shape",
    [
        lambda t: -4000 - 6000 * np.cos(2 * np.pi * t / 24),
        lambda t: -6000 * np.cos(2 * np.pi * t / 24),
        lambda t: _office(t) - 8000,
    ],
    ids=["2 to 14 GB", "6 to 18 GB", "office hours"],
)
def test_a_days_traffic_is_no_process_that_crashes(shape: Shape, step_s: int) -> None:
    """Null: it doubles within eight hours, and falls over hours."""
    verdict = _judged(7, shape, step_s=step_s)
    assert verdict.verdict == "none"
    assert not any("fell back at once" in sentence for sentence in verdict.evidence)
