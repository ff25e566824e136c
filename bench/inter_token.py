"""How steady tokens come from the server under a mixed load: the 99th percentile of the time between tokens against its median.

    python bench/inter_token.py [--seconds N] [--runs N]

Starts `aie-engine serve`, measures how many requests a second it takes, then sends `LOAD` of that at random moments, as streams,
and notes on the client's side when each piece arrives. Long prompts are among them: those are what holds up the others' tokens.
Exits with 1 when the median of the runs is above `TARGET`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import aiohttp

TARGET: Final = 2.0
LOAD: Final = 0.6
CLIENTS: Final = 8
WORDS: Final = ("memory", "host", "grown", "three", "days", "without", "pause", "nobody", "knew", "why")
#: (words of the prompt, tokens of the answer, how often)
MIX: Final = ((12, 32, 70), (12, 96, 15), (60, 48, 10), (400, 32, 5))


class Client:
    """Sends streams to one engine and notes the gaps between their pieces, in seconds."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int) -> None:
        self._session = session
        self._url = url
        self._rng = random.Random(seed)
        self.gaps_s: list[float] = []

    async def ask(self) -> None:
        """One request of the mix. Raises RuntimeError for an answer that is not 200."""
        words, tokens, _ = self._rng.choices(MIX, weights=[share for _, _, share in MIX])[0]
        prompt = " ".join(self._rng.choices(WORDS, k=words))
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0.8}
        async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {await answer.text()}")
            times = [time.perf_counter() async for line in answer.content if line.startswith(b"data: {")]
        # The last chunk says only why the answer ended, and comes with the last token.
        self.gaps_s += [after - before for before, after in pairwise(times[:-1])]

    async def capacity(self, requests: int = 48) -> float:
        """Requests a second with all clients busy."""
        left = iter(range(requests))
        began = time.perf_counter()

        async def client() -> None:
            for _ in left:
                await self.ask()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        self.gaps_s.clear()
        return requests / (time.perf_counter() - began)

    async def load(self, per_second: float, seconds: float) -> None:
        """Requests at random moments (Poisson) for so long, and until all are answered."""
        end = time.perf_counter() + seconds
        async with asyncio.TaskGroup() as group:
            while time.perf_counter() < end:
                await asyncio.sleep(self._rng.expovariate(per_second))
                group.create_task(self.ask())


@contextmanager
def _engine() -> Iterator[str]:
    command = [sys.executable, "-m", "aie_engine.cli", "serve", "--model", "smollm2", "--port", "0", "--name", "bench"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if ready := re.search(r"ready on (\S+),", line):
                    yield ready[1]
                    return
            raise RuntimeError("the engine did not start")
        finally:
            process.terminate()


async def _run(url: str, seconds: float, runs: int) -> list[float]:
    ratios = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        per_second = LOAD * await Client(session, url, 0).capacity()
        print(f"load: {per_second:.2f} requests/s, {LOAD:.0%} of what the engine takes; {seconds:g} s a run\n")
        for run in range(runs):
            client = Client(session, url, run + 1)
            await client.load(per_second, seconds)
            cuts = statistics.quantiles(client.gaps_s, n=100)
            ratios.append(cuts[98] / cuts[49])
            print(
                f"run {run + 1}: {len(client.gaps_s)} gaps, median {cuts[49] * 1e3:.1f} ms, P90 {cuts[89] * 1e3:.1f}, "
                f"P99 {cuts[98] * 1e3:.1f}, largest {max(client.gaps_s) * 1e3:.0f}: P99 / median {ratios[-1]:.2f}"
            )
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with _engine() as url:
        ratios = asyncio.run(_run(url, options.seconds, options.runs))
    ratio = statistics.median(ratios)
    missed = ratio > TARGET
    print(f"\nP99 / median, median of the runs: {ratio:.2f}, target at most {TARGET}{'  MISSED' if missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
