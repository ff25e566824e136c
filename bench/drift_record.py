"""Records what the hooks tell of the demo's traffic, one row a request, for the drift reference that ships.

    python -m bench.drift_record demo.csv --requests 3000
    aie-agent baseline build demo.csv --output demo.aieref --model smollm2 --traffic-class demo --quantisation q4_1

The engine looks at every request here (its hooks look at a tenth by default), and is kept busy by the demo's clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from aie_telemetry.statsd import Parser
from demo.traffic import CLIENTS, Traffic
from demo.workload import random_request

METRICS: Final = {
    "entropy": "aie_engine_output_entropy_nats",
    "surprisal": "aie_engine_output_surprisal_nats",
    "first_token_logsumexp": "aie_engine_first_token_logsumexp_nats",
    "log_length": "aie_engine_output_log_length",
}
# The engine as it is, but for the share of requests that its hooks look at.
_SERVE: Final = (
    "import sys\n"
    "from aie_hooks.logits import LogitsHooks\n"
    "LogitsHooks.__init__.__kwdefaults__['rate'] = 1.0\n"
    "from aie_engine.cli import main\n"
    "sys.exit(main(sys.argv[1:]))\n"
)


@contextlib.asynccontextmanager
async def engine(statsd: Path) -> AsyncIterator[str]:
    """An engine that serves SmolLM2 and sends to a socket; its URL."""
    command = [sys.executable, "-c", _SERVE, "serve", "--model", "smollm2", "--port", "0", "--statsd", f"unix://{statsd}"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        ready = re.search(rb"http://[^\s,]+:\d+", await process.stdout.readline())
        if ready is None:
            raise SystemExit("the engine did not start")
        yield ready[0].decode()
    finally:
        process.terminate()
        await process.wait()


def values_in(packet: bytes) -> Iterator[tuple[str, float]]:
    """The statistics in a packet of hooks, in order."""
    names = {metric: name for name, metric in METRICS.items()}
    for line in Parser(datadog=True).packet(packet):
        for sample in line.samples:
            if sample.name in names and isinstance(sample.value, float):
                yield names[sample.name], sample.value


async def record(path: Path, requests: int) -> None:
    """Writes the rows, and rewrites the file every hundred of them."""
    columns: dict[str, list[float]] = {name: [] for name in METRICS}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"{folder}/s")
        receiver.setblocking(False)

        def take() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    for name, value in values_in(receiver.recv(65536)):
                        columns[name].append(value)

        asyncio.get_running_loop().add_reader(receiver, take)
        async with engine(Path(folder, "s")) as url, Traffic(url, "smollm2") as traffic:
            rng = random.Random(6)

            async def client() -> None:
                while rows(columns) < requests:
                    await traffic._ask(random_request(rng))

            clients = asyncio.gather(*(client() for _ in range(CLIENTS)))
            while not clients.done():
                await asyncio.wait([clients], timeout=30)
                write(path, columns)
                print(f"{rows(columns)} requests, {dict(traffic.outcomes)}", flush=True)
            await clients


def rows(columns: dict[str, list[float]]) -> int:
    """Requests of which every number has come."""
    return min(map(len, columns.values()))


def write(path: Path, columns: dict[str, list[float]]) -> None:
    """All whole rows so far, in place of what was there."""
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column[: rows(columns)] for column in columns.values()), strict=True))
    os.replace(new, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=3000)
    arguments = parser.parse_args()
    asyncio.run(record(arguments.file, arguments.requests))
