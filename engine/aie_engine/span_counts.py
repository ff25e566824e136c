"""What becomes of spans. The SDK's queue drops the oldest where it is full, and counts none: so no more are let in than it holds,
and what the exporter made of each batch is counted. Imports OpenTelemetry's SDK: only for who has it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from aie_engine.span_settings import BATCH_SIZE, DEFAULT_BATCH_SIZE

if TYPE_CHECKING:
    import requests

RESULTS: Final = ("ok", "failed", "refused", "dropped")
_PROTOBUF: Final = "application/x-protobuf"


class SpanCounts:
    """Spans by result, and how many wait. Thread-safe."""

    def __init__(self, most_waiting: int) -> None:
        self._lock = threading.Lock()
        self._most_waiting = most_waiting
        self._waiting = 0
        self._by_result = dict.fromkeys(RESULTS, 0)
        self._refused = 0

    def by_result(self) -> dict[str, int]:
        """Since the start, by `RESULTS`; those that wait are in none."""
        with self._lock:
            return dict(self._by_result)

    def admit(self) -> bool:
        """One more wants to wait; whether it may. Else it is counted as dropped."""
        with self._lock:
            if self._waiting >= self._most_waiting:
                self._by_result["dropped"] += 1
                return False
            self._waiting += 1
            return True

    def drop(self) -> None:
        """One came that nobody takes any more."""
        with self._lock:
            self._by_result["dropped"] += 1

    def taken(self, number: int) -> None:
        """So many left the queue for the exporter."""
        with self._lock:
            self._waiting -= number

    def refuse(self, number: int) -> None:
        """The collector's answer says so of the batch that is under way."""
        with self._lock:
            self._refused += number

    def exported(self, number: int, *, well: bool) -> None:
        """The exporter is through with so many."""
        with self._lock:
            refused, self._refused = (min(self._refused, number) if well else 0), 0
            self._by_result["ok" if well else "failed"] += number - refused
            self._by_result["refused"] += refused


def inspect_answer(counts: SpanCounts, response: requests.Response) -> None:
    """Notes what an answer says of refused spans. Raises what `requests` raises for an answer that is not what it says to be."""
    if response.headers.get("Content-Type", "").split(";")[0].strip().lower() != _PROTOBUF:
        return
    from google.protobuf.message import DecodeError

    try:
        answer = ExportTraceServiceResponse.FromString(response.content)
    except DecodeError as error:
        from requests.exceptions import InvalidSchema

        raise InvalidSchema("it answers what is no OTLP") from error
    counts.refuse(max(answer.partial_success.rejected_spans, 0))


class CountedProcessor(SpanProcessor):
    """OpenTelemetry's batches, of which every span is counted. Its queue is never full: what would not fit does not get there."""

    def __init__(self, exporter: SpanExporter, counts: SpanCounts, most_waiting: int) -> None:
        """`counts` lets in no more than `most_waiting`."""
        self._counts = counts
        self._ended = False
        counted = _CountedExporter(exporter, counts)
        batch = None if os.environ.get(BATCH_SIZE) else min(most_waiting, DEFAULT_BATCH_SIZE)  # the SDK refuses a larger one
        self._batches = BatchSpanProcessor(counted, max_queue_size=most_waiting, max_export_batch_size=batch)

    def on_end(self, span: ReadableSpan) -> None:
        """As the SDK calls it. Those that are not sampled are nobody's."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._ended:
            self._counts.drop()
        elif self._counts.admit():
            self._batches.on_end(span)

    def shutdown(self) -> None:
        """Sends what waits."""
        self._ended = True
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Sends what waits, now."""
        return self._batches.force_flush(timeout_millis)


class _CountedExporter(SpanExporter):
    def __init__(self, inner: SpanExporter, counts: SpanCounts) -> None:
        self._inner = inner
        self._counts = counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._counts.taken(len(spans))
        well = False
        try:
            result = self._inner.export(spans)
            well = result is SpanExportResult.SUCCESS
        finally:
            self._counts.exported(len(spans), well=well)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
