"""The thread that reads StatsD packets from the sockets, parses them and adds them up, whatever the event loop does meanwhile."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from aie_agent.sources.relay import Relay
from aie_agent.sources.statsd_aggregate import ANONYMOUS, Aggregator, Interval
from aie_agent.sources.statsd_events import EventIntake
from aie_agent.sources.statsd_listeners import Listener, Packet
from aie_agent.sources.statsd_namesakes import Namesakes
from aie_agent.sources.statsd_reasons import Reason
from aie_agent.sources.statsd_senders import Heard, Senders
from aie_agent.sources.statsd_series import Identity
from aie_telemetry.api import Event
from aie_telemetry.names import is_engine_name
from aie_telemetry.statsd import Parser, Sample

log = logging.getLogger(__name__)

# After so much the thread lets whoever waits for its sums have them: a flood may take a core, but not the event loop's turn.
BATCH_PACKETS: Final = 64
BATCH_BYTES: Final = 64 << 10


class _FairLock:
    """A lock that its last holder cannot take again while somebody waits for it.

    Under a flood the thread asks for the lock again at once, and would get an ordinary one nearly always. Sleeping between
    batches instead would give the CPU away too, for milliseconds where others want it.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._held = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()


@dataclass(slots=True)
class Received:
    """What came in since the start."""

    packets: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)


class Sums(NamedTuple):
    """What one interval brought, and `received`, what came in since the start."""

    interval: Interval
    senders: Senders
    events: list[Event]
    received: Received


class Receiver:
    """Reads the listeners that it was given until it is stopped. Its methods may be called from any thread."""

    def __init__(self, aggregator: Aggregator, *, datadog: bool, relay: Relay | None, namesakes: Namesakes | None = None) -> None:
        self._received = Received()
        self._aggregator = aggregator
        self._heard = Heard()
        self._events = EventIntake()
        self._last_sender: tuple[Identity, int | None] | None = None
        self._parser = Parser(datadog=datadog)
        self._relay = relay
        self._namesakes = namesakes
        self._lock = _FairLock()
        self._listeners: tuple[Listener, ...] = ()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def listen(self, listeners: tuple[Listener, ...]) -> None:
        """Reads these from now on, and no others. Starts the thread where it does not run.

        Raises RuntimeError, once, where the thread had ended by itself.
        """
        if listeners != self._listeners:
            with self._lock:
                self._listeners = listeners
            os.eventfd_write(self._wake, 1)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="aie-statsd", daemon=True)
            self._thread.start()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise RuntimeError(f"the StatsD thread ended and was started again: {failure}") from failure

    def swap(self, now_s: float) -> Sums:
        """What came in since the last time: the sums, the senders, the events; and what came in since the start.

        Waits for the batch that is being read: not for the event loop.
        """
        with self._lock:
            self._last_sender = None
            events = self._events.take(now_s)
            return Sums(self._aggregator.swap(now_s), self._heard.take(), events, self._totals())

    def _totals(self) -> Received:
        received = self._received
        refused = received.refused + self._aggregator.refused + self._heard.refused + self._events.refused
        ignored, events = Counter(received.ignored), Counter(self._events.taken)
        return Received(Counter(received.packets), Counter(received.bytes), received.samples, refused, ignored, events)

    def stop(self) -> None:
        """Ends the thread, and waits for that. The listeners remain the caller's."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        try:
            self._read_for_ever()
        except Exception as error:
            log.exception("the StatsD thread failed")
            self._failure = error

    def _read_for_ever(self) -> None:
        while not self._stopped:
            with self._lock:  # what is in there is not closed while we ask for its descriptor
                listeners = self._listeners
                by_descriptor = {listener.fileno(): listener for listener in listeners}
            poll = select.poll()
            for descriptor in (self._wake, *by_descriptor):
                poll.register(descriptor, select.POLLIN)
            while listeners is self._listeners and not self._stopped:
                for descriptor, _ in poll.poll():
                    if descriptor == self._wake:
                        _drain(self._wake)
                    else:
                        self._read_batch(by_descriptor[descriptor])

    def _read_batch(self, listener: Listener) -> None:
        """Reads what waits, at most a batch."""
        size = 0
        with self._lock:
            if listener not in self._listeners:  # closed since the poll
                return
            for _ in range(BATCH_PACKETS):
                packet = listener.receive()
                if packet is None:
                    return
                self._take(packet, listener.label)
                size += len(packet.data)
                if size > BATCH_BYTES:
                    return

    def _take(self, packet: Packet, label: str) -> None:
        received = self._received
        received.packets[label] += 1
        received.bytes[label] += len(packet.data)
        data = packet.data
        if packet.truncated:
            # Its last line is cut anywhere: half a number is a number too.
            received.refused[Reason.PACKET_TRUNCATED] += 1
            data = data[: data.rfind(b"\n") + 1]
        if self._relay is not None:
            self._relay.send(packet.data, truncated=packet.truncated)
        add, sender = self._aggregator.add, packet.tgid or ANONYMOUS
        namesakes = self._namesakes if packet.tgid is not None else None  # without the kernel's word nobody is told apart
        last = self._last_sender
        for parsed in self._parser.packet(data):
            for sample in parsed.samples:
                received.samples += 1
                own = sample if namesakes is None else namesakes.sample(sample, sender)
                if own is None:
                    received.refused[Reason.NAME_TAKEN] += 1
                    self._hear(sample, packet)
                    continue
                identity = add(own, sender)
                if identity is not None and (identity, packet.tgid) != last:
                    self._heard.add(identity, packet.tgid, may_claim=packet.may_claim)
                    last = (identity, packet.tgid)
            for refusal in parsed.refusals:
                received.refused[refusal.reason] += 1
            if parsed.ignored is not None:
                received.ignored[parsed.ignored] += 1
            if parsed.event is not None:
                self._take_event(parsed.event, packet, namesakes)
        # One process mostly sends for one engine, packet after packet. Without credentials the next may be somebody else.
        self._last_sender = last if packet.tgid is not None else None

    def _hear(self, sample: Sample, packet: Packet) -> None:
        """Whose samples are passed over is known all the same, so that it gets a name of its own."""
        name = dict(sample.tags).get("engine", "")
        if is_engine_name(name):
            self._heard.add(Identity(name), packet.tgid, may_claim=packet.may_claim)

    def _take_event(self, event: Event, packet: Packet, namesakes: Namesakes | None) -> None:
        name = event.engine if namesakes is None else namesakes.engine(event.engine, packet.tgid or ANONYMOUS)
        if name is None:
            self._received.refused[Reason.NAME_TAKEN] += 1
            self._heard.add(Identity(event.engine), packet.tgid, may_claim=packet.may_claim)
        elif self._events.add(event if name == event.engine else msgspec.structs.replace(event, engine=name)):
            self._heard.add(Identity(name), packet.tgid, may_claim=packet.may_claim)


def _drain(eventfd: int) -> None:
    try:
        os.eventfd_read(eventfd)
    except BlockingIOError:  # somebody else's wake-up, read already
        return
