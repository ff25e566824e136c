"""Sends an engine's metrics to the agent, or to any StatsD server, without ever stopping the engine.

    emitter = Emitter("chat")
    tokens = emitter.counter("aie_engine_generation_tokens_total", model="m")   # once, at start: the handle is the fast path
    tokens.add(8)                                                               # any thread, any time
    emitter.flush()                                                             # once a step, or leave it to the thread

What cannot be sent is dropped and counted (`aie_hooks_dropped_total`), except for counters' sums and gauges' levels, which wait
for the next flush. Only the constructor and the making of handles raise, on configuration that cannot work.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from aie_hooks.endpoint import resolve
from aie_hooks.naming import constant_tags, frame_of
from aie_hooks.packing import Line, PacketBudget, pack
from aie_hooks.reentrant import Turn
from aie_hooks.series import Counter, Frame, Gauge, Histogram, SilentCounter, SilentGauge, SilentHistogram
from aie_hooks.ticker import Ticker
from aie_hooks.transport import Transport
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.statsd import MIN_RATE, Dialect
from aie_telemetry.statsd_encode import encode_series

if TYPE_CHECKING:
    from aie_telemetry.api import Event

HELLO_PERIOD_S: Final = 10.0
DROP_REASONS: Final = ("would_block", "budget", "no_receiver", "invalid")
_CLOSE_WAIT_S: Final = 0.2
_EVENT_WAIT_S: Final = 0.05

_log = logging.getLogger(__name__)
_live: weakref.WeakSet[Emitter] = weakref.WeakSet()


class Collector(Protocol):
    """What has values that are cheaper to work out once a flush than whenever they change."""

    def collect(self) -> None:
        """A flush begins, on whichever thread: set gauges now."""

    def forget(self) -> None:
        """This is a forked child: what the parent was at is not the child's."""


@dataclass(frozen=True, slots=True)
class EmitterStats:
    """Since the process started. `values_sent`: what the kernel took of counters' sums, gauges' levels and single observations.
    `dropped`: values by reason."""

    packets_sent: int
    values_sent: int
    dropped: dict[str, int]


