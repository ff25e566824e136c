"""What causes read of the store is what the slow way of reading it gives."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import pytest
from fakes.engine_world import EngineWorld

from aie_agent.analysis.engine_causes.readings import (
    Observed,
    has_moved,
    held,
    highest,
    is_positive,
    observed,
    risen_per_bin,
    seconds,
    size,
)
from aie_agent.analysis.window import bucket_increase, gain, sum_increase
from aie_agent.samples import Batch, HistogramPoint
from aie_agent.series import BREAK, HistogramSeries, Series
from aie_telemetry.catalogue import Kind

E = (("engine", "e"),)


def slowly(states: Sequence[Sequence[float] | None], buckets: int) -> list[float]:
    """From each state to the next: what a histogram gained, from 0 where its total fell, nothing over a break."""
    gained = [0.0] * buckets
    for before, after in pairwise(states):
        if before is not None and after is not None:
            base = before if sum(after) >= sum(before) else [0.0] * buckets
            gained = [so_far + now - then for so_far, now, then in zip(gained, after, base, strict=True)]
    return gained


@pytest.mark.parametrize("seed", range(50))
def test_what_a_histogram_gained_over_restarts_and_breaks(seed: int) -> None:
    rng = random.Random(seed)
    series = HistogramSeries("h", E, "scrape:e", (1.0, 2.0), 100)
    counts, total = [0.0, 0.0, 0.0], 0.0
    states: list[list[float] | None] = []
    totals: list[list[float] | None] = []
    for time_s in range(60):
        kind = rng.random()
        if kind < 0.05:
            series.interrupt()
            states.append(None)
            totals.append(None)
        if kind > 0.93 and sum(counts) > 20:
            counts, total = [0.0, 0.0, 0.0], 0.0
        more = [rng.randrange(4) for _ in counts]
        counts = [count + each for count, each in zip(counts, more, strict=True)]
        total += sum(each * value for each, value in zip(more, (1.0, 2.0, 7.0), strict=True))
        series.append(float(time_s), counts, total)
        states.append(list(counts))
        totals.append([sum(counts), total])
    assert bucket_increase(series, 0.0) == slowly(states, 3)
    assert sum_increase(series, 0.0) == slowly(totals, 2)[1]
    late = [None if each is None else list(each) for each in series.totals_since(52.0)]
    assert sum_increase(series, 52.0) == slowly(late, 2)[1], "where it only rose, the ends tell"


@pytest.mark.parametrize("seed", range(20))
def test_what_counters_gained_between_edges(seed: int) -> None:
    rng = random.Random(seed)
    series = Series("c", Kind.COUNTER, E, "scrape:e", 100)
    value, points = 0.0, []
    for time_s in range(61):
        value += rng.randrange(3)
        series.append(float(time_s), value)
        points.append(value)
    edges = [0.0, 10.0, 30.0, 60.0]
    assert risen_per_bin([series], edges) == [points[int(high)] - points[int(low)] for low, high in pairwise(edges)]
    assert sum(risen_per_bin([series, series], edges)) == 2 * (points[-1] - points[0])
    series.ring.append(61.0, BREAK)
    assert risen_per_bin([series], [50.0, 61.0]) == [gain(points[50], BREAK)] == [0.0]
    assert risen_per_bin([Series("c", Kind.COUNTER, E, "scrape:e", 100)], edges) == [0.0, 0.0, 0.0]


def test_levels_that_held() -> None:
    world = EngineWorld()
    world.serve(20, requests_waiting=lambda second: 2 + second % 2)
    assert held(world.view, "e", "aie_engine_requests_waiting", is_positive, world.now_s - 10, world.now_s)
    assert not held(world.view, "e", "aie_engine_requests_waiting", is_positive, world.now_s - 30, world.now_s), "not known so long"
    assert highest(world.view, "e", "aie_engine_requests_waiting", world.now_s - 10, world.now_s) == 3.0
    world.serve(1, requests_waiting=0)
    assert not held(world.view, "e", "aie_engine_requests_waiting", is_positive, world.now_s - 10, world.now_s)
    world.now_s += 60
    world.serve(2, requests_waiting=1)
    assert not held(world.view, "e", "aie_engine_requests_waiting", is_positive, world.now_s - 61, world.now_s), "nobody looked"


def test_a_quick_look_at_what_seldom_moves() -> None:
    world = EngineWorld()
    metric = "aie_engine_preemptions_total"
    assert not has_moved(world.view, "e", metric, world.now_s - 10)
    world.serve(5, preemptions_total=1)
    world.serve(15, preemptions_total=0)
    assert has_moved(world.view, "e", metric, world.now_s - 18)
    assert not has_moved(world.view, "e", metric, world.now_s - 10)


@pytest.mark.parametrize("has_sum", [True, False])
def test_a_page_without_sums_is_read_by_its_buckets(has_sum: bool) -> None:
    world, metric = EngineWorld(), "aie_engine_queue_seconds"
    for second in range(10):
        world.now_s += 1
        total = 2.6 * 3 * second if has_sum else 0.0
        points = [HistogramPoint(metric, E, (0.5, 1.0, 2.5, 5.0), (0.0, 0.0, 0.0, 3.0 * second, 0.0), total)]
        world.store.apply(Batch("scrape:e", world.now_s, histograms=points))
    seen = observed(world.view, "e", metric, world.now_s - 5, world.now_s)
    assert seen is not None
    assert (seen.count, seen.mean) == (15.0, pytest.approx(2.6 if has_sum else 3.75))
    quiet = observed(world.view, "e", metric, world.now_s, world.now_s)
    assert quiet is not None
    assert (quiet.count, quiet.mean) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_usual_mean_is_that_of_the_shorter_and_at_most_a_little_more(seed: int) -> None:
    rng = random.Random(seed)
    bounds = (0.5, 1.0, 2.5, 5.0, 10.0, 50.0)
    values = sorted(rng.lognormvariate(0.5, 0.8) for _ in range(rng.randrange(1, 60)))
    buckets = [bisect_left(bounds, value) for value in values]
    counts = [float(buckets.count(at)) for at in range(len(bounds) + 1)]
    short = [value for value, at in zip(values, buckets, strict=True) if at <= buckets[(len(values) - 1) // 2]]
    seen = Observed(bounds, counts, sum(values))
    of_short = sum(short) / len(short)
    assert of_short <= seen.usual_mean + 1e-9
    assert seen.usual_mean <= min(bounds[buckets[(len(values) - 1) // 2]], sum(values) / len(short)) + 1e-9
    alike = Observed(bounds, [0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0], 4.5)
    assert (alike.usual_mean, Observed(bounds, [0.0] * 7, 0.0).usual_mean) == (1.5, 0.0)
    assert Observed((1.0,), (0.0, 2.0), 9.0).usual_mean == 4.5, "above all bounds"


def test_sums_of_a_histogram_are_bounded_and_in_the_middle() -> None:
    seen = Observed((1.0, 3.0), (2.0, 1.0, 1.0))
    assert (seen.count, seen.total_at_least, seen.total) == (4.0, 1.0 + 3.0, 2 * 0.5 + 2.0 + 3.0)
    exact = Observed((1.0, 3.0), (2.0, 1.0, 1.0), 9.0)
    assert (exact.total, exact.mean, Observed((1.0,), (0.0, 0.0), 0.0).mean) == (9.0, 2.25, 0.0)
    assert (seen.largest_at_least, seen.count_above(1.0), seen.count_above(3.0)) == (3.0, 2.0, 1.0)
    assert (seconds(0.04), seconds(2.5), seconds(640.0)) == ("40 ms", "2.5 s", "640 s")
    assert (size(512 * 2**20), size(2.0**31)) == ("512 MiB", "2.00 GiB")
