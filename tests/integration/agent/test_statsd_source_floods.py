"""StatsD: what is lost and where it is counted, and what hostile senders can do."""

# ruff: noqa: ASYNC220, ASYNC230 - nothing else runs on a test's event loop

from __future__ import annotations

import array
import asyncio
import os
import random
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from statsd_running import LINE, running, sender

from aie_agent.samples import Hello
from aie_agent.sources.statsd_listeners import MAX_PACKET_BYTES, UdpListener, UnixListener


class TestLosses:
    def test_udp_losses_are_counted_to_the_packet(self) -> None:
        listener = UdpListener("127.0.0.1", 0)
        sent = 0
        with sender(listener.address) as udp:
            while listener.kernel_drops() == 0 or sent % 100:
                udp.send(b"x" * 4000)
                sent += 1
        drops = listener.kernel_drops()
        received = 0
        while listener.receive() is not None:
            received += 1
        listener.close()
        assert drops is not None
        assert drops > 0
        assert received + drops == sent

    def test_a_full_unix_socket_is_seen_by_the_sender(self, path: Path) -> None:
        listener = UnixListener(path)
        sent = 0
        with sender(path) as unix:
            unix.setblocking(False)
            with pytest.raises(BlockingIOError):  # noqa: PT012 - it is the last of many
                while True:
                    unix.send(LINE)
                    sent += 1
        received = 0
        while listener.receive() is not None:
            received += 1
        assert listener.kernel_drops() is None
        listener.close()
        assert received == sent > 0

    @pytest.mark.parametrize("socket_name", ["unix", "udp"])
    async def test_a_flood_is_accounted_for_and_stays_bounded(self, path: Path, socket_name: str) -> None:
        """Ever new series, far more than are taken; the event loop goes on meanwhile, and every packet is somewhere."""
        max_series = 200
        async with running(path, ("127.0.0.1", 0), max_series=max_series) as it:
            address = path if socket_name == "unix" else it.source.addresses["udp"]
            with sender(address) as flood:
                before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                lines_each, packets = 20, 20 * max_series

                def send_all() -> None:
                    for number in range(packets):
                        flood.send(b"\n".join(b"flood,n=%d.%d:1|h" % (number, line) for line in range(lines_each)))

                sending = asyncio.create_task(asyncio.to_thread(send_all))
                turns = 0
                while not sending.done():
                    await it.collect()
                    turns += 1
                await sending

            def accounted() -> bool:
                counters = it.source.counters()
                return counters.packets.get(socket_name, 0) + counters.kernel_drops.get(socket_name, 0) == packets

            await it.until(accounted)
            await it.collect()
            counters = it.source.counters()
            assert turns > 0
            assert counters.samples == lines_each * counters.packets[socket_name]
            assert max(len(batch.histograms) for batch in it.batches) <= max_series / 2  # it all comes from one sender
            taken = sum(sum(histogram.counts) for batch in it.batches for histogram in batch.histograms)
            assert taken + counters.dropped["series_share"] == counters.samples
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
            assert grown_kib < 64 << 10

    async def test_a_flood_does_not_hold_up_the_event_loop(self, path: Path) -> None:
        code = f"""
import socket
flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
flood.connect({str(path)!r})
packet = b"\\n".join(b"flood,n=%d:1|c" % number for number in range(80))
while True:
    flood.send(packet)
"""
        async with running(path) as it:
            child = subprocess.Popen([sys.executable, "-c", code])
            try:
                await it.packets(500)
                before = it.source.counters().packets["unix"]
                turns = collections = 0
                while it.source.counters().packets["unix"] < before + 2000:
                    collections += 1
                    collecting = asyncio.create_task(it.collect())
                    while not collecting.done():
                        list(it.source.counts())
                        await asyncio.sleep(0)
                        turns += 1
                # The flood has no end: a loop that waited for it would never come here.
                assert turns >= collections >= 1
            finally:
                child.kill()
                child.wait()

    async def test_the_counts_wait_for_no_batch(self, path: Path) -> None:
        """They are asked for on the event loop."""
        async with running(path) as it:
            with it.source._receiver._lock:  # as while a batch is read
                asked = asyncio.create_task(asyncio.to_thread(lambda: list(it.source.counts())))
                done, _ = await asyncio.wait([asked], timeout=60)
            assert done

    async def test_endless_series_over_udp_leave_room_for_others(self, path: Path) -> None:
        async with running(path, ("127.0.0.1", 0), max_series=100) as it:
            for first in (0, 60):  # two sockets, but nobody can tell that they are two senders
                with sender(it.source.addresses["udp"]) as udp:
                    udp.send(b"\n".join(b"flood,n=%d:1|c" % number for number in range(first, first + 60)))
            await it.packets(2)
            with sender(path) as unix:
                unix.send(LINE)
            await it.packets(3)
            assert it.total("aie_engine_requests_received_total") == 1
            assert it.total("flood") == 50
            assert it.source.counters().dropped == {"series_share": 70}


class TestHostileInput:
    async def test_any_bytes(self, path: Path) -> None:
        rng = random.Random(4711)
        pieces = [LINE, b"|", b":", b"@", b"#", b"\n", b",", b"=", b"\xff\xfe", b"\0", b"c", b"g|", b"1e999", b"_e{1,1}", b"  "]
        packets = [b"".join(rng.choices(pieces, k=rng.randint(0, 40))) for _ in range(500)]
        packets += [rng.randbytes(rng.randint(0, 2000)) for _ in range(500)]
        async with running(path) as it:
            with sender(path) as unix:
                await asyncio.to_thread(lambda: [unix.send(packet) for packet in packets])
                await it.packets(len(packets))
                unix.send(b"still.alive:1|c")
            await it.packets(len(packets) + 1)
            assert it.total("still_alive") == 1
            assert it.problem is None
            assert sum(it.source.counters().dropped.values()) > 0

    async def test_an_oversized_packet_counts_with_its_whole_lines(self, path: Path) -> None:
        lines = MAX_PACKET_BYTES // len(b"a:1|c\n")
        async with running(path) as it:
            with sender(path) as unix:
                unix.send(b"a:1|c\n" * lines + b"b:123456|c")
            await it.packets(1)
            assert it.total("a") == lines
            assert it.total("b") == 0
            assert it.source.counters().dropped == {"packet_truncated": 1}

    async def test_an_empty_packet(self, path: Path) -> None:
        async with running(path) as it:
            with sender(path) as unix:
                unix.send(b"")
                unix.send(LINE)
            await it.packets(2)
            assert it.total("aie_engine_requests_received_total") == 1

    async def test_descriptors_that_are_sent_along_are_not_kept(self, path: Path) -> None:
        async with running(path) as it:
            before = len(os.listdir("/proc/self/fd"))
            with sender(path) as unix, Path("/dev/null").open() as null:
                rights = array.array("i", [null.fileno()] * 20)
                for _ in range(50):
                    unix.sendmsg([LINE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            await it.packets(50)
            assert len(os.listdir("/proc/self/fd")) <= before + 2  # the thread of a collection may hold one for a moment
            assert it.hellos == [Hello("e", os.getpid())]
