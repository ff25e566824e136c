"""Where points go: found by holding one batch against the next, and the same as if each were looked up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aie_agent.places import Places
from aie_agent.samples import Batch, Point
from aie_agent.series import BREAK, AnySeries, HistogramSeries, Ring, Series
from aie_agent.store import Store
from aie_telemetry.catalogue import Kind

points = st.builds(
    Point,
    st.sampled_from(["a", "b"]),
    st.sampled_from([Kind.GAUGE, Kind.COUNTER]),
    st.sampled_from([(("gpu", "0"),), (("gpu", "1"),)]),
    st.floats(0, 3),
    st.booleans(),
)
batches = st.lists(st.lists(points, max_size=6), max_size=6)


@given(batches, st.sets(st.integers(0, 7)), st.integers(0, 5))
def test_each_point_finds_what_a_lookup_finds(told: list[list[Point]], missing: set[int], changed_at: int) -> None:
    keys = [(name, (("gpu", gpu),)) for name in ("a", "b") for gpu in ("0", "1")]
    kinds = [Kind.GAUGE, Kind.COUNTER]
    known: dict[tuple[str, tuple[tuple[str, str], ...]], AnySeries] = {
        key: Series(key[0], kinds[number % 2], key[1], "nvml", 3) for number, key in enumerate(keys) if number not in missing
    }
    places = Places()
    layout = 0
    for number, batch in enumerate(told):
        if number == changed_at:
            known[keys[0]], layout = HistogramSeries(*keys[0], "nvml", (1.0,), 3), 1
        expected = []
        for point in batch:
            series = known.get((point.name, point.tags))
            fits = isinstance(series, Series) and series.kind == point.kind and not point.delta
            expected.append(series if fits else None)
        found = places.find(batch, known, layout)
        assert len(found) == len(expected)
        assert all(one is other for one, other in zip(found, expected, strict=True))


def test_series_that_went_and_came_back_are_new_ones() -> None:
    store = Store(max_series=10, retention_s=10.0)
    point = Point("aie_gpu_power_watts", Kind.GAUGE, (("gpu", "0"),), 5.0)
    store.apply(Batch("nvml", 1.0, [point]))
    store.apply(Batch("nvml", 2.0, [point]))
    (before,) = store.scalars(point.name)
    store.evict(100.0)
    assert store.scalars(point.name) == []
    store.apply(Batch("nvml", 101.0, [point]))
    (after,) = store.scalars(point.name)
    assert after is not before
    assert list(after.ring.since(0.0)) == [(101.0, 5.0)]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0]), st.booleans(), st.booleans()), max_size=90),
    st.integers(1, 40),
    st.sets(st.integers(0, 90)),
)
def test_a_ring_holds_what_it_would_if_each_point_were_put_in_it(
    told: list[tuple[float, bool, bool]], capacity: int, looks: set[int]
) -> None:
    """Also where a series is left out of some batches, is interrupted, and is looked at now and then."""
    store = Store(max_series=10, retention_s=float(capacity - 1))
    expected = Ring(capacity)
    tags = (("gpu", "0"),)
    for number, (value, is_left_out, is_interrupted) in enumerate(told):
        point = Point("aie_gpu_pcie_replays_total", Kind.COUNTER, tags, value)
        store.apply(Batch("nvml", float(number), [] if is_left_out else [point]))
        if not is_left_out:
            expected.append(float(number), value)
        for series in store.scalars(point.name):
            if is_interrupted:
                series.interrupt()
                expected.append(series.last_time_s, BREAK)
            if number in looks:
                assert len(series.ring) == len(expected)
    for series in store.scalars("aie_gpu_pcie_replays_total"):
        assert str(list(series.ring.since(0.0))) == str(list(expected.since(0.0)))  # a break is unequal to itself
        assert all(str(series.ring.span(float(at))) == str(expected.span(float(at))) for at in range(len(told)))
