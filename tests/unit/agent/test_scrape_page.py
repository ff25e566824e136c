"""An engine's page to points: what is taken, under which labels, and what is refused and why."""

from __future__ import annotations

import pytest
from fakes.batches import assert_in_catalogue
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.sources.scrape_page import MAX_SAMPLES, MAX_SERIES, Reading, read_page
from aie_agent.sources.statsd_reasons import Reason
from aie_agent.sources.statsd_series import MAX_TEXT
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exposition import PageParser
from aie_telemetry.instruments import Registry

RUNNING = "# TYPE aie_engine_requests_running gauge\n"
STEP = "# TYPE aie_engine_step_seconds histogram\n"
LABELS = '{engine="e",model="m"}'


def read(text: str, engine: str = "e") -> Reading:
    return read_page(PageParser().parse(text), engine)


def bucket(le: str, count: float) -> str:
    return f'aie_engine_step_seconds_bucket{{engine="e",model="m",le="{le}"}} {count}\n'


def histogram(*buckets: tuple[str, float], total: str = "9", count: str = "5") -> str:
    lines = "".join(bucket(le, number) for le, number in buckets)
    return f"{STEP}{lines}aie_engine_step_seconds_sum{LABELS} {total}\naie_engine_step_seconds_count{LABELS} {count}\n"


def test_a_gauge_is_taken_under_the_agents_name_for_the_engine() -> None:
    reading = read(RUNNING + 'aie_engine_requests_running{engine="what-it-calls-itself",model="m"} 3\n', "llama")
    assert reading.points == [Point("aie_engine_requests_running", Kind.GAUGE, (("engine", "llama"), ("model", "m")), 3.0, False)]
    assert not reading.refused


def test_a_page_need_not_say_engine_nor_type() -> None:
    reading = read('aie_engine_requests_running{model="m"} 3\n')
    assert [point.kind for point in reading.points] == [Kind.GAUGE]


def test_cumulative_buckets_become_counts() -> None:
    reading = read(histogram(("0.1", 2), ("0.5", 2), ("1", 4), ("+Inf", 5)))
    tags = (("engine", "e"), ("model", "m"))
    assert reading.histograms == [HistogramPoint("aie_engine_step_seconds", tags, (0.1, 0.5, 1.0), (2, 0, 2, 1), 9.0)]
    assert not reading.refused


