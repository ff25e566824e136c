"""Reads the metrics page of one engine."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable

import aiohttp

from aie_agent.progress import PageWatch, Progress
from aie_agent.samples import Batch, Count
from aie_agent.sources.base import SourceError
from aie_agent.sources.pages.lint import RULES, LintFinding
from aie_agent.sources.pages.reader import OWN_KIND, PageReader, PageReading
from aie_agent.sources.scrape_page import MAX_SAMPLES
from aie_telemetry.exemplars import ACCEPT_OPENMETRICS
from aie_telemetry.exposition import MemoBudget

MAX_PAGE_BYTES = 8 << 20
_ACCEPT_CLASSIC = "text/plain; version=0.0.4"
_CHUNK_BYTES = 1 << 16
_MAX_REASON_CHARS = 200
_MAX_BUSY = 0.2
"""Most of the time that may go into reading pages: one that takes more of its period is collected less often."""
_SOON_S = 0.003
_SOON_BYTES = 1 << 18
_MORE = 1.1
"""A page grows by some digits and series."""


class ScrapeSource:
    """One engine's page, once a period. What it says, in its own names or in aie's, is taken under the engine's name here."""

    def __init__(
        self,
        engine: str,
        url: str,
        period_s: float = 1.0,
        timeout_s: float = 2.0,
        cpu_clock: Callable[[], float] = time.thread_time,
        budget: MemoBudget | None = None,
    ) -> None:
        """`timeout_s` is for a whole collection, from the connection to the last byte; `cpu_clock` says how much processor time the
        calling thread has had; `budget` bounds what the pages of all engines may be remembered in. Connects nothing yet."""
        self.name = f"scrape:{engine}"
        self.period_s = period_s
        self.refused: Counter[str] = Counter()
        """Series of the page that were not taken, by reason, summed over all collections."""
        self.kind: str | None = None
        """What kind of engine the last page was of; None before there was one, and for a page of no known engine."""
        self.lint: list[LintFinding] | None = None
        """What is wrong with the last page; None while there is none."""
        self.engine = engine
        """Its name here."""
        self.progress: Progress | None = None
        """What its pages say of its progress; None before there was one."""
        self._url = url
        self._timeout_s = timeout_s
        self._cpu_clock = cpu_clock
        self._reader = PageReader(engine, budget)
        self._watch = PageWatch()
        self._to_skip = 0
        self._page_bytes = 0
        self._cost_s = 0.0
        self._session: aiohttp.ClientSession | None = None

    async def collect(self, now_s: float) -> Batch:
        """Raises SourceError when the engine cannot be reached in time, what it serves is no metrics page, or it took too long to
        read (with what it says), or its last page did for the next one to be due already."""
        if self._to_skip > 0:
            self._to_skip -= 1
            raise SourceError(self._too_long())
        try:
            body = await self._fetched()
        except SourceError:
            self.lint = None
            raise
        (self.kind, reading, lint, problem, signs), cost_s = await self._reading_of(body)
        self._page_bytes, self._cost_s = len(body), cost_s
        self._to_skip = max(0, math.ceil(cost_s / (_MAX_BUSY * self.period_s)) - 1)
        self.refused += reading.refused
        self.lint = None if self.kind is None else lint
        if problem is not None:
            raise SourceError(f"{self._url}: {problem}")
        self.progress = self._watch.update(now_s, signs)
        batch = Batch(self.name, now_s, reading.points, reading.histograms)
        if self._to_skip > 0:
            raise SourceError(self._too_long(), batch)  # already now: it would seem to work again between two that are left out
        return batch

    def counts(self) -> Iterable[Count]:
        """For the agent's own metrics."""
        for reason, count in self.refused.items():
            yield "aie_agent_scrape_refused_total", (self.engine, reason), float(count)
        if self.lint is not None:
            broken = {finding.rule for finding in self.lint}
            for rule in RULES:
                yield "aie_agent_scrape_lint", (self.engine, rule), float(rule in broken)

    async def close(self) -> None:
        """Closes the connection."""
        await asyncio.to_thread(self._reader.close)
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _too_long(self) -> str:
        """In about so many bytes: a reason that changes with each page would be logged with each."""
        kilobytes = float(f"{self._page_bytes / 1000:.1g}")
        return f"{self._url}: a page of some {kilobytes:g} kB takes too long to be read every {self.period_s:g} s"

    async def _fetched(self) -> bytes:
        """The page. Raises SourceError when it cannot be had."""
        try:
            return await self._fetch()
        except TimeoutError as error:
            raise SourceError(f"{self._url}: no answer within {self._timeout_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            # asyncio's own text is "Connect call failed ('127.0.0.1', 8000)"; the system's says why.
            number = error.os_error.errno
            reason = os.strerror(number) if number else str(error.os_error)
            raise SourceError(f"{self._url}: {reason}: is the engine running, and is this its address?") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceError(f"{self._url}: {type(error).__name__}: {_one_line(str(error))}") from error

    async def _fetch(self) -> bytes:
        if self._session is None:
            # One connection, kept open. Encodings are not asked for and not undone: 8 KiB of them can hold gigabytes.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=1),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        # OpenMetrics has exemplars, but libraries name counters otherwise there: it is asked for where we know that they are ours.
        accept = ACCEPT_OPENMETRICS if self.kind == OWN_KIND else _ACCEPT_CLASSIC
        async with self._session.get(self._url, headers={"Accept": accept}, allow_redirects=False) as answer:
            if answer.status != 200:
                raise SourceError(f"{self._url}: status {answer.status} {(answer.reason or '')[:60]!r}, expected 200")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > MAX_PAGE_BYTES:
                    raise SourceError(f"{self._url}: the page is larger than {MAX_PAGE_BYTES >> 20} MiB")
        return bytes(body)

    async def _reading_of(self, body: bytes) -> tuple[PageReading, float]:
        """In a thread: a page of some megabytes would hold up the event loop for a good part of a second. Not so one that is no
        larger than the one before, if that was read faster than a thread is woken and heard of."""
        if self._cost_s <= _SOON_S and len(body) <= min(self._page_bytes * _MORE, _SOON_BYTES):
            return self._read(body)
        return await asyncio.to_thread(self._read, body)

    def _read(self, body: bytes) -> tuple[PageReading, float]:
        start_s = self._cpu_clock()
        reading = self._reader.read(body, MAX_SAMPLES)
        return reading, self._cpu_clock() - start_s


def _one_line(text: str) -> str:
    """`text` as it may stand in a log and on a terminal: what others sent can hold control sequences."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line[:_MAX_REASON_CHARS])
