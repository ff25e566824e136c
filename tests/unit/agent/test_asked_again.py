"""What is remembered for whoever asks the same again is what the slow way gives: lookups of the store, readings of one look at it,
steady counters."""

from __future__ import annotations

from itertools import pairwise

from fakes.cause_world import CauseWorld
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.findings import Answers, View
from aie_agent.analysis.window import gain, increase
from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.series import HistogramSeries, Ring, Series
from aie_agent.store import Store
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import Kind

LABELS: tuple[dict[str, str], ...] = ({}, {"a": "0"}, {"b": "1"}, {"a": "0", "b": "1"})


@given(st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("01"), st.sampled_from("01"), st.booleans()), max_size=20))
def test_a_lookup_gives_what_there_is_while_series_come_and_go(steps: list[tuple[str, str, str, bool]]) -> None:
    store = Store(max_series=1000, retention_s=5.0)
    for second, (name, a, b, is_histogram) in enumerate(steps):
        tags = (("a", a), ("b", b))
        points = [] if is_histogram else [Point(name, Kind.GAUGE, tags, 1.0)]
        histograms = [HistogramPoint(name, tags, (1.0,), (1.0, 0.0), 0.5)] if is_histogram else []
        store.apply(Batch("host", float(second), points, histograms))
        store.evict(float(second))
        for wanted in LABELS:
            for asked in "xy":
                held = [each for each in store.everything() if each.name == asked and wanted.items() <= dict(each.tags).items()]
                scalars, of_buckets = store.scalars(asked, **wanted), store.histograms(asked, **wanted)
                assert {id(each) for each in scalars} == {id(each) for each in held if isinstance(each, Series)}
                assert {id(each) for each in of_buckets} == {id(each) for each in held if isinstance(each, HistogramSeries)}
                scalars.clear()  # whoever asked may do with it what he likes
                of_buckets.clear()


def test_an_engine_with_another_name_is_found_under_that() -> None:
    store = Store(max_series=100, retention_s=60.0)
    store.apply(Batch("host", 1.0, [Point("x", Kind.GAUGE, (("engine", "before"),), 1.0)]))
    (series,) = store.scalars("x", engine="before")
    store.rename_engine("before", "after")
    assert store.scalars("x", engine="after") == [series]
    assert not store.scalars("x", engine="before")


@given(st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, None]), min_size=1, max_size=40), st.integers(-3, 45))
def test_a_counter_that_stands_rose_by_what_the_way_from_point_to_point_gives(values: list[float | None], start: int) -> None:
    series = Series("c", Kind.COUNTER, (), "host", 100)
    now_s = float(len(values))
    for time_s, value in enumerate(values):
        if value is None:
            series.interrupt()
        else:
            series.append(float(time_s), value)
    points = list(series.ring.since(float(start)))
    known_s = now_s - max(points[0][0], float(start)) if points else 0.0
    expected = (sum(gain(before, value) for (_, before), (_, value) in pairwise(points)), known_s) if known_s > 0 else None
    assert increase(series, float(start), now_s) == expected


@given(st.lists(st.floats(0.5, 3.0), max_size=40), st.integers(1, 15), st.lists(st.floats(-5, 70), min_size=1, max_size=20))
def test_what_was_known_at_many_times_is_what_was_known_at_each(steps: list[float], capacity: int, times: list[float]) -> None:
    ring, time_s = Ring(capacity), 0.0
    for value, step in enumerate(steps):
        time_s += step
        ring.append(time_s, float(value))
    expected = [next(ring.since(each))[1] for each in sorted(times)] if steps else []
    assert ring.known_at(sorted(times)) == expected


def test_one_look_works_out_once_and_the_next_anew() -> None:
    worked_out: list[float] = []

    def work(view: View, engine: str, now_s: float) -> Finding | None:
        def number() -> float:
            worked_out.append(now_s)
            return now_s

        assert view.once((engine, "number"), number) == now_s
        return None

    diagnosis, world = Diagnosis((), (work, work), ()), CauseWorld()
    diagnosis.update(world.view, 1.0)
    diagnosis.update(world.view, 2.0)
    assert worked_out == [1.0, 2.0]


def test_an_answer_of_none_is_an_answer() -> None:
    answers = Answers()
    asked: list[int] = []
    for _ in range(2):
        assert answers("x", lambda: asked.append(1)) is None
    assert asked == [1]
