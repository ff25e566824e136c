"""The store: rings, precedence of sources, caps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.analysis.window import bucket_increase, increase, rate
from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.series import Ring
from aie_agent.store import Store
from aie_telemetry.catalogue import Kind

ENGINE = (("engine", "e"), ("model", "m"))
RUNNING = "aie_engine_requests_running"


def make_store(**overrides: float) -> Store:
    settings = {"max_series": 100, "retention_s": 300.0} | overrides
    return Store(max_series=int(settings["max_series"]), retention_s=settings["retention_s"])


def gauge(value: float, name: str = RUNNING, tags: tuple[tuple[str, str], ...] = ENGINE) -> Point:
    return Point(name, Kind.GAUGE, tags, value)


@given(st.lists(st.floats(0.1, 5.0), max_size=60), st.integers(1, 20), st.floats(-5, 320))
def test_ring_keeps_the_newest_points_and_finds_what_was_known_at_a_time(steps: list[float], capacity: int, at: float) -> None:
    ring = Ring(capacity)
    points = []
    time_s = 0.0
    for index, step in enumerate(steps):
        time_s += step
        points.append((time_s, float(index)))
        ring.append(time_s, float(index))
    kept = points[-capacity:]
    before = [point for point in kept if point[0] <= at]
    expected = before[-1:] + [point for point in kept if point[0] > at]
    assert list(ring.since(at)) == (expected if before else kept)
    assert len(ring) == len(kept)


def test_page_goes_before_statsd_until_it_falls_silent() -> None:
    store = make_store()
    store.apply(Batch("statsd", 100.0, [gauge(1)]))
    assert store.current(RUNNING, 100.0) == 1
    store.apply(Batch("scrape:e", 101.0, [gauge(2)]))
    store.apply(Batch("statsd", 102.0, [gauge(3)]))
    assert store.current(RUNNING, 102.0) == 2
    assert store.shadowed == 1
    store.apply(Batch("statsd", 110.0, [gauge(4)]))
    assert store.current(RUNNING, 110.0) == 4


def test_precedence_is_per_metric_not_per_engine() -> None:
    store = make_store()
    store.apply(Batch("scrape:e", 100.0, [gauge(2)]))
    store.apply(Batch("statsd", 100.5, [gauge(7, "aie_engine_requests_waiting")]))
    assert store.current("aie_engine_requests_waiting", 101.0) == 7


def test_precedence_holds_whatever_the_other_labels_say() -> None:
    store = make_store()
    store.apply(Batch("scrape:e", 100.0, [gauge(2)]))
    store.apply(Batch("statsd", 100.5, [gauge(9, tags=(("engine", "e"), ("model", "other name of m")))]))
    assert store.current(RUNNING, 101.0, engine="e") == 2


def test_other_engines_do_not_shadow_each_other() -> None:
    store = make_store()
    store.apply(Batch("scrape:e", 100.0, [gauge(2)]))
    store.apply(Batch("statsd", 100.5, [gauge(9, tags=(("engine", "f"), ("model", "m")))]))
    assert store.current(RUNNING, 101.0, engine="f") == 9


def test_engine_is_renamed_to_the_name_it_is_known_by() -> None:
    store = Store(max_series=10, retention_s=60, canonical=lambda name: {"e": "chat"}.get(name, name))
    store.apply(Batch("statsd", 1.0, [gauge(1)]))
    assert store.current(RUNNING, 1.0, engine="chat") == 1
    assert store.current(RUNNING, 1.0, engine="e") is None


def test_series_limit_refuses_and_counts_and_room_comes_back() -> None:
    store = make_store(max_series=6, retention_s=60)
    store.apply(Batch("statsd", 1.0, [gauge(1, "a"), gauge(1, "b"), gauge(1, "c"), gauge(1, "d")]))
    assert store.size == 3, "names of others have half of the store at most"
    assert store.refused["foreign_limit"] == 1
    store.evict(62.0)
    assert store.size == 0
    store.apply(Batch("statsd", 62.0, [gauge(1, "d")]))
    assert store.current("d", 62.0) == 1


def test_a_histogram_weighs_as_many_series_as_prometheus_counts() -> None:
    store = make_store(max_series=10)
    point = HistogramPoint("h", (), (1.0, 2.0), (1.0, 0.0, 0.0), 0.5)
    store.apply(Batch("statsd", 1.0, histograms=[point]))
    assert store.size == 5
    store.apply(Batch("statsd", 1.0, [gauge(1, "a")]))
    assert store.refused["foreign_limit"] == 1


@pytest.mark.parametrize(
    ("reason", "batch"),
    [
        ("reserved_name", Batch("statsd", 2.0, [gauge(1, "aie_invented")])),
        ("kind_conflict", Batch("statsd", 2.0, [Point("a", Kind.COUNTER, (), 1)])),
        ("kind_conflict", Batch("statsd", 2.0, histograms=[HistogramPoint("a", (), (1.0,), (1.0, 0.0), 1.0)])),
        ("superseded", Batch("statsd", 0.5, [gauge(5, "a", ())])),
    ],
)
def test_refusals_are_counted_and_change_nothing(reason: str, batch: Batch) -> None:
    store = make_store()
    store.apply(Batch("statsd", 1.0, [gauge(1, "a", ())]))
    store.apply(batch)
    assert store.refused[reason] == 1
    assert sum(store.refused.values()) == 1
    assert store.current("a", 1.0) == 1
    assert store.names() == ["a"]


def test_a_count_that_comes_too_late_is_lost() -> None:
    store = make_store()
    hits = Point("hits", Kind.COUNTER, (), 3, delta=True)
    sizes = HistogramPoint("sizes", (), (1.0,), (1.0, 0.0), 1.0, delta=True)
    store.apply(Batch("statsd", 10.0, [hits], [sizes]))
    store.apply(Batch("statsd", 9.5, [hits], [sizes]))
    assert store.refused["out_of_order"] == 2
    assert sum(store.refused.values()) == 2


def test_counter_deltas_add_up_from_zero() -> None:
    store = make_store()
    delta = Point("hits", Kind.COUNTER, (), 3, delta=True)
    store.apply(Batch("statsd", 10.0, [delta]))
    store.apply(Batch("statsd", 11.0, [delta]))
    series = store.scalars("hits")[0]
    assert list(series.ring.since(0)) == [(9.0, 0.0), (10.0, 3.0), (11.0, 6.0)]


def test_a_counter_that_was_silent_stood_still() -> None:
    store = make_store()
    delta = Point("hits", Kind.COUNTER, (), 3, delta=True)
    store.apply(Batch("statsd", 10.0, [delta]))
    store.apply(Batch("statsd", 40.0, [delta]))
    assert list(store.scalars("hits")[0].ring.since(0)) == [(9.0, 0.0), (10.0, 3.0), (39.0, 3.0), (40.0, 6.0)]


def test_values_stop_counting_as_current() -> None:
    store = make_store()
    store.apply(Batch("scrape:e", 100.0, [gauge(2)]))
    assert store.current(RUNNING, 104.0) == 2
    assert store.current(RUNNING, 106.0) is None


def test_what_a_dead_engine_said_is_not_current_but_its_history_stays() -> None:
    store = make_store()
    store.apply(Batch("statsd", 100.0, [gauge(2), Point("aie_engine_up", Kind.GAUGE, (("engine", "e"),), 0)]))
    store.expire_engine("e")
    assert store.current(RUNNING, 100.0) is None
    assert store.current("aie_engine_up", 100.0) == 0
    assert list(store.scalars(RUNNING)[0].ring.since(0)) == [(100.0, 2.0)]


def test_new_buckets_start_anew() -> None:
    store = make_store()
    store.apply(Batch("statsd", 1.0, histograms=[HistogramPoint("h", (), (1.0,), (4.0, 0.0), 1.0)]))
    store.apply(Batch("statsd", 2.0, histograms=[HistogramPoint("h", (), (1.0, 2.0), (1.0, 0.0, 0.0), 1.0)]))
    (series,) = store.histograms("h")
    assert series.bounds == (1.0, 2.0)
    assert list(series.counts) == [1.0, 0.0, 0.0]
    assert store.size == 5


REQUESTS = "aie_engine_generation_tokens_total"


def tokens(value: float, *, delta: bool = False, model: str = "m") -> Point:
    return Point(REQUESTS, Kind.COUNTER, (("engine", "e"), ("model", model)), value, delta)


def test_a_better_source_that_takes_over_makes_no_jump() -> None:
    store = make_store()
    store.apply(Batch("statsd", 99.0, [tokens(9, delta=True)]))
    store.apply(Batch("statsd", 100.0, [tokens(3, delta=True)]))
    store.apply(Batch("scrape:e", 101.0, [tokens(50_000)]))
    store.apply(Batch("scrape:e", 102.0, [tokens(50_010)]))
    assert rate(store.scalars(REQUESTS), 42.0, 102.0) == pytest.approx((3 + 10) / 3)
    assert store.current(REQUESTS, 102.0) == 50_010


def test_a_worse_source_that_takes_over_counts_from_its_own_start() -> None:
    store = make_store()
    store.apply(Batch("scrape:e", 100.0, [tokens(50_000)]))
    store.apply(Batch("scrape:e", 101.0, [tokens(50_010)]))
    store.apply(Batch("statsd", 110.0, [tokens(5, delta=True)]))
    store.apply(Batch("statsd", 111.0, [tokens(5, delta=True)]))
    assert store.current(REQUESTS, 111.0) == 10
    assert increase(store.scalars(REQUESTS)[0], 100.0, 111.0) == (20.0, 11.0)


def test_what_the_other_source_said_under_other_labels_is_not_added() -> None:
    store = make_store()
    store.apply(Batch("statsd", 100.0, [gauge(2, tags=(("engine", "e"), ("model", "/models/m")))]))
    store.apply(Batch("scrape:e", 101.0, [gauge(2)]))
    assert store.current(RUNNING, 101.0, engine="e") == 2


def test_histograms_are_handed_over_without_a_jump() -> None:
    store = make_store()
    name = "aie_engine_queue_seconds"
    bounds = (1.0,)
    store.apply(Batch("statsd", 100.0, histograms=[HistogramPoint(name, ENGINE, bounds, (2.0, 1.0), 3.0, delta=True)]))
    store.apply(Batch("scrape:e", 101.0, histograms=[HistogramPoint(name, ENGINE, bounds, (700.0, 300.0), 900.0)]))
    store.apply(Batch("scrape:e", 102.0, histograms=[HistogramPoint(name, ENGINE, bounds, (704.0, 300.0), 901.0)]))
    (series,) = store.histograms(name)
    assert bucket_increase(series, 42.0) == [2 + 4, 1]


def test_what_hooks_counted_while_no_agent_listened_is_no_rise_of_the_last_second() -> None:
    store = make_store()
    store.apply(Batch("statsd", 100.0, [tokens(40_000, delta=True)]))
    store.apply(Batch("statsd", 101.0, [tokens(1_000, delta=True)]))
    assert store.current(REQUESTS, 101.0) == 41_000
    assert rate(store.scalars(REQUESTS), 41.0, 101.0) == pytest.approx(1_000)


def test_a_slow_source_is_current_until_its_next_collection_is_overdue() -> None:
    store = make_store()
    slow = Batch("scrape:e", 100.0, [gauge(2)], period_s=30.0)
    store.apply(slow)
    store.apply(Batch("statsd", 120.0, [gauge(9)]))
    assert store.current(RUNNING, 160.0) == 2, "the page still owns the metric between two collections"
    assert store.current(RUNNING, 176.0) is None


def test_a_fast_source_is_remembered_as_long_as_a_slow_one() -> None:
    store = make_store(retention_s=60.0)
    for tenth in range(700):
        store.apply(Batch("host", tenth / 10, [gauge(tenth, "aie_host_load1", ())], period_s=0.1))
    points = list(store.scalars("aie_host_load1")[0].ring.since(0.0))
    assert points[-1][0] - points[0][0] == pytest.approx(60.0)


def test_who_owned_what_is_forgotten_with_the_rest() -> None:
    store = make_store(retention_s=60.0)
    for index in range(1000):
        store.apply(Batch("statsd", float(index), [gauge(1, tags=(("engine", f"e{index}"), ("model", "m")))]))
        store.evict(float(index))
    assert len(store._owners) <= 100


def test_a_histogram_that_changes_hands_for_ever_stays_small() -> None:
    store = make_store(retention_s=10.0)
    for index in range(200):
        store.apply(Batch("statsd" if index % 2 else "scrape:e", index * 10.0, histograms=[
            HistogramPoint("aie_engine_queue_seconds", ENGINE, (1.0,), (index, 0.0), 1.0)]))  # fmt: skip
    (series,) = store.histograms("aie_engine_queue_seconds")
    assert len(list(series.since(0.0))) <= 11


def test_after_a_change_of_hands_the_first_observations_count() -> None:
    store = make_store()
    name = "aie_engine_queue_seconds"
    store.apply(Batch("scrape:e", 100.0, histograms=[HistogramPoint(name, ENGINE, (1.0,), (700.0, 300.0), 900.0)]))
    store.apply(Batch("statsd", 110.0, histograms=[HistogramPoint(name, ENGINE, (1.0,), (2.0, 1.0), 3.0, delta=True)]))
    assert bucket_increase(store.histograms(name)[0], 50.0) == [2.0, 1.0]


def test_levels_of_hooks_that_fell_silent_are_not_current_for_long() -> None:
    store = make_store()
    store.apply(Batch("statsd", 100.0, [gauge(2), gauge(7, "mine", ())]))
    assert store.current(RUNNING, 129.0) == 2, "hooks repeat their levels every ten seconds"
    assert store.current(RUNNING, 131.0) is None
    assert store.current("mine", 399.0) == 7, "others send a gauge when it changes"


def test_the_limit_holds_for_all_but_the_agent_itself() -> None:
    store = make_store(max_series=4)
    of_engines = [gauge(1, tags=(("engine", f"e{index}"), ("model", "m"))) for index in range(6)]
    store.apply(Batch("process", 1.0, of_engines))
    store.apply(Batch("agent", 1.0, [gauge(6, "aie_agent_series", ())]))
    assert store.refused["series_limit"] == 2
    assert store.current("aie_agent_series", 1.0) == 6, "what is refused must not hide that something is"


@pytest.mark.parametrize("kind", [Kind.COUNTER, Kind.GAUGE])
def test_no_sum_becomes_infinite(kind: Kind) -> None:
    store = make_store()
    for time_s in (1.0, 2.0, 3.0):
        store.apply(Batch("statsd", time_s, [Point("big", kind, (), 9e99, True), Point("inf", kind, (), 1e308, True)]))
    assert store.refused["too_large"] == 2 + 3
    assert store.current("big", 3.0) == 9e99
    assert store.current("inf", 3.0) in (None, 0.0)
    store.apply(Batch("statsd", 3.0, histograms=[HistogramPoint("h", (), (1.0,), (1e308, 0.0), 1e308, True)]))
    assert sum(store.histograms("h")[0].counts) == 0


def page(engine: str, count: int, time_s: float = 1.0) -> Batch:
    """A page with `count` models."""
    points = [gauge(1, tags=(("engine", engine), ("model", f"m{index}"))) for index in range(count)]
    return Batch(f"scrape:{engine}", time_s, points)


class TestShares:
    """One page, or a crowd of them, must not hide what others say."""

    def make(self) -> Store:
        return Store(max_series=10_000, retention_s=300.0, configured=["chat", "code"])

    def test_one_configured_page_leaves_room_for_the_others(self) -> None:
        store = self.make()
        for second in range(20):
            new = [gauge(1, tags=(("engine", "chat"), ("model", f"{second}-{at}"))) for at in range(999)]
            store.apply(Batch("scrape:chat", 1.0 + second, new))
        assert store.held("scrape:chat") == 2500
        store.apply(page("code", 400))
        assert store.held("scrape:code") == 400
        refusal = store.no_room_for("chat", 21.0)
        assert refusal is not None
        assert (refusal.reason, refusal.source) == ("page_share", "scrape:chat")
        assert store.no_room_for("code", 21.0) is None

    def test_a_crowd_that_nobody_configured_leaves_a_quarter(self) -> None:
        store = self.make()
        for at in range(20):
            store.apply(page(f"vllm-{at}", 999))
            store.apply(Batch("statsd", 1.0, [gauge(1, tags=(("engine", f"s{at}"), ("model", f"{n}"))) for n in range(500)]))
        assert store.held("scrape:vllm-0") == 500
        assert store.size == 7500
        for engine in ("chat", "code"):
            store.apply(page(engine, 400))
            assert store.current(RUNNING, 1.0, engine=engine) == 400

    def test_a_small_store_takes_a_whole_engine_of_the_scan(self) -> None:
        store = Store(max_series=1500, retention_s=300.0, configured=[])
        assert store.share("scrape:vllm-8000") >= 329, "the largest page of the fixtures"

    def test_what_changes_hands_and_what_is_forgotten_is_not_held(self) -> None:
        store = self.make()
        store.apply(Batch("statsd", 1.0, [gauge(1)]))
        store.apply(Batch("scrape:e", 2.0, [gauge(2)]))
        assert (store.held("statsd"), store.held("scrape:e")) == (0, 1)
        store.evict(1000.0)
        assert (store.held("scrape:e"), store.size) == (0, 0)

    def test_a_refusal_is_news_for_as_long_as_it_lasts(self) -> None:
        store = Store(max_series=100, retention_s=300.0)
        store.apply(page("e", 25, 10.0))
        assert store.no_room_for("e", 10.0) is None
        for time_s in (11.0, 12.0):
            store.apply(page("e", 26, time_s))
        refusal = store.no_room_for("e", 13.0)
        assert refusal is not None
        assert refusal.since_s == 11.0
        assert store.no_room_for("e", 30.0) is None

    def test_made_up_names_do_not_fill_what_is_remembered(self) -> None:
        store = Store(max_series=100, retention_s=300.0)
        for time_s in (1.0, 1000.0):
            store.apply(
                Batch("statsd", time_s, [gauge(1, tags=(("engine", f"{time_s}-{at}"), ("model", ""))) for at in range(2000)])
            )
        assert len(store._no_room) <= 256


def test_what_is_not_in_a_whole_batch_is_not_current_any_more() -> None:
    store = make_store()
    lost, up = (("gpu", "0"), ("reason", "lost")), (("gpu", "0"), ("reason", ""))
    store.apply(Batch("nvml", 10.0, [gauge(1.0, "aie_gpu_up", up), gauge(70.0, "aie_gpu_power_watts", (("gpu", "0"),))]))
    store.apply(Batch("nvml", 11.0, [gauge(0.0, "aie_gpu_up", lost)], whole=("aie_gpu_up",)))
    assert store.current("aie_gpu_up", 11.0, reason="") is None
    assert store.current("aie_gpu_up", 11.0, reason="lost") == 0.0
    assert store.current("aie_gpu_power_watts", 11.0) == 70.0  # nobody said that this is all of them


def test_another_name_takes_what_was_kept_along_and_its_room() -> None:
    store = make_store()
    before, after = (("engine", "e-8300"), ("model", "m")), (("engine", "e"), ("model", "m"))
    other = (("engine", "other"), ("model", "m"))
    for time_s in (1.0, 2.0):
        store.apply(Batch("scrape:e-8300", time_s, [gauge(time_s, tags=before), gauge(9.0, tags=other)]))
    store.rename_engine("e-8300", "e")
    store.apply(Batch("scrape:e", 3.0, [gauge(3.0, tags=after)]))
    assert [list(series.ring.since(0.0)) for series in store.scalars(RUNNING, engine="e")] == [[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]]
    assert store.scalars(RUNNING, engine="e-8300") == []
    assert (store.size, store.held("scrape:e-8300"), store.held("scrape:e")) == (2, 1, 1), "the other engine's is the other one"
    store.apply(Batch("scrape:e-8300", 4.0, [gauge(4.0, tags=before)]))
    store.rename_engine("e-8300", "e")
    assert (store.size, store.held("scrape:e-8300")) == (2, 1), "what is there goes before"
    assert store.current(RUNNING, 4.0, engine="e") == 3.0
