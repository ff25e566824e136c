"""Clients of the engine, on a thread of their own: a steady load, and what a fault adds to it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp

from demo.workload import CLASSES, QUESTIONS, make_request, random_request

SHARE: Final = 0.4
"""Of what the engine takes on this machine: the load of the lab is one that nothing is wrong with."""

CLIENTS: Final = 8
MOST_OPEN: Final = 32
BRIEF_TOKENS: Final = 3
_MEASURED: Final = 32

Body = Callable[[random.Random], dict[str, Any]]
"""Makes the body of a request."""


def short_chat(rng: random.Random) -> dict[str, Any]:
    """Short questions, one in twenty with notes, and short answers: several requests a second also where the host is slow."""
    kind = rng.choices(CLASSES[:2], (0.95, 0.05))[0]
    return _chat(make_request(kind, rng).prompt, rng.randint(4, 16), rng)


def demo_chat(rng: random.Random) -> dict[str, Any]:
    """A request of the demo's mix, from whose traffic the reference that ships was recorded."""
    request = random_request(rng)
    return _chat(request.prompt, request.max_tokens, rng)


def brief_chat(rng: random.Random) -> dict[str, Any]:
    """A question of the demo's with one of many limits, and three tokens of an answer: hundreds of them take minutes anywhere."""
    return _chat(f"{rng.choice(QUESTIONS)} Use at most {rng.randint(2, 60)} words.", BRIEF_TOKENS, rng)


def repeated_chat(rng: random.Random) -> dict[str, Any]:
    """One of a dozen requests that have only one answer: what a response cache is for."""
    number = rng.randrange(12)
    return _chat(f"Name {number + 2} colours.", 24, rng) | {"temperature": 0.0, "seed": 1}


def foreign_chat(rng: random.Random) -> dict[str, Any]:
    """Other languages, emoji and code, where the demo's questions are English."""
    text = " ".join(rng.choice(_FOREIGN) for _ in range(rng.randint(1, 3)))
    return _chat(text, rng.randint(16, 48), rng)


def brief_foreign_chat(rng: random.Random) -> dict[str, Any]:
    """Questions in other languages and scripts, and code, as briefly."""
    return _chat(f"{rng.choice(_FOREIGN)} {rng.randint(2, 60)}", BRIEF_TOKENS, rng)


_FOREIGN: Final = (
    "Hvad er hovedstaden i Frankrig, og hvorfor?",
    "Пожалуйста, объясни, почему небо голубое.",
    "鯨はどこに住んでいますか。",
    "def f(x):\n    return {k: v for k, v in x.items() if v is not None}",
    "🎉🎉🐳🔥 ok?? 🙃🙃",
    "SELECT a.id, COUNT(*) FROM a JOIN b ON a.id = b.a_id GROUP BY 1 HAVING COUNT(*) > 3;",
    "Ποια είναι η διαφορά ανάμεσα σε διεργασία και νήμα;",
    "0x7f 0x45 0x4c 0x46 0x02 0x01 0x01 0x00",
)


def _chat(prompt: str, max_tokens: int, rng: random.Random) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "seed": rng.randrange(2**31),
        "stream": True,
    }


class Clients:
    """Sends requests to one URL until it is closed. `outcomes` counts answers by HTTP status, or by the kind of failure."""

    def __init__(self, url: str, body: Body = short_chat, seed: int = 0) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._rng = random.Random(seed)
        self._body = body
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients")
        self._session: aiohttp.ClientSession | None = None
        self._steady: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._held = False
        self.outcomes: Counter[str] = Counter()

    def __enter__(self) -> Clients:
        self._thread.start()
        self._do(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def capacity(self) -> float:
        """Requests a second that the engine takes with all clients busy."""
        return float(self._do(self._measure()))

    def send(self, requests_per_second: float) -> None:
        """Sends so many from now on, at random moments."""
        self._do(self._send(requests_per_second))

    @contextlib.contextmanager
    def instead(self, body: Body) -> Iterator[None]:
        """Sends other requests meanwhile."""
        before, self._body = self._body, body
        try:
            yield
        finally:
            self._body = before

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Sends nothing meanwhile, as a proxy does that knows that the engine is not ready."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @contextlib.contextmanager
    def flood(self, clients: int) -> Iterator[None]:
        """So many clients more, each of which asks again as soon as it is answered."""
        tasks = self._do(self._add(clients))
        try:
            yield
        finally:
            self._do(self._drop(tasks))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def _end(self) -> None:
        tasks = [*self._open, *([self._steady] if self._steady is not None else [])]
        await self._drop(tasks)
        if self._session is not None:
            await self._session.close()

    async def _drop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _measure(self) -> float:
        left = [self._body(self._rng) for _ in range(_MEASURED)]
        count, began = len(left), time.perf_counter()

        async def client() -> None:
            while left:
                await self._ask(left.pop())

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return count / (time.perf_counter() - began)

    async def _send(self, requests_per_second: float) -> None:
        if self._steady is not None:
            await self._drop([self._steady])
        self._steady = asyncio.create_task(self._run(requests_per_second))

    async def _run(self, requests_per_second: float) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(requests_per_second))
            if len(self._open) < MOST_OPEN and not self._held:
                task = asyncio.create_task(self._ask(self._body(self._rng)))
                self._open.add(task)
                task.add_done_callback(self._open.discard)

    async def _add(self, clients: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._insist()) for _ in range(clients)]

    async def _insist(self) -> None:
        while True:
            if not self._held:
                await self._ask(self._body(self._rng))
            await asyncio.sleep(0.1)

    async def _ask(self, body: dict[str, Any]) -> None:
        assert self._session is not None, "enter the context first"
        try:
            async with self._session.post(self._url, json=body) as answer:
                async for _ in answer.content:
                    pass
                self.outcomes[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
