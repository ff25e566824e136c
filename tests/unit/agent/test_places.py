"""Where points go: found by holding one batch against the next, and the same as if each were looked up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aie_agent.places import Places
from aie_agent.samples import Batch, Point
from aie_agent.series import AnySeries, HistogramSeries, Series
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
