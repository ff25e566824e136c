"""Real receivers for the emitter's packets, and what they make of them."""

from __future__ import annotations

import re
import select
import socket
import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aie_hooks import Emitter
from aie_hooks.packing import MAX_PACKET_BYTES
from aie_telemetry.api import Event
from aie_telemetry.events import decode_event
from aie_telemetry.statsd import Parser, Sample, Tags

SeriesKey = tuple[str, Tags]


class Clock:
    """A monotonic clock that goes on only when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Receiver:
    """A bound datagram socket. Every packet is held against the limit, and parsed without a single refusal."""

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)
        self.pids: list[int] = []

    def packets(self) -> list[bytes]:
        """What lies in the socket now."""
        packets = []
        while True:
            try:
                packet, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(12))
            except BlockingIOError:
                return packets
            for _, kind, data in ancillary:
                if kind == socket.SCM_CREDENTIALS:
                    self.pids.append(struct.unpack("iii", data)[0])
            packets.append(packet)

    def samples(self) -> list[Sample]:
        return decode(self.packets())

    def wait_for_samples(self, timeout_s: float = 60.0) -> list[Sample]:
        """At least one packet's samples; fails when none comes."""
        readable, _, _ = select.select([self.socket], [], [], timeout_s)
        assert readable, f"no packet came within {timeout_s} s"
        return self.samples()

    def close(self) -> None:
        self.socket.close()


class UnixReceiver(Receiver):
    """As the agent's: asks the kernel for the sender's credentials, and unlinks what an earlier one left."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        super().__init__(socket.AF_UNIX, str(path))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


class UdpReceiver(Receiver):
    def __init__(self, port: int = 0) -> None:
        super().__init__(socket.AF_INET, ("127.0.0.1", port))
        self.port: int = self.socket.getsockname()[1]


def decode(packets: Iterable[bytes]) -> list[Sample]:
    parser = Parser(datadog=True)
    samples = []
    for packet in packets:
        assert len(packet) <= MAX_PACKET_BYTES
        for parsed in parser.packet(packet):
            assert not parsed.refusals
            samples += parsed.samples
    return samples


def totals(samples: Iterable[Sample]) -> dict[SeriesKey, float]:
    """The sums of the counters, which are never sampled."""
    sums: dict[SeriesKey, float] = defaultdict(float)
    for sample in samples:
        if sample.type == "counter":
            assert sample.rate == 1.0
            sums[sample.name, sample.tags] += float(sample.value)
    return sums


def levels(samples: Iterable[Sample]) -> dict[SeriesKey, float]:
    """The gauges, deltas applied."""
    gauges: dict[SeriesKey, float] = {}
    for sample in samples:
        if sample.type == "gauge":
            before = gauges.get((sample.name, sample.tags), 0.0) if sample.delta else 0.0
            gauges[sample.name, sample.tags] = before + float(sample.value)
    return gauges


def observations(samples: Iterable[Sample], name: str) -> list[float]:
    return [float(sample.value) for sample in samples if sample.type == "histogram" and sample.name == name]


def total(samples: Iterable[Sample], name: str) -> float:
    """Of one counter, over all its labels."""
    return sum(value for (key, _), value in totals(samples).items() if key == name)


def hellos(samples: Iterable[Sample]) -> list[str]:
    """The pids that said hello."""
    return [dict(sample.tags)["pid"] for sample in samples if sample.name == "aie_hooks_process"]


def manual_emitter(endpoint: str, **options: Any) -> Emitter:
    """An emitter without a thread or a budget, so that a test decides what is sent when."""
    settings: dict[str, Any] = {"flush_interval_s": float("inf"), "packets_per_second": float("inf")}
    return Emitter("chat", endpoint, **{**settings, **options})


def events(receiver: UnixReceiver) -> list[Event]:
    """What lies in the socket; an event stands alone in its packet."""
    found = []
    for packet in receiver.packets():
        match = re.match(rb"_e\{(\d+),(\d+)\}:", packet)
        if match:
            body = packet[match.end() :]
            title, text = body[: int(match[1])], body[int(match[1]) + 1 :]
            assert len(text) == int(match[2])
            event = decode_event(title.decode(), text.decode())
            assert event is not None
            found.append(event)
    return found
