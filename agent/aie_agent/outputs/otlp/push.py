"""Pushing to a collector, on a thread of its own: whatever the collector does, the agent neither waits nor piles up for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from aie_agent.outputs.otlp.convert import Exemplars, Reading, Starts, is_sendable, metrics_data, readings
from aie_agent.outputs.otlp.refused import Refused
from aie_agent.samples import Count
from aie_agent.store import AnySeries

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 3.0
"""At most so long what is under way, and the last push after it, hold up the end of the agent. systemd gives it 90 s, a pod 30."""


class Exporter(Protocol):
    """What is used of the SDK's exporters. `export` blocks for at most its own timeout, retries included."""

    def export(self, metrics_data: MetricsData, timeout_millis: float = ...) -> MetricExportResult:
        """Sends one request."""

    def shutdown(self, timeout_millis: float = ...) -> None:
        """Ends waiting for another try."""


class _Push(NamedTuple):
    """What is to be sent, and of when."""

    read: Sequence[Reading]
    now_ns: int


class OtlpPush:
    """Hands what the store holds to an exporter, every `interval_s`. One push is under way at most and none waits: where the
    collector is slower than the interval, what comes meanwhile is skipped, and counted. Counters are cumulative, so that the next
    push tells all."""

    def __init__(
        self,
        make_exporter: Callable[[], Exporter],
        interval_s: float,
        resource: Resource,
        scope: InstrumentationScope,
        refused: Refused | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`make_exporter` is called on the thread: it may read certificates, and fail. `refused` knows what the collector took only
        in part."""
        self._make_exporter = make_exporter
        self._interval_s = interval_s
        self._resource = resource
        self._scope = scope
        self._refused = refused or Refused()
        self._wall_clock_ns = wall_clock_ns
        self._starts = Starts()
        self._exemplars = Exemplars()
        self._next_s: float | None = None
        self._offered: _Push | None = None
        self._last: _Push | None = None
        self._wake = threading.Condition()
        self._closing = False
        self._exporter: Exporter | None = None
        self._is_shut_down = False
        self._failing = ""
        self._exports = {"ok": 0, "failed": 0}
        self._points = {"ok": 0, "failed": 0, "skipped": 0, "invalid": 0, "refused": 0}
        self._last_success_s: float | None = None
        # A daemon: the SDK's exporters cannot be cut short in the middle of a request.
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def tick(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """To be called once a second, by the thread that writes the store. `series` gives all of it. Never blocks."""
        if self._next_s is None:
            self._next_s = now_s + min(self._interval_s, 1.0)  # the first push after the sources' first look
        if now_s < self._next_s:
            return
        self._next_s = max(self._next_s + self._interval_s, now_s)
        push = self._read(series, now_s)
        with self._wake:
            if self._offered is not None:
                self._points["skipped"] += len(push.read)
                return
            self._offered = push
            self._wake.notify()

    def counts(self) -> Iterable[Count]:
        """What the agent says about its own pushing."""
        for result, number in self._exports.items():
            yield "aie_agent_otlp_exports_total", (result,), float(number)
        for result, number in self._points.items():
            yield "aie_agent_otlp_points_total", (result,), float(number)
        yield "aie_agent_otlp_interval_seconds", (), self._interval_s
        if self._last_success_s is not None:
            yield "aie_agent_otlp_last_success_timestamp_seconds", (), self._last_success_s

    def tick_last(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """To be called once before `close`, by the thread that writes the store: what came since the last push goes out as well,
        after what is under way. Never blocks."""
        push = self._read(series, now_s)
        with self._wake:
            self._last = push

    def close(self) -> None:
        """Ends it; what is under way and the last push get a moment, together. To be called where waiting so long harms nobody."""
        with self._wake:
            self._closing = True
            if self._last is None:
                self._shut_down()  # nothing comes after what is under way: no other try of it is waited for
            self._wake.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._shut_down()

    def _shut_down(self) -> None:
        if self._exporter is not None and not self._is_shut_down:
            self._is_shut_down = True  # the SDK complains of a second time
            self._exporter.shutdown(timeout_millis=0.0)

    def _read(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> _Push:
        # The wall clock, which the agent's own may be ahead of: backends refuse what lies in the future.
        return _Push(readings(series(), now_s), self._wall_clock_ns())

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._offered is not None or self._closing)
                push = self._offered
                if push is None:  # it is closing
                    push, self._last = self._last, None
            if push is None or self._is_shut_down:
                return
            sendable = push._replace(read=[each for each in push.read if is_sendable(each)])
            self._points["invalid"] += len(push.read) - len(sendable.read)
            self._count(sendable, self._send(sendable))
            with self._wake:
                self._offered = None

    def _send(self, push: _Push) -> str:
        """The reason why it did not get there; empty when it did."""
        try:
            if self._exporter is None:
                self._exporter = self._make_exporter()
            starts = self._starts.update(push.read, push.now_ns)
            read = self._exemplars.untold(push.read)
            result = self._exporter.export(metrics_data(read, starts, push.now_ns, self._resource, self._scope))
        except Exception as error:  # whatever an exporter raises, the next push is tried; it is logged whole, once
            if not self._failing:
                log.exception("OTLP: a push failed")
            return f"nothing gets through: {type(error).__name__}: {error}"
        if result is MetricExportResult.SUCCESS:
            self._exemplars.told(push.read)
            return ""
        return "nothing gets through: the collector did not take it, or did not end; OpenTelemetry's exporter says why"

    def _count(self, push: _Push, reason: str) -> None:
        result = "failed" if reason else "ok"
        refused, why = self._refused.take()
        self._exports[result] += 1
        self._points[result] += max(len(push.read) - refused, 0)
        self._points["refused"] += refused
        if not reason:
            self._last_success_s = push.now_ns / 1e9
            reason = f"the collector refused {refused} of {len(push.read)} points: {why}" if refused else ""
        if bool(reason) != bool(self._failing):
            log.warning("OTLP: %s", reason if reason else "gets through again")
        self._failing = reason
