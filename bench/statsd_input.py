"""How many StatsD lines the agent takes per second of CPU: sockets, parser, aggregation and hand-over together.

    python bench/statsd_input.py [SECONDS]

A child process sends as fast as it can; this process is the agent's StatsD source and nothing else, so that its CPU time is the
price. Each is kept on a CPU of its own where there are two: on one, the scheduler switches between them at every packet. Prints
one line a case: lines per CPU-second, and what became of the packets.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aie_agent.sources.statsd import StatsdCounters, StatsdSource

SENDER = """
import os, socket, sys, time
family, address, per_packet, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
os.sched_setaffinity(0, {int(sys.argv[5])})
lines = [
    b"aie_engine_inter_token_seconds,engine=bench,model=m%d:0.0%d|h|@0.1" % (number % 4, number + 10) for number in range(990)
]
packets = [b"\\n".join(lines[start : start + per_packet]) for start in range(0, len(lines), per_packet)]
sender = socket.socket(getattr(socket, family), socket.SOCK_DGRAM)
host, _, port = address.rpartition(":")
sender.connect((host, int(port)) if family == "AF_INET" else address)
sent = 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    for packet in packets:
        sender.send(packet)
    sent += len(packets)
print(sent)
"""


CPUS = os.sched_getaffinity(0)


async def settled(source: StatsdSource) -> StatsdCounters:
    """The counters once everything that waits in the sockets has been read."""
    before = source.counters()
    while True:
        await asyncio.sleep(0.1)
        await source.collect(time.time())
        after = source.counters()
        if after.samples == before.samples:
            return after
        before = after


async def measure(label: str, per_packet: int, seconds: float) -> None:
    """One case: one socket, so many lines a packet."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "statsd.sock"
        source = StatsdSource(path, ("127.0.0.1", 0))
        await source.collect(time.time())
        family, address = ("AF_UNIX", str(path)) if label == "unix" else ("AF_INET", source.addresses["udp"].removeprefix("udp://"))
        sender = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDER, family, address, str(per_packet), str(seconds), str(max(CPUS)), stdout=subprocess.PIPE
        )
        start_cpu, start = time.process_time(), time.monotonic()
        output = asyncio.ensure_future(sender.communicate())
        while not output.done():
            await asyncio.wait([output], timeout=1.0)
            await source.collect(time.time())
        wall = time.monotonic() - start
        counters = await settled(source)
        cpu = time.process_time() - start_cpu
        sent = int(output.result()[0])
        received = counters.packets.get(label, 0)
        print(
            f"{label:4}  {per_packet:2} lines a packet: {counters.samples / cpu:9,.0f} lines per CPU-second"
            f"  ({counters.samples / wall:9,.0f} lines/s, {cpu / wall:.0%} of a core; packets: {sent:,} sent,"
            f" {received:,} received, {counters.kernel_drops.get(label, 0):,} dropped by the kernel)"
        )
        await source.close()


async def main() -> None:
    """All cases."""
    os.sched_setaffinity(0, {min(CPUS)})
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    for label in ("unix", "udp"):
        for per_packet in (1, 10):
            await measure(label, per_packet, seconds)


if __name__ == "__main__":
    asyncio.run(main())
