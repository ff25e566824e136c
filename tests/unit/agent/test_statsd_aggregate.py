"""StatsD samples to deltas: what the values of each type become."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fakes.statsd_lines import feed, taken, the_point
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.samples import HistogramPoint, Point
from aie_agent.sources.statsd_aggregate import Aggregator
from aie_agent.sources.statsd_series import GENERAL_BOUNDS
from aie_telemetry.catalogue import CATALOGUE, OUTCOMES, Kind
from aie_telemetry.catalogue.buckets import INTER_TOKEN_BUCKETS
from aie_telemetry.statsd import TYPES, Parser, Sample


def the_histogram(*lines: str) -> HistogramPoint:
    points, histograms, aggregator = taken(*lines)
    assert not points
    assert not aggregator.refused
    (histogram,) = histograms
    return histogram


class TestValues:
    def test_counters_are_summed_with_their_weights(self) -> None:
        assert the_point("a:1|c", "a:2|c|@0.1", "a:0.5|c") == Point("a", Kind.COUNTER, (), 21.5, True)

    def test_a_gauge_is_the_last_value(self) -> None:
        assert the_point("a:1|g", "a:7|g", "a:3|g") == Point("a", Kind.GAUGE, (), 3.0, False)

    def test_gauge_deltas_accumulate_and_stay_deltas(self) -> None:
        assert the_point("a:+5|g", "a:-2|g") == Point("a", Kind.GAUGE, (), 3.0, True)

    def test_a_gauge_that_was_set_is_absolute_whatever_is_added(self) -> None:
        assert the_point("a:10|g", "a:+5|g") == Point("a", Kind.GAUGE, (), 15.0, False)
        assert the_point("a:+5|g", "a:10|g", "a:-1|g") == Point("a", Kind.GAUGE, (), 9.0, False)

    def test_an_interval_begins_with_nothing(self) -> None:
        aggregator = Aggregator()
        feed(aggregator, "a:1|c", "b:5|g")
        aggregator.swap(1.0)
        feed(aggregator, "b:+1|g")
        assert aggregator.swap(2.0).points()[0] == [Point("b", Kind.GAUGE, (), 1.0, True)]
        assert aggregator.swap(3.0).points()[0] == []

    def test_outcomes_begin_with_the_first_of_them(self) -> None:
        points, _, _ = taken("aie_engine_requests_total,engine=e,model=m,outcome=error:3|c")
        values = {dict(point.tags)["outcome"]: (point.value, point.delta) for point in points}
        assert values == dict.fromkeys(OUTCOMES, (0.0, True)) | {"error": (3.0, True)}
        assert {dict(point.tags)["engine"] for point in points} == {"e"}

    def test_histograms_use_the_catalogues_buckets(self) -> None:
        histogram = the_histogram("aie_engine_inter_token_seconds,engine=e,model=m:0.03|h|@0.5")
        assert histogram.bounds == INTER_TOKEN_BUCKETS
        assert histogram.counts[INTER_TOKEN_BUCKETS.index(0.03)] == 2  # a bound belongs to the bucket below it
        assert sum(histogram.counts) == 2
        assert histogram.total == pytest.approx(0.06)
        assert histogram.delta

    def test_other_histograms_use_the_ladder(self) -> None:
        histogram = the_histogram("x:3|h", "x:2000000|d", "x:0|h")
        assert histogram.bounds == GENERAL_BOUNDS
        assert histogram.counts[GENERAL_BOUNDS.index(5.0)] == 1
        assert histogram.counts[0] == 1
        assert histogram.counts[-1] == 1
        assert histogram.total == 2000003

    def test_the_ladder_is_one_two_five(self) -> None:
        assert len(GENERAL_BOUNDS) == 37
        assert (GENERAL_BOUNDS[0], GENERAL_BOUNDS[-1]) == (1e-6, 1e6)
        assert list(GENERAL_BOUNDS) == sorted(set(GENERAL_BOUNDS))
        ratios = [after / before for before, after in pairwise(GENERAL_BOUNDS)]
        assert all(ratio == pytest.approx(2) or ratio == pytest.approx(2.5) for ratio in ratios)

    @pytest.mark.parametrize(
        ("sent", "name"),
        [
            ("latency", "latency_seconds"),
            ("latency_ms", "latency_seconds"),
            ("latency_milliseconds", "latency_seconds"),
            ("latency_seconds", "latency_seconds"),
            ("a.b-c", "a_b_c_seconds"),
            ("_ms", "_ms_seconds"),
        ],
    )
    def test_timings_become_seconds_and_say_so(self, sent: str, name: str) -> None:
        histogram = the_histogram(f"{sent}:250|ms")
        assert histogram.name == name
        assert histogram.total == 0.25
        assert histogram.counts[GENERAL_BOUNDS.index(0.5)] == 1

    def test_a_timing_of_ours_joins_its_histogram(self) -> None:
        histogram = the_histogram(
            "aie_engine_queue_seconds,engine=e,model=m:0.5|h", "aie_engine_queue_seconds,engine=e,model=m:500|ms"
        )
        assert sum(histogram.counts) == 2
        assert histogram.total == 1.0

    @given(st.lists(st.tuples(st.floats(0, 1e9), st.sampled_from([1.0, 0.5, 0.1, 0.001])), min_size=1, max_size=50))
    def test_no_observation_is_lost(self, observations: list[tuple[float, float]]) -> None:
        aggregator = Aggregator()
        for seen, rate in observations:
            aggregator.add(Sample("x", "histogram", seen, (), rate))
        ((histogram,), _) = aggregator.swap(1.0).points()[1:]
        assert sum(histogram.counts) == pytest.approx(sum(1 / rate for _, rate in observations))
        assert histogram.total == pytest.approx(sum(seen / rate for seen, rate in observations))

    def test_what_overflows_is_counted_and_left_out(self) -> None:
        aggregator = Aggregator()
        feed(aggregator, *["a:1e308|c"] * 10, *["b:+1e308|g"] * 10, *["c:1e308|h"] * 10, "d:1|c")
        points, histograms, overflows = aggregator.swap(1.0).points()
        assert points == [Point("d", Kind.COUNTER, (), 1.0, True)]
        assert histograms == []
        assert overflows == 3

    def test_a_falling_counter_is_refused(self) -> None:
        points, _, aggregator = taken("a:5|c", "a:-3|c")
        assert points == [Point("a", Kind.COUNTER, (), 5.0, True)]
        assert aggregator.refused == {"negative_counter": 1}


class TestSets:
    def test_distinct_members_of_ten_seconds(self) -> None:
        aggregator = Aggregator()
        aggregator.swap(100.0)
        feed(aggregator, "users:anna|s", "users:bert|s", "users:anna|s")
        assert aggregator.swap(105.0).points()[0] == []
        feed(aggregator, "users:carl|s", "users:anna|s")
        assert aggregator.swap(110.0).points()[0] == [Point("users", Kind.GAUGE, (), 3.0, False)]
        assert aggregator.swap(115.0).points()[0] == []
        assert aggregator.swap(120.0).points()[0] == [Point("users", Kind.GAUGE, (), 0.0, False)]

    def test_a_set_saturates(self) -> None:
        aggregator = Aggregator(max_set_members=10)
        aggregator.swap(100.0)
        feed(aggregator, *(f"users:{number}|s" for number in range(25)), "users:3|s")
        assert aggregator.swap(110.0).points()[0] == [Point("users", Kind.GAUGE, (), 10.0, False)]
        assert aggregator.refused == {"set_members": 15}
        feed(aggregator, "users:99|s")
        assert aggregator.swap(120.0).points()[0] == [Point("users", Kind.GAUGE, (), 1.0, False)]

    def test_all_sets_together_are_bounded(self) -> None:
        aggregator = Aggregator(max_set_members=10, max_members_of_all_sets=15)
        aggregator.swap(100.0)
        feed(aggregator, *(f"{name}:{number}|s" for name in "abc" for number in range(10)))
        sizes = [point.value for point in aggregator.swap(110.0).points()[0]]
        assert sizes == [10, 5, 0]
        assert aggregator.refused == {"set_members": 15}


@given(
    st.lists(
        st.builds(
            Sample,
            name=st.text(min_size=1, max_size=5),
            type=st.sampled_from(sorted(set(TYPES.values()) - {"set"})),
            value=st.floats(allow_nan=False, allow_infinity=False),
            tags=st.lists(st.tuples(st.text(min_size=1, max_size=3), st.text(max_size=3)), max_size=3).map(tuple),
            rate=st.floats(1e-6, 1),
            delta=st.booleans(),
        )
    )
)
def test_no_sample_raises_and_each_is_taken_or_counted(samples: list[Sample]) -> None:
    aggregator = Aggregator()
    for sample in samples:
        aggregator.add(sample)
    points, histograms, overflows = aggregator.swap(1.0).points()
    assert len(points) + len(histograms) + overflows + aggregator.refused.total() >= bool(samples)
    assert all(name.isascii() for name in (*(p.name for p in points), *(h.name for h in histograms)))


def test_observations_below_zero_fall_into_their_buckets() -> None:
    aggregator = Aggregator()
    name = "aie_engine_first_token_logsumexp_nats"
    for line in (b"-7.5|h", b"-1e3|h|@0.5", b"12|h", b"-0.5|ms"):
        for sample in Parser().line(name.encode() + b",engine=e,model=m:" + line).samples:
            aggregator.add(sample)
    _, (histogram,), _ = aggregator.swap(1.0).points()
    bounds = CATALOGUE[name].buckets
    assert histogram.bounds == bounds
    expected = [0.0] * (len(bounds) + 1)
    expected[bounds.index(-5.0)] = 1.0
    expected[0] = 2.0
    expected[bounds.index(12.0)] = 1.0
    assert list(histogram.counts) == expected
    assert histogram.total == pytest.approx(-7.5 - 2000.0 + 12.0)
