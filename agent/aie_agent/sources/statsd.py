"""StatsD in: hooks and other senders, on a Unix datagram socket and on UDP. A thread adds up; once a period the sums are taken."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aie_agent.config import StatsdSection
from aie_agent.config_values import OFF
from aie_agent.samples import Batch, Count, labelled
from aie_agent.sources.base import SourceError
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.relay import Relay
from aie_agent.sources.statsd_aggregate import Aggregator
from aie_agent.sources.statsd_listeners import Listener, UdpListener, UnixListener
from aie_agent.sources.statsd_namesakes import Namesakes
from aie_agent.sources.statsd_reasons import Reason
from aie_agent.sources.statsd_receiver import Received, Receiver
from aie_agent.sources.statsd_senders import Introductions, NamespacePids


@dataclass(frozen=True, slots=True)
class StatsdCounters:
    """Everything that came in since the start, and everything that was lost, by socket or by reason."""

    packets: dict[str, int]
    bytes: dict[str, int]
    samples: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    events: dict[str, int]
    kernel_drops: dict[str, int]
    relayed: int | None
    relay_dropped: dict[str, int]


class StatsdSource:
    """Both sockets. One that cannot be opened is tried again each period, and makes the source "down" with the reason, while
    what the other one brings is delivered all the same."""

    name = "statsd"
    period_s = 1.0

    def __init__(
        self,
        unix_path: Path | None,
        udp: tuple[str, int] | None,
        *,
        datadog: bool = True,
        relay: Relay | None = None,
        max_series: int = 5000,
        max_set_members: int = 5000,
        procfs: Procfs | None = None,
        namesakes: Namesakes | None = None,
    ) -> None:
        """`udp` is (host, port); None switches a socket off. `max_series` bounds the series known at a time, `max_set_members`
        the members of one set in one interval. `namesakes` tells engines of one name apart. Opens nothing yet."""
        self._openers: dict[str, Callable[[], Listener]] = {}
        if unix_path is not None:
            self._openers["unix"] = lambda: UnixListener(unix_path)
        if udp is not None:
            self._openers["udp"] = lambda: UdpListener(*udp)
        self._listeners: dict[str, Listener] = {}
        self._relay = relay
        aggregator = Aggregator(max_series=max_series, max_set_members=max_set_members)
        self._receiver = Receiver(aggregator, datadog=datadog, relay=relay, namesakes=namesakes)
        self._introductions = Introductions(NamespacePids(procfs or Procfs()))
        self._overflows = 0
        self._closed_drops: Counter[str] = Counter()
        self._counters = StatsdCounters({}, {}, 0, {}, {}, {}, {}, None if relay is None else 0, {})
        # The agent gives up waiting for a collection when it stops, and closes; the thread may still be at it.
        self._collecting = threading.Lock()
        self._closed = False

    @classmethod
    def from_config(cls, section: StatsdSection, namesakes: Namesakes | None = None) -> StatsdSource:
        """As the configuration says."""
        udp = None if section.udp.is_off else (section.udp.host, section.udp.port)
        relay = None if section.relay == OFF else Relay(section.relay)
        return cls(section.unix.path, udp, datadog=section.datadog, relay=relay, namesakes=namesakes)

    @property
    def addresses(self) -> dict[str, str]:
        """Where it listens at present, by socket: "unix", "udp"."""
        return {label: listener.address for label, listener in list(self._listeners.items())}

    async def open(self) -> None:
        """Listens from now on, and not only from the first collection, which says what does not work."""
        await asyncio.to_thread(self._open)

    async def collect(self, now_s: float) -> Batch:
        """The sums of one period. Raises SourceError, with them, when a socket cannot be had."""
        return await asyncio.to_thread(self._collect, now_s)

    async def close(self) -> None:
        """Ends the thread and closes and removes the sockets."""
        await asyncio.to_thread(self._close)

    def counters(self) -> StatsdCounters:
        """Counts since the start, as of the last collection: asking costs nothing and waits for nobody."""
        return self._counters

    def counts(self) -> Iterable[Count]:
        """The same as `aie_agent_statsd_*` and `aie_agent_relay_*`."""
        counters = self.counters()
        yield from labelled("aie_agent_statsd_packets_total", counters.packets)
        yield from labelled("aie_agent_statsd_bytes_total", counters.bytes)
        yield "aie_agent_statsd_samples_total", (), float(counters.samples)
        yield from labelled("aie_agent_statsd_dropped_total", counters.dropped)
        yield from labelled("aie_agent_statsd_ignored_total", counters.ignored)
        yield from labelled("aie_agent_events_total", counters.events)
        yield from labelled("aie_agent_statsd_kernel_drops_total", counters.kernel_drops)
        if counters.relayed is not None:
            yield "aie_agent_relay_packets_total", (), float(counters.relayed)
            yield from labelled("aie_agent_relay_dropped_total", counters.relay_dropped)

    def _collect(self, now_s: float) -> Batch:
        with self._collecting:
            if self._closed:
                raise SourceError("closed")
            return self._collect_open(now_s)

    def _open(self) -> None:
        with self._collecting:
            if not self._closed:
                self._open_listeners()
                self._receiver.listen(tuple(self._listeners.values()))

    def _collect_open(self, now_s: float) -> Batch:
        problems = self._open_listeners()
        self._receiver.listen(tuple(self._listeners.values()))
        problems += self._connect_relay(now_s)
        interval, senders, events, received = self._receiver.swap(now_s)
        points, histograms, overflows = interval.points()
        self._overflows += overflows
        batch = Batch(self.name, now_s, points, histograms, self._introductions.report(senders, now_s), events, interval.values())
        self._counters = self._counted(received)
        if problems:
            raise SourceError("; ".join(problems), batch)
        return batch

    def _open_listeners(self) -> list[str]:
        """Opens what is not open, and opens anew what senders cannot find any more. Returns what does not work."""
        problems = []
        for label, open_listener in self._openers.items():
            listener = self._listeners.get(label)
            if listener is not None and not listener.is_reachable():
                self._drop(label)
                listener = None
            if listener is None:
                try:
                    self._listeners[label] = open_listener()
                except SourceError as error:
                    problems.append(str(error))
        return problems

    def _drop(self, label: str) -> None:
        """Closes a listener. The receiver is told first, so that it does not read from a descriptor that is another's by then."""
        listener = self._listeners.pop(label)
        self._receiver.listen(tuple(self._listeners.values()))
        self._closed_drops[label] += listener.kernel_drops() or 0
        listener.close()

    def _connect_relay(self, now_s: float) -> list[str]:
        """An upstream that is away is a problem that one should see."""
        relay = self._relay
        if relay is None:
            return []
        relay.connect(now_s, lambda peer: any(listener.is_at(peer) for listener in self._listeners.values()))
        return [] if relay.trouble is None else [relay.trouble]

    def _counted(self, received: Received) -> StatsdCounters:
        dropped = received.refused + self._introductions.refused + Counter({Reason.OVERFLOW: self._overflows})
        relay = self._relay
        return StatsdCounters(
            packets=dict(received.packets),
            bytes=dict(received.bytes),
            samples=received.samples,
            dropped={str(reason): count for reason, count in dropped.items()},
            ignored=dict(received.ignored),
            events=dict(received.events),
            kernel_drops=self._kernel_drops(),
            relayed=None if relay is None else relay.packets,
            relay_dropped={} if relay is None else dict(relay.dropped),
        )

    def _kernel_drops(self) -> dict[str, int]:
        drops = Counter(self._closed_drops)
        for label, listener in self._listeners.items():
            drops[label] += listener.kernel_drops() or 0
        return {label: count for label, count in drops.items() if label != UnixListener.label}

    def _close(self) -> None:
        with self._collecting:
            if self._closed:
                return
            self._closed = True
            self._receiver.stop()
            for listener in self._listeners.values():
                listener.close()
            self._listeners = {}
            if self._relay is not None:
                self._relay.close()
