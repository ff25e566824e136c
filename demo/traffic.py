"""Sends a workload to an OpenAI-compatible engine: as fast as it goes, to measure it, then at a share of that."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import aiohttp

from demo.workload import ChatRequest, random_request, representative_set

CLIENTS = 8
MAX_IN_FLIGHT = 32
SHARE_OF_CAPACITY = 0.5
"""Of what the engine can take; the promise is at most 0.6, and the capacity is known to about 10 %."""


class Traffic:
    """The clients of one engine. `outcomes` counts answers by HTTP status, or by the kind of failure."""

    def __init__(self, base_url: str, model: str, seed: int = 0) -> None:
        self._url = f"{base_url}/v1/chat/completions"
        self._model = model
        self._rng = random.Random(seed)
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcomes: Counter[str] = Counter()
        self.held_back = 0

    async def __aenter__(self) -> Traffic:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120), connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def measure_capacity(self) -> float:
        """Requests per second that the engine takes with all clients busy."""
        requests = representative_set(self._rng)
        count = len(requests)
        start = time.perf_counter()

        async def client() -> None:
            while requests:
                await self._ask(requests.pop())

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return count / (time.perf_counter() - start)

    async def run(self, requests_per_second: float) -> None:
        """Sends requests, the first at once, at random moments until cancelled. When too many are open, one is held back rather
        than piled up."""
        while True:
            if len(self._tasks) >= MAX_IN_FLIGHT:
                self.held_back += 1
            else:
                task = asyncio.create_task(self._ask(random_request(self._rng)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(self._rng.expovariate(requests_per_second))

    async def _ask(self, request: ChatRequest) -> None:
        assert self._session is not None, "enter the context first"
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": request.prompt}],
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stream": True,
        }
        try:
            async with self._session.post(self._url, json=body) as answer:
                async for _ in answer.content:
                    pass
                self.outcomes[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
