"""Threads for calls that may never return.

Jobs run one after the other on one thread: the cheapest way, and no two calls wait for each other's locks. A job that takes too
long keeps its thread to itself; the others go on, on a new one. So there are never more threads than jobs that hang, and one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from queue import SimpleQueue
from typing import NamedTuple

log = logging.getLogger(__name__)


class Job(NamedTuple):
    """Something to do, and with whom: of one key there is never more than one at a time."""

    key: Hashable
    work: Callable[[], None]


_Shift = tuple[deque[Job], Callable[[], None]]


class _Lane:
    """One thread. `left` once it works for nobody but the job that does not return."""

    def __init__(self, name: str) -> None:
        self.finished = False
        self._left = False
        self._failed = ""
        self._lock = threading.Lock()
        self._running: tuple[Job, float] | None = None
        self._inbox: SimpleQueue[_Shift | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def begin(self, jobs: deque[Job], on_idle: Callable[[], None]) -> None:
        self._inbox.put((jobs, on_idle))

    def end(self) -> None:
        self._inbox.put(None)

    def began_s(self) -> float | None:
        with self._lock:
            return None if self._running is None else self._running[1]

    def leave(self, patience_s: float) -> Job | None:
        """Leaves the thread to the job that it runs, if that has taken longer than this."""
        with self._lock:
            if self._running is None or time.monotonic() - self._running[1] < patience_s:
                return None
            self._left = True
            return self._running[0]

    def _work(self) -> None:
        while (shift := self._inbox.get()) is not None:
            jobs, on_idle = shift
            while (job := self._next(jobs)) is not None:
                try:
                    job.work()
                except Exception as error:  # a bug in one GPU's reading must not end the others'; it is logged whole, once
                    if repr(error) != self._failed:
                        log.exception("NVML: reading %s failed", job.key)
                    self._failed = repr(error)
            if self._left:
                break
            on_idle()
        self.finished = True

    def _next(self, jobs: deque[Job]) -> Job | None:
        with self._lock:
            self._running = None
            if self._left or not jobs:
                return None
            job = jobs.popleft()
            self._running = (job, time.monotonic())
            return job


class Lanes:
    """Runs jobs, and leaves those behind that do not return. Belongs to the event loop's thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lane: _Lane | None = None
        self._away: dict[Hashable, _Lane] = {}

    def away(self) -> dict[Hashable, float]:
        """Jobs that have not returned, by key: for how many seconds they have been running."""
        now_s = time.monotonic()
        self._away = {key: lane for key, lane in self._away.items() if not lane.finished}
        return {key: now_s - (lane.began_s() or now_s) for key, lane in self._away.items()}

    async def run(self, jobs: Iterable[Job], patience_s: float) -> None:
        """Returns when every job has ended or has taken longer than `patience_s`. A key that is still away is passed over."""
        away = self.away()
        waiting = deque(job for job in jobs if job.key not in away)
        try:
            while waiting:
                await self._work_off(waiting, patience_s)
        finally:
            waiting.clear()

    async def _work_off(self, waiting: deque[Job], patience_s: float) -> None:
        """Until nothing is left, or a job is left behind."""
        lane = self._lane = self._lane or _Lane(self._name)
        idle, loop = asyncio.Event(), asyncio.get_running_loop()
        lane.begin(waiting, lambda: _tell(loop, idle))
        while True:
            began_s = lane.began_s()
            left_s = patience_s if began_s is None else patience_s - (time.monotonic() - began_s)
            try:
                async with asyncio.timeout(max(left_s, 0.001)):
                    await idle.wait()
                return
            except TimeoutError:
                job = lane.leave(patience_s)
                if job is not None:
                    self._away[job.key] = lane
                    self._lane = None
                    return

    def close(self) -> None:
        """Ends the thread that is waiting. Those that hang end by themselves, or with the process."""
        if self._lane is not None:
            self._lane.end()
            self._lane = None


def _tell(loop: asyncio.AbstractEventLoop, idle: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(idle.set)
    except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
        log.debug("a reading of NVML ended after the agent did")
