"""Packets passed on to another StatsD server: unchanged, never waiting, every loss counted."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aie_agent.samples import Batch
from aie_agent.sources.base import SourceError
from aie_agent.sources.relay import RECONNECT_EVERY_S, Peer, Relay
from aie_agent.sources.relay_resolver import REFRESH_S, RETRY_S, SLOW_S, Address
from aie_agent.sources.statsd import StatsdSource

PACKETS = [b"a:1|c", b"not statsd at all \xff", b"_e{1,1}:a|b", b"a:1|c\nb:2|g|#x:y"]


def not_own(_peer: Peer) -> bool:
    return False


@contextlib.contextmanager
def upstream_udp() -> Iterator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        yield server, f"udp://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def upstream_unix(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        server.settimeout(60)
        yield server
    path.unlink()


def test_udp() -> None:
    with upstream_udp() as (server, address):
        relay = Relay(address)
        relay.connect(0.0, not_own)
        for packet in PACKETS:
            relay.send(packet)
            assert server.recv(65536) == packet
        assert relay.packets == len(PACKETS)
        assert not relay.dropped
        relay.close()


def test_a_slow_upstream_costs_packets_and_no_time(tmp_path: Path) -> None:
    with upstream_unix(tmp_path / "up.sock") as server:
        relay = Relay(f"unix://{tmp_path}/up.sock")
        relay.connect(0.0, not_own)
        sent = 0
        while not relay.dropped:
            relay.send(b"a:1|c")
            sent += 1
        assert relay.dropped == {"would_block": 1}
        assert relay.packets == sent - 1
        assert server.recv(100) == b"a:1|c"
        relay.send(b"b:1|c")
        assert relay.packets == sent
        relay.close()


def test_an_upstream_that_restarts_is_found_again(tmp_path: Path) -> None:
    relay = Relay(f"unix://{tmp_path}/up.sock")
    relay.connect(0.0, not_own)
    assert relay.trouble is not None
    relay.send(b"x")
    assert relay.dropped == {"no_receiver": 1}
    with upstream_unix(tmp_path / "up.sock") as server:
        relay.connect(RECONNECT_EVERY_S / 2, not_own)  # not yet
        relay.send(b"x")
        assert relay.dropped == {"no_receiver": 2}
        relay.connect(RECONNECT_EVERY_S, not_own)
        assert relay.trouble is None
        relay.send(b"y")
        assert server.recv(100) == b"y"
    relay.send(b"x")
    assert relay.dropped == {"no_receiver": 3}
    with upstream_unix(tmp_path / "up.sock") as server:
        relay.connect(2 * RECONNECT_EVERY_S, not_own)
        relay.send(b"z")
        assert server.recv(100) == b"z"
    relay.close()


def test_a_closed_port_is_noticed_and_a_packet_too_large_is_refused() -> None:
    with upstream_udp() as (_, address):
        relay = Relay(address)
        relay.connect(0.0, not_own)
        relay.send(b"x" * 70_000)
        assert relay.dropped == {"too_large": 1}
    end = time.monotonic() + 60
    while not relay.dropped["no_receiver"]:
        assert time.monotonic() < end
        relay.send(b"x")
    relay.close()


class SlowResolver:
    """A look-up that lasts until it is told to end."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.answer: list[Address] | OSError = []

    def __call__(self, host: str, port: int) -> list[Address]:
        self.asked += 1
        assert self.may_answer.wait(60)
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