def test_the_order_of_lines_does_not_matter() -> None:
    text = histogram(("0.1", 2), ("0.5", 2), ("+Inf", 5))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    backwards = STEP + "\n".join(reversed(lines)) + "\n"
    assert read(backwards).histograms == read(text).histograms


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(histogram(("0.1", 3), ("0.5", 2), ("+Inf", 5)), id="falls"),
        pytest.param(histogram(("0.1", 3), ("+Inf", 4)), id="count differs"),
        pytest.param(histogram(("0.1", 3), ("0.5", 5)), id="no +Inf"),
        pytest.param(histogram(("0.1", 3), ("0.1", 3), ("+Inf", 5)), id="bucket twice"),
        pytest.param(histogram(("0.1", 3), ("0.10", 3), ("+Inf", 5)), id="bound twice"),
        pytest.param(histogram(("-0.1", 3), ("0.1", 4), ("+Inf", 5)), id="bound below 0"),
        pytest.param(histogram(("-Inf", 3), ("0.1", 4), ("+Inf", 5)), id="bound is -Inf"),
        pytest.param(histogram(("x", 3), ("+Inf", 5)), id="bound is no number"),
        pytest.param(histogram(("NaN", 3), ("+Inf", 5)), id="bound is NaN"),
        pytest.param(histogram(("+Inf", 5)), id="only +Inf"),
        pytest.param(histogram(("0.1", 3), ("+Inf", 5), total="NaN"), id="sum is NaN"),
        pytest.param(histogram(("0.1", 3), ("+Inf", float("inf")), count="+Inf"), id="infinite"),
        pytest.param(histogram(("0.1", float("nan")), ("+Inf", 5)), id="a count is NaN"),
        pytest.param(histogram(("0.1", -1), ("+Inf", 5)), id="negative"),
        pytest.param(STEP + bucket("0.1", 1) + bucket("+Inf", 1), id="no sum and count"),
        pytest.param(STEP + f"aie_engine_step_seconds_sum{LABELS} 1\n", id="only a sum"),
        pytest.param(histogram(("0.1", 3), ("+Inf", 5)) + f"aie_engine_step_seconds_sum{LABELS} 1\n", id="sum twice"),
        pytest.param(histogram(*((str(n), 1) for n in range(500)), ("+Inf", 5)), id="too many buckets"),
        pytest.param(STEP + f"aie_engine_step_seconds_bucket{LABELS} 5\n", id="bucket without le"),
    ],
)
def test_an_inconsistent_histogram_is_dropped_whole(text: str) -> None:
    reading = read(text)
    assert reading.histograms == []
    assert reading.points == []
    assert reading.refused == {"bad_histogram": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("aie_engine_nonsense 1\n", "reserved_name"),
        ('aie_engine_up{engine="e"} 1\n', "reserved_name"),
        ('aie_engine_memory_physical_bytes{engine="e",device="cpu"} 1\n', "reserved_name"),
        ("# TYPE aie_engine_requests_running counter\n" + f"aie_engine_requests_running{LABELS} 1\n", "kind_conflict"),
        ("# TYPE aie_engine_requests_running summary\n" + f"aie_engine_requests_running{LABELS} 1\n", "kind_conflict"),
        (f"aie_engine_step_seconds{LABELS} 1\n", "kind_conflict"),
        ('aie_engine_requests_running{model="m",customer="c"} 1\n', "bad_labels"),
        ('aie_engine_requests_running{customer="c"} 1\n', "bad_labels"),
        ("aie_engine_requests_running 1\n", "bad_labels"),
        ('aie_engine_requests_running{model="m",le="1"} 1\n', "bad_labels"),
        ('aie_engine_requests_running{model="m"} NaN\n', "not_finite"),
        ('aie_engine_requests_running{model="m"} +Inf\n', "not_finite"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    reading = read(text)
    assert reading.points == []
    assert reading.histograms == []
    assert reading.refused == {reason: 1}


def test_reasons_shared_with_statsd_are_its_own() -> None:
    """Typed, so that a reason that one of the two does not know cannot come up; on a page they read as their names."""
    (reason,) = read("aie_engine_nonsense 1\n").refused
    assert reason is Reason.RESERVED_NAME
    assert f"{reason}" == "reserved_name"


def test_a_series_that_comes_twice_counts_once() -> None:
    reading = read('aie_engine_requests_running{engine="a",model="m"} 1\naie_engine_requests_running{engine="b",model="m"} 2\n')
    assert [point.value for point in reading.points] == [1.0]
    assert reading.refused == {"duplicate": 1}


def test_other_names_are_none_of_ours_and_not_counted() -> None:
    reading = read("# TYPE up gauge\nup 1\nvllm:num_requests_running 2\naie_host_load1 1\naie_agent_series 3\n")
    assert reading == Reading()


def test_a_page_is_capped() -> None:
    lines = "".join(f'aie_engine_requests_running{{model="{number}"}} 1\n' for number in range(MAX_SERIES + 50))
    reading = read(lines)
    assert len(reading.points) == MAX_SERIES
    assert reading.refused == {"series_limit": 50}


def test_lines_that_were_not_read_are_counted() -> None:
    page = PageParser().parse('aie_engine_requests_running{model="m"} 1\n' + "up 1\n" * 9, max_samples=4)
    assert read_page(page, "e").refused == {"series_limit": 6}


def test_an_engine_with_many_replicas_is_read_whole() -> None:
    assert MAX_SAMPLES > 64 * 300


@pytest.mark.parametrize("label", ["x" * MAX_TEXT, "é" * MAX_TEXT])
def test_a_label_without_end_is_refused(label: str) -> None:
    """As for StatsD: the number of series also bounds their memory."""
    reading = read(f'aie_engine_requests_running{{model="{label}"}} 1\naie_engine_requests_running{{model="m"}} 1\n')
    assert reading.refused == {"series_too_long": 1}
    assert len(reading.points) == 1


def test_what_cannot_be_negative() -> None:
    reading = read(
        'aie_engine_requests_running{model="m"} -7\naie_engine_generation_tokens_total{model="m"} -5\n'
        'aie_engine_kv_usage_ratio{model="m"} -0.0\naie_engine_activation_mean{model="m",layer="l"} -0.5\n'
        'aie_engine_canary_logprob_nats{model="m",canary="c"} -2.5\n'
    )
    assert reading.refused == {"negative": 2}
    assert {point.name: point.value for point in reading.points} == {
        "aie_engine_kv_usage_ratio": 0.0,
        "aie_engine_activation_mean": -0.5,
        "aie_engine_canary_logprob_nats": -2.5,
    }


def test_everything_that_our_own_engine_can_export_is_taken() -> None:
    registry = Registry()
    not_on_its_page = (
        "aie_engine_up",
        "aie_engine_memory_",
        "aie_engine_output_",
        "aie_engine_first_token_",
        "aie_engine_activation_",
    )
    names = [
        metric
        for metric in CATALOGUE.values()
        if metric.name.startswith("aie_engine_") and not metric.name.startswith(not_on_its_page)
    ]
    for metric in names:
        values = [f'a "{label}"\\\n' for label in metric.labels]
        if metric.kind is Kind.HISTOGRAM:
            registry.distribution(metric.name, *values).observe(0.03, 4)
        else:
            registry.value(metric.name, *values).set(5)
    reading = read(registry.render(), "llama")
    batch = Batch("scrape:llama", 0.0, reading.points, reading.histograms)
    assert_in_catalogue(batch)
    assert {item.name for item in (*batch.points, *batch.histograms)} == {metric.name for metric in names}
    assert not reading.refused
    assert all(histogram.bounds == CATALOGUE[histogram.name].buckets for histogram in batch.histograms)
    assert all(sum(histogram.counts) == 4 for histogram in batch.histograms)


@given(st.text(alphabet=st.sampled_from('aie_engine_step_seconds_bucket{}"=,le 0123456789.+-#\nNaInf'), max_size=300))
def test_no_page_raises(text: str) -> None:
    reading = read(text + histogram(("0.1", 2), ("+Inf", 5)))
    assert_in_catalogue(Batch("scrape:x", 0.0, reading.points, reading.histograms))
