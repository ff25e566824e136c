"""StatsD samples to deltas: what each type becomes, what is refused and why, and that nothing grows without bound."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.sources.statsd_aggregate import ANONYMOUS, SILENT_S, Aggregator
from aie_agent.sources.statsd_series import GENERAL_BOUNDS, Identity, conflicts, verdict
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE, OUTCOMES, Kind
from aie_telemetry.catalogue.buckets import INTER_TOKEN_BUCKETS
from aie_telemetry.statsd import TYPES, Parser, Sample

REQUESTS = "aie_engine_requests_received_total,engine=e,model=m"


def feed(aggregator: Aggregator, *lines: str, sender: int = ANONYMOUS) -> list[Identity | None]:
    return [aggregator.add(sample, sender) for line in lines for sample in parsed(line)]


def parsed(line: str) -> list[Sample]:
    return [sample for parsed in Parser().packet(line.encode()) for sample in parsed.samples]


def taken(*lines: str, now_s: float = 100.0) -> tuple[list[Point], list[HistogramPoint], Aggregator]:
    aggregator = Aggregator()
    feed(aggregator, *lines)
    points, histograms, overflows = aggregator.swap(now_s).points()
    assert overflows == 0
    return points, histograms, aggregator


def the_point(*lines: str) -> Point:
    points, histograms, aggregator = taken(*lines)
    assert not histograms
    assert not aggregator.refused
    (point,) = points
    return point


def the_histogram(*lines: str) -> HistogramPoint:
    points, histograms, aggregator = taken(*lines)
    assert not points
    assert not aggregator.refused
    (histogram,) = histograms
    return histogram


def refused(*lines: str) -> dict[str, int]:
    points, histograms, aggregator = taken(*lines)
    assert points == []
    assert histograms == []
    return dict(aggregator.refused)


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


class TestNames:
    def test_foreign_names_and_labels_become_valid(self) -> None:
        point = the_point("my.app-requests,1st=x,__name__=y,le=z,ok=,d-c=ä:1|c")
        assert point.name == "my_app_requests"
        assert point.tags == (("_1st", "x"), ("_name__", "y"), ("d_c", "ä"), ("le_", "z"))

    def test_different_spellings_of_one_series_are_one(self) -> None:
        assert the_point("a-b:1|c", "a+b:2|c", "a_b:4|c").value == 7

    def test_both_dialects_are_one_series(self) -> None:
        assert the_point("a,x=1:1|c", "a:2|c|#x:1").value == 3

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("aie_engine_nonsense,engine=e:1|c", "reserved_name"),
            ("aie-engine.nonsense:1|c", "reserved_name"),
            ("aie_host_load1:1|g", "reserved_name"),  # the host is the agent's to tell of
            ("aie_agent_samples_total,source=x:1|c", "reserved_name"),
            ("aie_engine_up,engine=e:1|g", "reserved_name"),
            ("aie_engine_memory_physical_bytes,engine=e,device=cpu:1|g", "reserved_name"),
            ("aie_engine_nonsense,engine=e:20|ms", "reserved_name"),
            (f"{REQUESTS}:1|g", "kind_conflict"),
            (f"{REQUESTS}:x|s", "kind_conflict"),
            ("aie_engine_requests_running,engine=e,model=m:x|s", "kind_conflict"),
            ("aie_engine_queue_seconds,engine=e,model=m:1|c", "kind_conflict"),
            (f"{REQUESTS},customer=c:1|c", "bad_labels"),
            ("aie_engine_requests_received_total,model=m:1|c", "bad_labels"),
            ("aie_engine_requests_received_total,engine=<b>,model=m:1|c", "bad_labels"),
            ("aie_hooks_process,engine=e:1|g", "bad_hello"),
            ("aie_hooks_process,engine=e,pid=x:1|g", "bad_hello"),
            ("aie_hooks_process,engine=e,pid=99999999:1|g", "bad_hello"),
            ("aie_hooks_process,pid=1:1|g", "bad_hello"),
            ("aie_hooks_process,engine=e,pid=1:1|c", "bad_hello"),
            (f"a,x={'y' * 2000}:1|c", "series_too_long"),
        ],
    )
    def test_what_is_refused(self, line: str, reason: str) -> None:
        assert refused(line, line) == {reason: 2}
        (sample,) = parsed(line)
        assert verdict(sample)[1] == reason

    @pytest.mark.parametrize(
        ("line", "name", "reason"),
        [
            ("my.app-latency_ms,x=y:5|ms", "my_app_latency_seconds", None),
            ("a:5|c", "a", None),
            ("a:-5|c", "a", "negative_counter"),
            ("a:-5|g", "a", None),
            ("users:anna|s", "users", None),
            ("aie-engine.nonsense:1|c", "aie_engine_nonsense", "reserved_name"),
            ("aie_hooks_process,engine=e,pid=47:1|g", "aie_hooks_process", None),
            (f"{REQUESTS}:1|c", "aie_engine_requests_received_total", None),
        ],
    )
    def test_the_verdict_names_the_series(self, line: str, name: str, reason: str | None) -> None:
        (sample,) = parsed(line)
        assert verdict(sample) == (name, reason)
        aggregator = Aggregator()
        aggregator.add(sample)
        assert list(aggregator.refused) == ([] if reason is None else [reason])

    @pytest.mark.parametrize("metric", [m for m in CATALOGUE.values() if m.name.startswith("aie_engine_")], ids=lambda m: m.name)
    def test_every_metric_of_an_engine_is_taken(self, metric) -> None:  # type: ignore[no-untyped-def]
        tags = ",".join(f"{label}=x" for label in metric.labels)
        code = {Kind.COUNTER: "c", Kind.GAUGE: "g", Kind.HISTOGRAM: "h"}[metric.kind]
        points, histograms, aggregator = taken(f"{metric.name},{tags}:1|{code}")
        agents_own = metric.name in (
            "aie_engine_up",
            "aie_engine_memory_physical_bytes",
            "aie_engine_memory_unaccounted_bytes",
        )
        assert len(points) + len(histograms) == (0 if agents_own else 1)
        assert bool(aggregator.refused) is agents_own

    def test_a_name_has_one_kind(self) -> None:
        points, histograms, aggregator = taken("a:1|c", "a,x=1:1|g", "a:1|h", "a:m|s", "a:2|c")
        assert points == [Point("a", Kind.COUNTER, (), 3.0, True)]
        assert histograms == []
        assert aggregator.refused == {"kind_conflict": 3}

    def test_a_gauge_and_a_set_of_one_series_conflict(self) -> None:
        points, _, aggregator = taken("a:1|g", "a:m|s")
        assert points == [Point("a", Kind.GAUGE, (), 1.0, False)]
        assert aggregator.refused == {"kind_conflict": 1}

    def test_a_histogram_also_takes_the_names_of_its_lines(self) -> None:
        assert conflicts("a_count", Kind.COUNTER, {"a": Kind.HISTOGRAM})
        assert conflicts("a", Kind.HISTOGRAM, {"a_sum": Kind.GAUGE})
        assert not conflicts("a_count", Kind.COUNTER, {"a": Kind.GAUGE})
        assert not conflicts("a_count", Kind.COUNTER, {"b": Kind.HISTOGRAM})


class TestIdentity:
    def test_samples_with_an_engine_tag_say_who_sends(self) -> None:
        assert feed(Aggregator(), f"{REQUESTS}:1|c", "mine,engine=llama:1|c", "x:1|c") == [
            Identity("e"),
            Identity("llama"),
            None,
        ]

    def test_the_hello_line_is_no_series(self) -> None:
        aggregator = Aggregator()
        hello = "aie_hooks_process,engine=e,pid=4711:1|g"
        assert feed(aggregator, hello, hello) == [Identity("e", 4711), Identity("e", 4711)]
        assert aggregator.swap(1.0).points() == ([], [], 0)
        assert aggregator.size == 0
        assert not aggregator.refused

    def test_the_hello_line_in_dogstatsd_and_with_more_tags(self) -> None:
        assert feed(Aggregator(), "aie_hooks_process:1|g|#engine:e,pid:47,region:eu") == [Identity("e", 47)]

    def test_an_engine_by_a_name_that_is_none_says_nothing(self) -> None:
        assert feed(Aggregator(), "mine,engine=<script>:1|c", f"mine,engine={'e' * 64}:1|c") == [None, None]


class TestCaps:
    def test_series_are_capped_and_the_known_ones_go_on(self) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5)), sender=1)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5, 10)), sender=2)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(10, 25)), sender=3)
        assert aggregator.size == 10
        assert aggregator.refused == {"series_limit": 15}
        assert len(aggregator.swap(1.0).points()[0]) == 10
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(25)), sender=3)
        assert len(aggregator.swap(2.0).points()[0]) == 10
        assert aggregator.size == 10

    @pytest.mark.parametrize("hostile", [ANONYMOUS, 4711])
    def test_no_sender_takes_more_than_half(self, hostile: int) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(25)), sender=hostile)
        assert aggregator.size == 5
        assert aggregator.refused == {"series_share": 20}
        feed(aggregator, "b:1|c", "c:1|g", sender=4712)
        feed(aggregator, "b:1|c", "a,x=0:1|c", sender=hostile)  # known series are anybody's
        assert {(point.name, point.value) for point in aggregator.swap(1.0).points()[0]} == {("a", 1), ("a", 2), ("b", 2), ("c", 1)}
        assert aggregator.refused == {"series_share": 20}

    def test_a_histogram_weighs_what_it_weighs_in_the_store(self) -> None:
        store = Store(max_series=1000, retention_s=60.0)
        _, (histogram,), _ = taken("a:1|h")
        store.apply(Batch("statsd", 1.0, [], [histogram]))
        weight = len(GENERAL_BOUNDS) + 3
        assert store.size == weight
        aggregator = Aggregator(max_series=4 * weight)
        feed(aggregator, *(f"a,x={number}:1|h" for number in range(3)), sender=1)
        assert (aggregator.size, aggregator.refused) == (2, {"series_share": 1})
        feed(aggregator, "a,x=8:1|h", *(f"b,x={number}:1|c" for number in range(weight)), sender=2)
        assert (aggregator.size, aggregator.refused) == (3 + weight, {"series_share": 1})
        feed(aggregator, "c:1|c", "a,x=9:1|h", "a,x=0:1|h", sender=3)  # no room but for what is known
        assert (aggregator.size, aggregator.refused) == (3 + weight, {"series_share": 1, "series_limit": 2})

    def test_a_silent_histogram_gives_back_its_weight(self) -> None:
        weight = len(GENERAL_BOUNDS) + 3
        aggregator = Aggregator(max_series=2 * weight)
        feed(aggregator, "a:1|h", sender=1)
        aggregator.swap(0.0)
        aggregator.swap(SILENT_S + 60)
        feed(aggregator, "b:1|h", "c:1|c", sender=1)
        feed(aggregator, "d:1|h", sender=2)
        assert (aggregator.size, aggregator.refused) == (2, {"series_share": 1})

    def test_a_sender_gets_its_share_back_with_its_silent_series(self) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(6)), sender=1)
        aggregator.swap(0.0)
        aggregator.swap(SILENT_S + 60)
        feed(aggregator, *(f"b,x={number}:1|c" for number in range(6)), sender=1)
        assert aggregator.size == 5
        assert aggregator.refused == {"series_share": 2}

    def test_silent_series_make_room(self) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5)), sender=1)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5, 10)), sender=2)
        feed(aggregator, "b:1|c", sender=3)
        aggregator.swap(0.0)
        assert aggregator.refused == {"series_limit": 1}
        for now_s in range(60, int(SILENT_S) + 120, 60):
            feed(aggregator, "a,x=0:1|c")
            aggregator.swap(float(now_s))
        assert aggregator.size == 1
        feed(aggregator, "b:1|g", "a,x=0:1|c")
        assert {point.name for point in aggregator.swap(500.0).points()[0]} == {"a", "b"}

    def test_a_forgotten_name_may_come_back_as_another_kind(self) -> None:
        aggregator = Aggregator()
        feed(aggregator, "a:1|c")
        aggregator.swap(0.0)
        aggregator.swap(SILENT_S + 60)
        feed(aggregator, "a:1|g")
        assert aggregator.swap(SILENT_S + 61).points()[0] == [Point("a", Kind.GAUGE, (), 1.0, False)]

    def test_a_new_series_survives_a_sweep_in_its_own_interval(self) -> None:
        aggregator = Aggregator()
        aggregator.swap(0.0)
        feed(aggregator, "a:1|c")
        aggregator.swap(1000.0)
        assert aggregator.size == 1

    @pytest.mark.parametrize(
        "lines",
        [
            pytest.param((f"a,x={number}:1|h" for number in range(20_000)), id="series"),
            pytest.param((f"a,x={'y' * 900}{number}:1|c" for number in range(20_000)), id="long series"),
            pytest.param((f"a{chr(0x4E00 + number % 5_000)}{number}:1|c" for number in range(20_000)), id="spellings"),
            pytest.param((f"a:{'m' * 500}{number}|s" for number in range(20_000)), id="set members"),
            pytest.param((f"aie_hooks_process,engine=e,pid={number}:1|g" for number in range(20_000)), id="hellos"),
            pytest.param((f"aie_engine_x{number},engine=e:1|c" for number in range(20_000)), id="reserved names"),
        ],
    )
    def test_a_flood_of_anything_takes_bounded_memory(self, lines: Iterable[str]) -> None:
        aggregator = Aggregator(max_series=1000, max_set_members=1000)
        parser = Parser()
        tracemalloc.start()
        for line in lines:
            for sample in parser.line(line.encode()).samples:
                aggregator.add(sample)
        del parser  # bounds itself
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size < 8 << 20
        assert aggregator.size <= 1000


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
