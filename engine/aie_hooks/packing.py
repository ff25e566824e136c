"""Lines into packets, and how many packets a second may leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

MAX_PACKET_BYTES: Final = 1432
"""Fits an Ethernet frame of 1500 bytes with room for tunnels: the size that StatsD clients agree on."""


class Sender(Protocol):
    """What a line came from: it knows what it means that the line was not sent."""

    def lost(self, amount: float, reason: str) -> None: ...


class Line(NamedTuple):
    """One line, at most `MAX_PACKET_BYTES`, without the newline at its end. `values` is how many values it carries; `amount` is
    what its sender needs back when it is lost."""

    text: bytes
    sender: Sender
    values: int
    amount: float


def pack(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines of one packet after another, in order. Reads `lines` as it goes, by at most one line more than it has yielded."""
    packet: list[Line] = []
    size = 0
    for line in lines:
        size += len(line.text) + 1
        if packet and size - 1 > MAX_PACKET_BYTES:
            yield packet
            packet = []
            size = len(line.text) + 1
        packet.append(line)
    if packet:
        yield packet


class PacketBudget:
    """A token bucket that holds at most one second's packets. Times are seconds of the caller's monotonic clock."""

    def __init__(self, packets_per_second: float, now_s: float) -> None:
        """Raises ValueError for a rate that is not above 0; infinity means no limit."""
        if not packets_per_second > 0:
            raise ValueError(f"packets_per_second must be above 0, not {packets_per_second!r}")
        self._rate = packets_per_second
        self._most = max(1.0, packets_per_second)
        self._left = self._most
        self._then_s = now_s

    def take(self, now_s: float) -> bool:
        """Takes one packet from the budget, if it is there."""
        if now_s > self._then_s:
            self._left = min(self._most, self._left + (now_s - self._then_s) * self._rate)
            self._then_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