class Emitter:
    """One per process and engine. Thread-safe; survives a fork, after which parent and child emit each for itself."""

    def __init__(
        self,
        engine: str,
        endpoint: str | None = None,
        *,
        dialect: Dialect = "telegraf",
        packets_per_second: float = 200.0,
        flush_interval_s: float = 0.1,
        tags: Iterable[tuple[str, str]] = (),
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """`endpoint` is `unix:///path`, `udp://host:port` or `off`; None means `$AIE_STATSD`, else this user's agent.

        `tags` are added to every metric of your own, and to those of the catalogue that have such a label. An infinite
        `flush_interval_s` means no thread: only `flush` sends then. Raises ValueError for a malformed endpoint, interval or
        budget, for an engine by a name that the agent would refuse (`aie_telemetry.names`), and for tags that the dialect cannot
        say.
        """
        if not flush_interval_s > 0:
            raise ValueError(f"flush_interval_s must be above 0, not {flush_interval_s!r}")
        self.engine = engine
        self._dialect: Dialect = dialect
        self._tags = constant_tags(engine, tags, dialect)
        self._clock = clock
        # Its own generator: drawing from the shared one would change what a seeded engine samples.
        self._rng = rng or random.Random()
        self._budget = PacketBudget(packets_per_second, clock())
        self.endpoint = resolve(endpoint)
        self._transport = None if self.endpoint is None else Transport(self.endpoint)
        self.ticker = Ticker(self._background_flush, flush_interval_s)
        self._begin()
        self._begin_process()
        self._dropped = {reason: self.counter("aie_hooks_dropped_total", reason=reason) for reason in DROP_REASONS}
        if self._transport is not None:
            _live.add(self)
            self._background_flush()
            self.ticker.start()

    def _begin(self) -> None:
        """What is empty at first."""
        self._counters: dict[Frame, Counter] = {}
        self._gauges: dict[Frame, Gauge] = {}
        self._histograms: dict[tuple[Frame, float], Histogram] = {}
        self._collectors: list[Collector] = []
        self._complaints: set[str] = set()
        self._turn = 0
        self._closed = False
        self._failure: str | None = None
        self._flush_has_failed = False

    def _begin_process(self) -> None:
        """What belongs to one process: set up at the start, and anew in a forked child."""
        self._flushing = Turn()
        self._packets_sent = self._values_sent = 0
        self._greeted_generation = 0
        self._next_hello_s = -math.inf
        tags = (("engine", self.engine), ("pid", str(os.getpid())))
        head, tail = encode_series("aie_hooks_process", tags, self._dialect)
        self._hello = f"{head}:1|g{tail}".encode()

    # Handles: made once and kept by the caller; the same name and labels give the same handle.

    def counter(self, name: str, /, **labels: str) -> Counter:
        """A handle for a sum. Raises ValueError for a name or labels that are not the catalogue's or that cannot be said."""
        frame = frame_of(name, Kind.COUNTER, labels, self._tags, self._dialect)
        kind = SilentCounter if self._transport is None else Counter
        made = kind(frame, self)
        counter = self._counters.setdefault(frame, made)  # which is atomic
        if counter is made and self.ticker.asleep:
            self.ticker.ring()  # it is announced at 0 soon, and not only with its first increment
        return counter

    def gauge(self, name: str, /, **labels: str) -> Gauge:
        """A handle for a level. Raises as `counter` does."""
        frame = frame_of(name, Kind.GAUGE, labels, self._tags, self._dialect)
        kind = SilentGauge if self._transport is None else Gauge
        return self._gauges.setdefault(frame, kind(frame, self))

    def histogram(self, name: str, /, rate: float = 1.0, **labels: str) -> Histogram:
        """A handle for a distribution of which the share `rate`, in [1e-6, 1], is sent. Raises as `counter` does."""
        if not MIN_RATE <= rate <= 1.0:
            raise ValueError(f"rate {rate!r} of {name} is outside [{MIN_RATE:g}, 1]")
        frame = frame_of(name, Kind.HISTOGRAM, labels, self._tags, self._dialect)
        kind = SilentHistogram if self._transport is None else Histogram
        least = -sys.float_info.max if _may_be_negative(name) else 0.0
        return self._histograms.setdefault((frame, rate), kind(frame, self, rate, self._rng.random, least))

    def sampled(self, rate: float) -> bool:
        """One roll of the dice, for callers that decide once for several values and then `record` them."""
        return self._rng.random() < rate

    def at_flush(self, collector: Collector) -> None:
        """Calls `collector.collect()` at the beginning of every flush. Does nothing for an emitter that is off."""
        if self._transport is not None:
            self._collectors.append(collector)

    def failed(self, what: str, error: BaseException, count: int = 1) -> None:
        """A hook broke within: counts it as invalid and logs it, once for each `what`. For hooks; never raises."""
        self.drop("invalid", count)
        if what not in self._complaints:
            self._complaints.add(what)
            _log.error("%s failed, and the engine goes on without it; said once", what, exc_info=error)

    # Sending.

    def event(self, event: Event) -> bool:
        """Sends what just happened at once, in a packet of its own; whether the kernel took it. Never raises.

        What cannot be said or sent now is dropped and counted: an event that comes late would be taken for one of later.
        """
        from aie_telemetry.events import encode_event  # here, because most engines never send one

        transport, flushing = self._transport, self._flushing
        if transport is None or self._closed:
            return False
        try:
            line = encode_event(event)
            if not flushing.take(_EVENT_WAIT_S):
                self.drop("would_block", 1)
                return False
            try:
                failure = self._send_event(transport, line)
            finally:
                flushing.leave()
        except Exception as error:  # noqa: BLE001 - what is being told of is trouble enough
            self.failed("sending an event", error)
            return False
        if failure is not None:
            self.drop(failure, 1)
        return failure is None

    def _send_event(self, transport: Transport, line: bytes) -> str | None:
        now_s = self._clock()
        if not transport.ready(now_s, may_resolve=False):
            return "no_receiver"
        failure = self._greet(transport, now_s) if transport.generation != self._greeted_generation else None
        failure = failure or self._send(transport, line)
        if failure is None:
            self._values_sent += 1
        return failure

    def flush(self) -> None:
        """Sends what came together. Costs nothing when another thread is at it: that one, or the next, sends it."""
        self._flush(may_resolve=False)

    def close(self) -> None:
        """Sends what came together and ends the thread; what is emitted after that goes nowhere. Called at exit."""
        self.ticker.stop()
        self._flush(may_resolve=False, wait_s=_CLOSE_WAIT_S)
        self._closed = True
        _live.discard(self)
        if self._transport is not None and self._flushing.take(_CLOSE_WAIT_S):
            self._transport.close()
            self._flushing.leave()

    def stats(self) -> EmitterStats:
        """What was sent and what was dropped so far."""
        dropped = {reason: int(counter.total) for reason, counter in self._dropped.items()}
        return EmitterStats(self._packets_sent, self._values_sent, dropped)

    def drop(self, reason: str, count: int) -> None:
        """Counts `count` values that were dropped; `reason` is one of `DROP_REASONS`. For series and hooks."""
        self._dropped[reason].add(count)

    def overflow(self, count: int) -> None:
        """Counts values for which a series had no room, under what keeps the older ones from being sent."""
        self.drop(self._failure or "budget", count)

    def _background_flush(self) -> None:
        # Looking up a host name may block, and does so here only: in the constructor and on the thread.
        self._flush(may_resolve=True)

    def _flush(self, *, may_resolve: bool, wait_s: float = 0.0) -> None:
        transport, flushing = self._transport, self._flushing
        if transport is None or self._closed or not flushing.take(wait_s):
            return
        try:
            self._collect()
            self._failure = self._send_all(transport, may_resolve=may_resolve)
            if self._failure == "no_receiver":
                for histogram in list(self._histograms.values()):
                    histogram.discard("no_receiver")
            elif self._failure is not None:
                self._turn += 1
                self.ticker.ring()
        except Exception:  # noqa: BLE001 - a defect of ours must not become the engine's, and it is logged
            if not self._flush_has_failed:
                self._flush_has_failed = True
                _log.exception("metrics of engine %s could not be sent; said once", self.engine)
        finally:
            flushing.leave()

    def _collect(self) -> None:
        for collector in self._collectors:
            try:
                collector.collect()
            except Exception as error:  # noqa: BLE001 - the others' values are worth sending
                self.failed("collecting at a flush", error)

    def _send_all(self, transport: Transport, *, may_resolve: bool) -> str | None:
        """Sends until something is in the way, and returns what."""
        now_s = self._clock()
        if not transport.ready(now_s, may_resolve=may_resolve):
            return "no_receiver"
        if transport.generation != self._greeted_generation or now_s >= self._next_hello_s:
            failure = self._greet(transport, now_s)
            if failure is not None:
                return failure
        stop: list[str] = []
        for packet in pack(self._lines(stop)):
            failure = stop[0] if stop else self._send(transport, b"\n".join([line.text for line in packet]))
            if failure is None:
                self._values_sent += sum(line.values for line in packet)
                continue
            stop.append(failure)
            for line in packet:
                line.sender.lost(line.amount, failure)
        return stop[0] if stop else None

    def _greet(self, transport: Transport, now_s: float) -> str | None:
        """Says who emits. Alone in a packet and first: over UDP on loopback it also finds out whether anybody listens."""
        failure = self._send(transport, self._hello)
        if failure is None:
            self._greeted_generation = transport.generation
            self._next_hello_s = now_s + HELLO_PERIOD_S
            for series in chain(list(self._counters.values()), list(self._gauges.values())):
                series.refresh()
        return failure

    def _lines(self, stop: list[str]) -> Iterator[Line]:
        """Lines until `stop` holds something; sums and levels first, then the histograms, each first in its turn."""
        # Copies, because another thread may be making a handle.
        histograms = list(self._histograms.values())
        turn = self._turn % len(histograms) if histograms else 0
        in_order = (self._counters.values(), self._gauges.values(), histograms[turn:], histograms[:turn])
        for series in chain.from_iterable(list(some) for some in in_order):
            for line in series.take():
                yield line
                if stop:
                    return

    def _send(self, transport: Transport, packet: bytes) -> str | None:
        if not self._budget.take(self._clock()):
            return "budget"
        failure = transport.send(packet)
        if failure is None:
            self._packets_sent += 1
        return failure

    def _forget(self) -> None:
        """In a forked child: nothing of the parent's is sent twice, no lock of its threads is waited for."""
        self._begin_process()
        self._rng.seed()
        self.ticker.forget()
        if self._transport is not None:
            self._transport.forget()
        for series in chain(self._counters.values(), self._gauges.values(), self._histograms.values()):
            series.forget()
        for collector in self._collectors:
            collector.forget()


def _may_be_negative(name: str) -> bool:
    metric = CATALOGUE.get(name)
    return metric is not None and bool(metric.buckets) and metric.buckets[0] < 0.0


def _after_fork_in_child() -> None:
    for emitter in list(_live):
        emitter._forget()


def _at_exit() -> None:
    for emitter in list(_live):
        emitter.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
