"""Every span that ends is counted once, whatever the collector does: it hangs, refuses, answers garbage, or takes some."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from fakes.collector import Answer, MetricsCollector, garbage, refusing, silent, taking_all_but, wait_until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from aie_engine.config import EngineConfig
from aie_engine.metrics import EngineMetrics
from aie_engine.span_counts import RESULTS
from aie_engine.span_settings import queue_size
from aie_engine.tracing import Tracing, otlp_tracing
from aie_hooks.emitter import Emitter
from aie_hooks.requests import RequestHooks
from aie_telemetry.exposition import PageParser

MOST, BATCH = 20, 5


@pytest.fixture
def collector() -> Iterator[MetricsCollector]:
    served = MetricsCollector(kind=ExportTraceServiceRequest)
    yield served
    served.close()


@pytest.fixture
def tracing(collector: MetricsCollector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracing]:
    """A queue of twenty; batches of five leave at once, what is less when it is flushed."""
    for name, value in {"MAX_QUEUE_SIZE": MOST, "MAX_EXPORT_BATCH_SIZE": BATCH, "SCHEDULE_DELAY": 3_600_000}.items():
        monkeypatch.setenv(f"OTEL_BSP_{name}", str(value))
    made = otlp_tracing(EngineConfig(model="fake", name="chat-1", otlp_endpoint=collector.url))
    yield made
    made.provider.shutdown()


def end(tracing: Tracing, number: int) -> None:
    tracer = tracing.provider.get_tracer("test")
    for each in range(number):
        tracer.start_span(str(each)).end()


def counted(**results: int) -> dict[str, int]:
    return dict.fromkeys(RESULTS, 0) | results


def arrived(collector: MetricsCollector) -> int:
    return sum(len(scope.spans) for one in collector.requests for resource in one.resource_spans for scope in resource.scope_spans)


def test_what_overflows_the_queue_while_the_collector_hangs_is_counted(tracing: Tracing, collector: MetricsCollector) -> None:
    """One batch is under way, and as many wait as may: all others are dropped, and each of those that were not arrives."""
    release = threading.Event()
    collector.answer = silent(release)
    end(tracing, BATCH)
    collector.wait(1)
    end(tracing, 500)
    assert tracing.counts.by_result() == counted(dropped=500 - MOST)
    release.set()
    assert tracing.provider.force_flush()
    wait_until(lambda: tracing.counts.by_result()["ok"] == BATCH + MOST)
    assert tracing.counts.by_result() == counted(ok=BATCH + MOST, dropped=500 - MOST)
    assert arrived(collector) == BATCH + MOST
    end(tracing, MOST)  # there is room again
    assert tracing.provider.force_flush()
    assert tracing.counts.by_result() == counted(ok=BATCH + 2 * MOST, dropped=500 - MOST)


@pytest.mark.parametrize("answer", [refusing(400), garbage], ids=["refused", "garbage"])
def test_a_batch_that_is_not_taken_has_failed(tracing: Tracing, collector: MetricsCollector, answer: Answer) -> None:
    collector.answer = answer
    end(tracing, 3)
    assert tracing.provider.force_flush()
    assert tracing.counts.by_result() == counted(failed=3)


def test_what_a_collector_refuses_of_a_batch_is_not_counted_as_sent(tracing: Tracing, collector: MetricsCollector) -> None:
    collector.answer = taking_all_but(2, "too long")
    end(tracing, 3)
    assert tracing.provider.force_flush()
    assert tracing.counts.by_result() == counted(ok=1, refused=2)


def test_what_ends_after_the_end_is_dropped(tracing: Tracing) -> None:
    tracing.provider.shutdown()
    end(tracing, 2)
    assert tracing.counts.by_result() == counted(dropped=2)


def test_what_is_not_sampled_is_no_span(tracing: Tracing) -> None:
    tracing.provider.sampler = ALWAYS_OFF
    end(tracing, MOST + 1)
    assert tracing.counts.by_result() == counted()


@pytest.mark.parametrize(("text", "size"), [("", 2048), ("7", 7), ("0", 2048), ("-1", 2048), ("many", 2048)])
def test_the_size_of_the_queue(text: str, size: int) -> None:
    assert queue_size({"OTEL_BSP_MAX_QUEUE_SIZE": text}) == size


def test_a_small_queue_has_small_batches(monkeypatch: pytest.MonkeyPatch, collector: MetricsCollector) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "7")
    tracing = otlp_tracing(EngineConfig(model="fake", name="chat-1", otlp_endpoint=collector.url))
    end(tracing, 5)
    tracing.provider.shutdown()
    assert tracing.counts.by_result() == counted(ok=5)


def test_the_page_has_all_results_from_the_start(tracing: Tracing) -> None:
    emitter = Emitter("chat-1", "off")
    metrics = EngineMetrics("chat-1", "fake", RequestHooks(emitter, model="fake"), start_wall_s=1.0, spans=tracing.counts)

    def shown() -> dict[str, float]:
        samples = PageParser().parse(metrics.page()).samples
        return {dict(one.tags)["result"]: one.value for one in samples if one.name == "aie_engine_spans_total"}

    assert shown() == counted()
    end(tracing, 1)
    assert tracing.provider.force_flush()
    assert shown() == counted(ok=1)
    emitter.close()