def connect_until(relay: Relay, now_s: float, condition: Callable[[], bool]) -> None:
    """The look-up is a thread of its own: its answer is taken up by one of the next calls."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, relay.trouble
        relay.connect(now_s, not_own)
        time.sleep(0.002)
        now_s += 1e-6


def address_of(server: socket.socket) -> Address:
    return Address(socket.AF_INET, server.getsockname())


def test_a_slow_look_up_holds_up_nobody() -> None:
    with upstream_udp() as (server, _):
        lookup = SlowResolver()
        lookup.answer = [address_of(server)]
        relay = Relay("udp://telegraf:8125", lookup)
        relay.connect(0.0, not_own)  # would last for ever
        assert relay.trouble is None
        relay.send(b"a")
        assert relay.dropped == {"no_receiver": 1}
        relay.connect(SLOW_S, not_own)
        assert relay.trouble is not None
        assert "look-up of telegraf" in relay.trouble
        lookup.may_answer.set()
        connect_until(relay, 10.0, lambda: relay.trouble is None)
        relay.send(b"b")
        assert server.recv(100) == b"b"
        relay.close()


def test_an_upstream_that_moves_is_followed() -> None:
    """After a minute, or sooner after errors; until then, and while the look-up lasts, it is the old one."""
    with upstream_udp() as (old, _), upstream_udp() as (new, _):
        lookup = SlowResolver()
        lookup.answer = [address_of(old)]
        lookup.may_answer.set()
        relay = Relay("udp://telegraf:8125", lookup)
        connect_until(relay, 0.0, lambda: delivers(relay, old))
        lookup.answer = [address_of(new)]
        relay.connect(REFRESH_S - 1, not_own)
        assert lookup.asked == 1
        assert delivers(relay, old)
        connect_until(relay, REFRESH_S, lambda: delivers(relay, new))
        assert lookup.asked == 2
        lookup.answer = OSError("no resolver today")
        connect_until(relay, 2 * REFRESH_S, lambda: lookup.asked == 3)
        relay.connect(2 * REFRESH_S + 1, not_own)
        assert relay.trouble is None  # the address that is known still serves
        assert delivers(relay, new)
        relay.close()


def test_an_upstream_that_refuses_is_looked_up_again_soon() -> None:
    with upstream_udp() as (other, _):
        with upstream_udp() as (server, _):
            gone = address_of(server)
        lookup = SlowResolver()
        lookup.answer = [gone]
        lookup.may_answer.set()
        relay = Relay("udp://telegraf:8125", lookup)
        connect_until(relay, 0.0, lambda: delivers(relay, other) or relay.packets > 0)
        lookup.answer = [address_of(other)]
        end = time.monotonic() + 60
        while not relay.dropped["no_receiver"]:
            assert time.monotonic() < end
            relay.send(b"x")
        connect_until(relay, RETRY_S, lambda: delivers(relay, other))
        relay.close()


def test_a_name_that_is_none_is_a_reason_and_is_asked_for_again() -> None:
    lookup = SlowResolver()
    lookup.answer = OSError(-2, "Name or service not known")
    lookup.may_answer.set()
    relay = Relay("udp://nowhere:8125", lookup)
    connect_until(relay, 0.0, lambda: relay.trouble is not None)
    assert relay.trouble == "relay to udp://nowhere:8125: nowhere was not found: Name or service not known"
    relay.connect(RETRY_S - 1, not_own)
    assert lookup.asked == 1
    connect_until(relay, RETRY_S, lambda: lookup.asked == 2)
    relay.close()


def delivers(relay: Relay, server: socket.socket) -> bool:
    """Whether a packet comes through to this server now; over loopback that is decided when `send` returns."""
    before = relay.packets
    relay.send(b"probe")
    if relay.packets == before:
        return False
    return bool(select.select([server], [], [], 0)[0]) and server.recv(100) == b"probe"


@pytest.mark.parametrize("upstream", ["tcp://h:1", "udp://h", "udp://", "unix://h/p", "unix:///", "h:1", "udp://h:99999", ""])
def test_other_upstreams_are_a_value_error(upstream: str) -> None:
    with pytest.raises(ValueError, match=r"expected|range"):
        Relay(upstream)


async def test_the_source_passes_on_what_came_whole(tmp_path: Path) -> None:
    with upstream_udp() as (server, address):
        source = StatsdSource(tmp_path / "aie" / "s.sock", None, relay=Relay(address))
        await source.collect(0.0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(tmp_path / "aie" / "s.sock"))
            for packet in PACKETS:
                sender.send(packet)
                assert await asyncio.to_thread(server.recv, 65536) == packet
            sender.send(b"a:1|c\n" * 20_000)  # cut at 64 KiB: not passed on
            sender.send(b"last:1|c")
            assert await asyncio.to_thread(server.recv, 65536) == b"last:1|c"
        await source.collect(1.0)
        counters = source.counters()
        assert counters.relayed == len(PACKETS) + 1
        assert counters.relay_dropped == {"truncated": 1}
        counts = {name for name, _, _ in source.counts()}
        assert "aie_agent_relay_packets_total" in counts
        await source.close()


async def collected(source: StatsdSource) -> Batch | None:
    """The batch of the collection with which a packet was counted, of a source that is down."""
    end = time.monotonic() + 60
    batch = None
    while not source.counters().packets:
        assert time.monotonic() < end
        with pytest.raises(SourceError) as caught:
            await source.collect(0.1)
        batch = caught.value.batch
    return batch


async def test_a_collection_does_not_wait_for_a_look_up(tmp_path: Path) -> None:
    lookup = SlowResolver()
    path = tmp_path / "aie" / "s.sock"
    source = StatsdSource(path, None, relay=Relay("udp://telegraf:8125", lookup))
    await source.collect(0.0)  # would last for ever
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"a:1|c", str(path))
    with pytest.raises(SourceError, match="look-up of telegraf"):
        await source.collect(SLOW_S)
    await source.close()
    lookup.may_answer.set()


async def test_an_upstream_that_is_away_is_a_reason_and_the_sums_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "aie" / "s.sock"
    source = StatsdSource(path, None, relay=Relay(f"unix://{tmp_path}/nobody.sock"))
    with pytest.raises(SourceError, match=r"nobody\.sock"):
        await source.collect(0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"a:1|c", str(path))
    batch = await collected(source)
    assert batch is not None
    assert [point.name for point in batch.points] == ["a"]
    assert source.counters().relay_dropped == {"no_receiver": 1}
    await source.close()


@pytest.mark.parametrize("own", ["unix", "udp"])
async def test_a_relay_to_the_agent_itself_is_given_up(tmp_path: Path, own: str) -> None:
    path = tmp_path / "aie" / "s.sock"
    with upstream_udp() as (server, address):
        port = server.getsockname()[1]
    upstream = f"unix://{path}" if own == "unix" else address
    source = StatsdSource(path, ("127.0.0.1", port), relay=Relay(upstream))
    with pytest.raises(SourceError, match="own socket"):
        await source.collect(0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"a:1|c", str(path))
    await collected(source)
    assert source.counters().packets == {"unix": 1}
    assert source.counters().relayed == 0
    await source.close()
