"""What a source is, and the loop that runs one: its period, its health, its failures."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal, Protocol

from aie_agent.samples import Batch

log = logging.getLogger(__name__)


class SourceError(Exception):
    """A collection failed for a reason outside: one line that says what, and what to do if there is something to do.

    `batch` is what was read all the same, where only a part failed (one of two sockets): it is delivered, and the source counts
    as down, since something that was asked of it does not work.
    """

    def __init__(self, message: str, batch: Batch | None = None) -> None:
        super().__init__(message)
        self.batch = batch


class Source(Protocol):
    """One outside thing that is collected once a period."""

    @property
    def name(self) -> str:
        """As it stands in `aie_agent_source_up{source}`."""

    @property
    def period_s(self) -> float:
        """Seconds between the starts of two collections."""

    async def collect(self, now_s: float) -> Batch:
        """Reads the thing once. Raises SourceError when it cannot be read; a part that is missing is simply absent."""

    async def close(self) -> None:
        """Gives back what the source holds: sockets, threads, files."""


class Health:
    """What the agent shows of a source: its last state, why, and what its collections cost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason: str | None = None
        self.down_since_s: float | None = None
        self.last_success_s: float | None = None
        self.last_read_s: float | None = None
        """When it last delivered something, also at a collection that failed all the same."""
        self.unanswered_since_s: float | None = None
        """When the first began of the collections that ended in a time-out, one after the other until now."""
        self.collections = 0
        self.failures = 0
        self.seconds = 0.0

    @property
    def state(self) -> Literal["up", "down", "waiting"]:
        """ "waiting" before the first collection has ended, then "up" or "down"."""
        if self.reason is not None:
            return "down"
        return "waiting" if self.last_success_s is None else "up"


def next_start_s(now_s: float, last_s: float, period_s: float) -> float:
    """When what began at `last_s` is due again: at the next multiple of its period that is no less than half of one away from that.

    So whatever has one period wakes the process together: to be woken for each apart takes as long as some of them.
    """
    start_s = (now_s // period_s + 1) * period_s
    return start_s if start_s - last_s >= period_s / 2 else start_s + period_s


class Runner:
    """Runs one source for ever. A failed collection becomes a state with a reason, and is tried again a period later."""

    def __init__(self, source: Source, deliver: Callable[[Batch], None], clock: Callable[[], float] = time.time) -> None:
        self.source = source
        self.health = Health(source.name)
        self._deliver = deliver
        self._clock = clock

    async def run(self) -> None:
        """Collects until cancelled. Collections never overlap, and a late one is not made up for."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        while True:
            await self.collect_once()
            start_s = next_start_s(loop.time(), start_s, self.source.period_s)
            await asyncio.sleep(start_s - loop.time())

    async def collect_once(self) -> None:
        """One collection, with its outcome noted. Raises nothing but cancellation."""
        health = self.health
        health.collections += 1
        start = time.perf_counter()
        began_s, timed_out = self._clock(), False
        try:
            await self._collect_and_deliver()
        except SourceError as error:
            timed_out = isinstance(error.__cause__, TimeoutError)
            self._failed(str(error))
        except Exception as error:  # a bug in one source must not end the others
            if health.reason is None:
                log.exception("source %s failed", self.source.name)
            self._failed(f"internal error: {type(error).__name__}: {error}")
        else:
            if health.reason is not None:
                log.info("source %s works again", self.source.name)
            health.reason = None
            health.down_since_s = None
            health.last_success_s = self._clock()
        finally:
            health.seconds += time.perf_counter() - start
        if not timed_out:
            health.unanswered_since_s = None
        elif health.unanswered_since_s is None:
            health.unanswered_since_s = began_s

    async def _collect_and_deliver(self) -> None:
        try:
            batch = await self.source.collect(self._clock())
        except SourceError as error:
            if error.batch is not None:
                self._hand_over(error.batch)
            raise
        self._hand_over(batch)

    def _hand_over(self, batch: Batch) -> None:
        batch.period_s = self.source.period_s
        self._deliver(batch)
        self.health.last_read_s = self._clock()

    def _failed(self, reason: str) -> None:
        if self.health.reason != reason:
            log.warning("source %s: %s", self.source.name, reason)
        if self.health.down_since_s is None:
            self.health.down_since_s = self._clock()
        self.health.failures += 1
        self.health.reason = reason
