"""A StatsD source that runs on real sockets, and those who send to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from aie_agent.samples import Batch, Hello
from aie_agent.sources.base import SourceError
from aie_agent.sources.statsd import StatsdSource

LINE = b"aie_engine_requests_received_total,engine=e,model=m:1|c"
DEADLINE_S = 60.0

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Running:
    """A source and all that it has delivered."""

    def __init__(self, source: StatsdSource) -> None:
        self.source = source
        self.batches: list[Batch] = []
        self.problem: str | None = None
        self.clock: Callable[[], float] = time.time

    async def collect(self) -> None:
        self.problem = None
        try:
            self.batches.append(await self.source.collect(self.clock()))
        except SourceError as error:
            self.problem = str(error)
            if error.batch is not None:
                self.batches.append(error.batch)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Collects until something has come true; the deadline only ends a test that fails."""
        end = time.monotonic() + DEADLINE_S
        await self.collect()
        while not condition():
            assert time.monotonic() < end, self.source.counters()
            await asyncio.sleep(0.005)
            await self.collect()
        await self.collect()  # the condition may have come true behind the last sums

    async def packets(self, number: int) -> None:
        """Waits until so many packets have come, by both sockets."""
        await self.until(lambda: sum(self.source.counters().packets.values()) >= number)

    @property
    def hellos(self) -> list[Hello]:
        return [hello for batch in self.batches for hello in batch.hellos]

    def total(self, name: str) -> float:
        return sum(point.value for batch in self.batches for point in batch.points if point.name == name)


@contextlib.asynccontextmanager
async def running(path: Path | None, udp: tuple[str, int] | None = None, **options: int) -> AsyncIterator[Running]:
    source = StatsdSource(path, udp, **options)
    try:
        it = Running(source)
        await it.collect()
        yield it
    finally:
        await source.close()


@contextlib.contextmanager
def sender(address: Path | str) -> Iterator[socket.socket]:
    """A socket connected to a path, or to a source's "udp://HOST:PORT"."""
    if isinstance(address, Path):
        family, where = socket.AF_UNIX, str(address)
        with socket.socket(family, socket.SOCK_DGRAM) as unix:
            unix.connect(where)
            yield unix
        return
    host, _, port = address.removeprefix("udp://").rpartition(":")
    with socket.socket(socket.AF_INET6 if "[" in host else socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((host.strip("[]"), int(port)))
        yield udp


def send_from_child(address: Path | str, *lines: bytes, prefix: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """A process that sends lines, each in a packet with %d as its own pid, says so, and lives on until its input ends."""
    code = f"""
import os, socket, sys
address = {str(address)!r}
if address.startswith("udp://"):
    host, _, port = address.removeprefix("udp://").rpartition(":")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect((host, int(port)))
else:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect(address)
for line in {list(lines)!r}:
    sender.send(line.replace(b"%d", str(os.getpid()).encode()))
print(os.getpid(), flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([*prefix, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    child.communicate(b"")
    assert child.returncode == 0
