"""`aie_hooks` beside the StatsD clients that people use: the PyPI packages `statsd` and `datadog`, in one run and to one receiver.

    python bench/hooks_peers.py [--seconds 3]

The cost of a call, sampled out and sent, in microseconds: median of 9 runs with the lowest and the highest, and as a ratio to the
first line. How many datagrams a metric takes. Of 100k metrics offered in each second to a receiver that is a process of its own:
the share that never came, the share that the client says it dropped, and the share of the time that the sender was busy with it.
Clients send as their documentation has it; `buffered` is what each offers for many metrics at once, flushed every 10 ms, as a step
of an engine would.

`default budget` is `aie_hooks` with its 200 packets a second, which is a protection and meant to lose here: what it loses it
counts, but for what still waits at the end. An engine sends a sample of its times, not 100k a second.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import statsd
from datadog.dogstatsd.base import DogStatsd

from aie_hooks import Emitter

RUNS = 9
CALLS = 10_000
PER_FLUSH = 100
NAME = "aie_engine_inter_token_seconds"
NEVER = 1e-6
OFFERED_PER_S = 100_000
STEP_S = 0.01
RECEIVE_BUFFER_BYTES = 8 << 20


class Client(NamedTuple):
    """One way to send: `observe` always and `rarely` a value, `flush` at the end of a step; `dropped` by its own account, None
    where it has none."""

    name: str
    observe: Callable[[float], object]
    rarely: Callable[[float], object]
    flush: Callable[[], object]
    dropped: Callable[[], int | None]


class Received(NamedTuple):
    """What came, since the last question."""

    datagrams: int
    metrics: int


class Receiver:
    """This script as a process of its own, which counts what comes by UDP and by a Unix socket."""

    def __init__(self, unix_path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--receive", str(unix_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self) -> Received:
        """Waits until nothing has come for a while."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        datagrams, metrics = self._line().split()
        return Received(int(datagrams), int(metrics))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def receive(unix_path: str) -> None:
    """The receiver's side: prints its UDP port, and its counts whenever a line comes on standard input."""
    selector = selectors.DefaultSelector()
    for family, address in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_UNIX, unix_path)):
        listening = socket.socket(family, socket.SOCK_DGRAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        listening.bind(address)
        selector.register(listening, selectors.EVENT_READ, listening)
        if family == socket.AF_INET:
            print(listening.getsockname()[1], flush=True)
    selector.register(sys.stdin, selectors.EVENT_READ)
    datagrams, metrics, asked = 0, 0, False
    prefix = NAME.encode()
    while True:
        ready = selector.select(0.3 if asked else None)
        if asked and not ready:
            print(datagrams, metrics, flush=True)
            datagrams, metrics, asked = 0, 0, False
        for key, _ in ready:
            if key.data is None:
                if not sys.stdin.readline():
                    return
                asked = True
                continue
            packet: bytes = key.data.recv(65536)
            values = sum(line.count(b"|h") + line.count(b"|ms") for line in packet.split(b"\n") if line.startswith(prefix))
            datagrams += values > 0
            metrics += values


def ours(endpoint: str, label: str, packets_per_second: float) -> Client:
    """`aie_hooks`, with explicit flushes only."""
    emitter = Emitter("bench", endpoint, flush_interval_s=float("inf"), packets_per_second=packets_per_second)
    every, rare = emitter.histogram(NAME, model="m"), emitter.histogram(NAME, NEVER, model="m")
    return Client(label, every.observe, rare.observe, emitter.flush, lambda: sum(emitter.stats().dropped.values()))


def clients(port: int, unix_path: Path) -> Iterator[Client]:
    """Every client, one at a time."""
    yield ours(f"unix://{unix_path}", "aie_hooks, unix", float("inf"))
    yield ours(f"udp://127.0.0.1:{port}", "aie_hooks, udp", float("inf"))
    yield ours(f"unix://{unix_path}", "aie_hooks, unix, default budget", 200.0)
    plain = statsd.StatsClient("127.0.0.1", port)
    yield Client(
        "statsd, a datagram a call",
        lambda value: plain.timing(NAME, value * 1e3),
        lambda value: plain.timing(NAME, value * 1e3, rate=NEVER),
        lambda: None,
        lambda: None,
    )
    pipeline = plain.pipeline()
    yield Client(
        "statsd, buffered (pipeline)",
        lambda value: pipeline.timing(NAME, value * 1e3),
        lambda value: pipeline.timing(NAME, value * 1e3, rate=NEVER),
        pipeline.send,
        lambda: None,
    )
    yield datadogs("datadog, a datagram a call", port, buffered=False)
    yield datadogs("datadog, buffered", port, buffered=True)


def datadogs(label: str, port: int, *, buffered: bool) -> Client:
    """The client of `datadog`. It counts datagrams dropped, and not metrics: nothing that compares."""
    dog = DogStatsd("127.0.0.1", port, disable_telemetry=True, disable_buffering=not buffered)
    tags = ["engine:bench", "model:m"]
    return Client(
        label,
        lambda value: dog.histogram(NAME, value, tags=tags),
        lambda value: dog.histogram(NAME, value, tags=tags, sample_rate=NEVER),
        dog.flush_buffered_metrics if buffered else lambda: None,
        lambda: None,
    )


def timed(call: Callable[[float], object], flush: Callable[[], object]) -> list[float]:
    """Microseconds a call with a flush every hundred calls; the receiver catches up between the runs."""
    runs = []
    for _ in range(RUNS):
        spent = 0.0
        for _ in range(CALLS // PER_FLUSH):
            began = time.perf_counter()
            for _ in range(PER_FLUSH):
                call(0.0123)
            flush()
            spent += time.perf_counter() - began
            time.sleep(0.0005)
        runs.append(spent / CALLS * 1e6)
    return runs


def offered(client: Client, seconds: float) -> tuple[int, float]:
    """Offers `OFFERED_PER_S` in steps. Returns how many, and what share of the time the sender needed for it."""
    per_step, count, busy_s = round(OFFERED_PER_S * STEP_S), 0, 0.0
    began = time.perf_counter()
    for step in range(round(seconds / STEP_S)):
        due = began + step * STEP_S
        time.sleep(max(0.0, due - time.perf_counter()))
        then = time.perf_counter()
        for _ in range(per_step):
            client.observe(0.0123)
        client.flush()
        busy_s += time.perf_counter() - then
        count += per_step
    return count, busy_s / (time.perf_counter() - began)


def _cell(runs: list[float], base_us: float) -> str:
    median = statistics.median(runs)
    return f"{median:7.3f} ({min(runs):.3f}-{max(runs):.3f}) {median / base_us:6.1f}x"


def table(receiver: Receiver, unix_path: Path, seconds: float) -> None:
    """Prints a line a client."""
    base: tuple[float, float] | None = None
    print(f"{'':32} {'sampled out, us':>32} {'sent, us':>32} {'datagrams/metric':>17} {'lost':>8} {'counted':>9} {'busy':>6}")
    for client in clients(receiver.port, unix_path):
        rare = timed(client.rarely, client.flush)
        receiver.ask()
        every = timed(client.observe, client.flush)
        base = base or (statistics.median(rare), statistics.median(every))
        receiver.ask()
        before = client.dropped()
        count, busy = offered(client, seconds)
        came = receiver.ask()
        after = client.dropped()
        counted = "-" if before is None or after is None else f"{(after - before) / count:8.1%}"
        each = f"{came.datagrams / came.metrics:.4f}" if came.metrics else "-"
        lost = (count - came.metrics) / count
        cells = f"{_cell(rare, base[0]):>32} {_cell(every, base[1]):>32}"
        print(f"{client.name:32} {cells} {each:>17} {lost:8.1%} {counted:>9} {busy:6.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long 100k metrics a second are offered")
    parser.add_argument("--receive", metavar="PATH", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        receive(arguments.receive)
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Receiver(Path(folder) / "statsd.sock")) as receiver:
        table(receiver, Path(folder) / "statsd.sock", arguments.seconds)


if __name__ == "__main__":
    main()
