"""Series as OpenTelemetry's data: what is a sum, a gauge, a histogram; since when; with which attributes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from aie_agent.outputs.otlp.convert import Exemplars, Reading, Starts, metrics_data, readings
from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exemplars import Exemplar
from tests.fakes.collector import attributes_of, points_of

HOUR_NS = 3600 * 1_000_000_000
SERVED = (("engine", "e"), ("model", "m"))
TTFT = "aie_engine_time_to_first_token_seconds"


def _encoded(read: list[Reading], starts: list[int] | None = None, now_ns: int = 5):  # type: ignore[no-untyped-def]
    scope = InstrumentationScope("aie_agent", "1")
    return encode_metrics(metrics_data(read, starts or [1] * len(read), now_ns, Resource({}), scope))


def test_a_histogram_keeps_buckets_sum_and_count() -> None:
    bounds = CATALOGUE[TTFT].buckets
    counts = tuple(float(index) for index in range(len(bounds) + 1))
    (point,) = points_of(_encoded([Reading(TTFT, Kind.HISTOGRAM, SERVED, 12.5, bounds, counts)]))[
        "gen_ai.server.time_to_first_token"
    ]
    assert list(point.explicit_bounds) == list(bounds)
    assert list(point.bucket_counts) == list(counts)
    assert (point.count, point.sum) == (sum(counts), 12.5)
    assert not point.HasField("min")
    assert attributes_of(point) == {
        "gen_ai.provider.name": "e",
        "gen_ai.request.model": "m",
        "gen_ai.operation.name": "inference",
    }


def _traced(number: int, time_s: float) -> Exemplar:
    return Exemplar(0.5 + number, time_s, f"{number:032x}", f"{number:016x}")


def test_exemplars_are_encoded_with_their_traces() -> None:
    reading = Reading(TTFT, Kind.HISTOGRAM, SERVED, 2.0, (1.0,), (1.0, 1.0), (_traced(0xAB, 7.25), _traced(0xCD, 8.0)))
    (point,) = points_of(_encoded([reading]))["gen_ai.server.time_to_first_token"]
    told = [(each.trace_id.hex(), each.span_id.hex(), each.as_double, each.time_unix_nano) for each in point.exemplars]
    assert told == [
        ("ab".rjust(32, "0"), "ab".rjust(16, "0"), 171.5, 7_250_000_000),
        ("cd".rjust(32, "0"), "cd".rjust(16, "0"), 205.5, 8_000_000_000),
    ]


def test_only_fresh_exemplars_are_read_the_oldest_first() -> None:
    store = Store(max_series=1000, retention_s=300.0)
    exemplars = tuple(enumerate((_traced(3, 995.0), _traced(2, 990.0), _traced(1, 100.0))))
    store.apply(Batch("a", 1000.0, [], [HistogramPoint(TTFT, SERVED, (1.0, 2.0), (1.0, 1.0, 1.0), 4.0, exemplars=exemplars)]))
    (read,) = readings(store.everything(), 1000.0)
    assert read.exemplars == (_traced(2, 990.0), _traced(3, 995.0))


def test_an_exemplar_is_told_once_it_got_there_and_no_more() -> None:
    exemplars = Exemplars()
    first, second = (Reading(TTFT, Kind.HISTOGRAM, SERVED, 1.0, (1.0,), (1.0, 0.0), told) for told in _GROWING)
    assert [each.exemplars for each in exemplars.untold([first])] == [first.exemplars]
    assert [each.exemplars for each in exemplars.untold([first])] == [first.exemplars]  # the push failed
    exemplars.told([first])
    assert [each.exemplars for each in exemplars.untold([second])] == [second.exemplars[1:]]


_GROWING = ((_traced(1, 1.0),), (_traced(1, 1.0), _traced(2, 2.0)))


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=3))
def test_weighted_counts_are_rounded_and_their_count_is_their_sum(counts: list[float]) -> None:
    (point,) = points_of(_encoded([Reading(TTFT, Kind.HISTOGRAM, SERVED, 1.0, (0.1, 1.0), counts)]))[
        "gen_ai.server.time_to_first_token"
    ]
    assert list(point.bucket_counts) == [round(count) for count in counts]
    assert point.count == sum(point.bucket_counts)


def test_counters_are_monotonic_levels_are_not() -> None:
    request = _encoded(
        [
            Reading("aie_engine_requests_total", Kind.COUNTER, (*SERVED, ("outcome", "ok")), 7.0),
            Reading("aie_gpu_memory_used_bytes", Kind.GAUGE, (("gpu", "0"),), 5.0),
            Reading("aie_engine_kv_usage_ratio", Kind.GAUGE, SERVED, 0.5),
        ]
    )
    metrics = {each.name: each for each in request.resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["aie.engine.requests"].sum.is_monotonic
    assert metrics["aie.engine.requests"].unit == "{requests}"
    assert not metrics["hw.gpu.memory.usage"].sum.is_monotonic
    assert metrics["aie.engine.kv_usage"].gauge.data_points[0].as_double == 0.5


def test_points_of_a_gpu_say_which_it_is() -> None:
    info = (
        *(("architecture", "Hopper"), ("driver", "1"), ("gpu", "0"), ("name", "H100"), ("pci_bus_id", "x")),
        *(("simulated", "true"), ("uuid", "GPU-1")),
    )
    points = points_of(
        _encoded(
            [
                Reading("aie_gpu_info", Kind.GAUGE, info, 1.0),
                Reading("aie_gpu_temperature_celsius", Kind.GAUGE, (("gpu", "0"), ("sensor", "memory")), 70.0),
                Reading("aie_gpu_utilization_ratio", Kind.GAUGE, (("gpu", "1"),), 0.5),
                Reading("aie_gpu_decoder_utilization_ratio", Kind.GAUGE, (("gpu", "1"),), 0.1),
            ]
        )
    )
    assert attributes_of(points["hw.temperature"][0]) == {
        "hw.id": "0",
        "hw.type": "gpu",
        "hw.sensor_location": "memory",
        "hw.name": "H100",
        "aie.gpu.uuid": "GPU-1",
        "hw.vendor": "NVIDIA",
    }
    assert {attributes_of(point)["hw.gpu.task"]: point.as_double for point in points["hw.gpu.utilization"]} == {
        "general": 0.5,
        "decoder": 0.1,
    }


def test_what_others_call_as_the_conventions_do_is_another_metric() -> None:
    request = _encoded(
        [
            Reading("aie_process_cpu_seconds_total", Kind.COUNTER, (("engine", "e"), ("mode", "user")), 1.0),
            Reading("process.cpu.time", Kind.GAUGE, (), 2.0),
        ]
    )
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    assert [(each.name, each.WhichOneof("data")) for each in metrics] == [
        ("process.cpu.time", "sum"),
        ("process.cpu.time", "gauge"),
    ]


def _counter(value: float) -> list[Reading]:
    return [Reading("aie_engine_requests_total", Kind.COUNTER, SERVED, value), Reading("aie_host_load1", Kind.GAUGE, (), 1.0)]


def test_a_counter_starts_when_it_is_seen_and_again_when_it_falls() -> None:
    starts = Starts()
    assert starts.update(_counter(5.0), 100) == [100, 0]
    assert starts.update(_counter(9.0), 200) == [100, 0]
    assert starts.update(_counter(1.0), 300) == [300, 0]
    assert starts.update([], 400) == []
    assert starts.update(_counter(9.0), 500) == [300, 0], "a gap is no reset"
    assert starts.update([], 500 + HOUR_NS) == []
    assert starts.update(_counter(9.0), 501 + HOUR_NS) == [501 + HOUR_NS, 0]


def test_a_histogram_whose_observations_fall_starts_anew() -> None:
    starts = Starts()
    first = [Reading(TTFT, Kind.HISTOGRAM, SERVED, 5.0, (1.0,), (4.0, 1.0))]
    fewer = [Reading(TTFT, Kind.HISTOGRAM, SERVED, 9.0, (1.0,), (0.0, 1.0))]
    assert [starts.update(first, 1), starts.update(fewer, 2)] == [[1], [2]]


def test_what_is_not_known_any_more_is_absent() -> None:
    store = Store(max_series=1000, retention_s=300.0)
    store.apply(Batch("host", 100.0, [Point("aie_host_load1", Kind.GAUGE, (), 1.0)]))
    store.apply(Batch("statsd", 100.0, [], [HistogramPoint(TTFT, SERVED, (1.0,), (1.0, 0.0), 0.5)]))
    assert {each.name for each in readings(store.everything(), 100.5)} == {"aie_host_load1", TTFT}
    assert readings(store.everything(), 100_000.0) == []


def test_values_are_the_conventions_words_where_labels_are_theirs() -> None:
    """Of labels that keep their name, values do, too."""
    modes = ("user", "irq", "softirq")
    points = points_of(
        _encoded(
            [
                *(Reading("aie_host_cpu_seconds_total", Kind.COUNTER, (("mode", mode),), 1.0) for mode in modes),
                Reading("jobs", Kind.COUNTER, (("mode", "irq"),), 1.0),
            ]
        )
    )
    assert [attributes_of(point) for point in points["system.cpu.time"]] == [
        {"cpu.mode": mode} for mode in ("user", "interrupt", "softirq")
    ]
    assert [attributes_of(point) for point in points["jobs"]] == [{"mode": "irq"}]
