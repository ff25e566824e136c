"""Looks once at the native code that waits when an engine's threads are found to wait for locks, and keeps what was seen.

Bounded as the Python stacks are: at most one look a minute an engine, of `WINDOW_S`, at the locks that were waited for longest.
What is read of the processes is read in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

from aie_agent.sources.bpf.lock_windows import Looked
from aie_agent.stacks.native.standing import Standing, waiting_now
from aie_agent.stacks.native.waits import NativeWait, Resolved, resolve
from aie_agent.stacks.waiting import Address

log = logging.getLogger(__name__)

WINDOW_S: Final = 2.0
EVERY_S: Final = 60.0
MOST_SENTENCES: Final = 2
"""Of one lock: how most of those that wait for it came there."""

Look = Callable[[str, Sequence[Address], float], Awaitable[Looked]]
"""Opens a window on an engine's locks for so many seconds."""


class _Kept(NamedTuple):
    resolved: Resolved
    until_s: float


class NativeEvidence:
    """`follow` is called once a tick, `run` does the work. `look` opens a window."""

    def __init__(
        self,
        look: Look,
        retention_s: float,
        clock: Callable[[], float],
        *,
        window_s: float = WINDOW_S,
        every_s: float = EVERY_S,
    ) -> None:
        self._look = look
        self._retention_s = retention_s
        self._clock = clock
        self._window_s = window_s
        self._every_s = every_s
        self._wanted: dict[str, tuple[Address, ...]] = {}
        self._tried_s: dict[str, float] = {}
        self._kept: dict[str, _Kept] = {}
        self._asked = asyncio.Event()

    def follow(self, engines: Collection[str], locks: Callable[[str], Sequence[Address]], now_s: float) -> None:
        """Whose threads are suspected of waiting for locks at `now_s`, and which locks they are: each gets its look, once a minute
        at most. What was seen is kept while the suspicion lasts, and the retention time after it."""
        self._tried_s = {engine: at_s for engine, at_s in self._tried_s.items() if now_s - at_s < self._every_s}
        self._kept = {
            engine: each._replace(until_s=now_s + self._retention_s) if engine in engines else each
            for engine, each in self._kept.items()
            if engine in engines or each.until_s > now_s
        }
        for engine in engines:
            fought = tuple(locks(engine))
            if fought and engine not in self._tried_s and not self._knows(engine, fought):
                self._tried_s[engine] = now_s
                self._wanted[engine] = fought
                self._asked.set()

    def _knows(self, engine: str, fought: Collection[Address]) -> bool:
        """Whether of each of these locks it was seen who waits there."""
        return set(fought) <= {(each.tgid, each.address) for each in self.waits(engine)}

    def waits(self, engine: str) -> tuple[NativeWait, ...]:
        """What was seen last, those of most threads first."""
        kept = self._kept.get(engine)
        return () if kept is None else kept.resolved.waits

    def sentences(self, engine: str, lock: Address) -> tuple[str, ...]:
        """How those came there that wait for a lock; none where it is Python code that waits, which Python's own stacks tell."""
        found = [each for each in self.waits(engine) if (each.tgid, each.address) == lock and not each.by_python]
        return tuple(each.text for each in found[:MOST_SENTENCES])

    def problems(self, engine: str) -> tuple[str, ...]:
        """Why less was seen than was there."""
        kept = self._kept.get(engine)
        return () if kept is None else kept.resolved.problems

    async def run(self) -> None:
        """Looks at what is wanted until cancelled, at each engine in a task of its own."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._asked.wait()
                self._asked.clear()
                for engine, locks in self._wanted.items():
                    group.create_task(self._try(engine, locks), name=f"native stacks of {engine}")
                self._wanted.clear()

    async def _try(self, engine: str, locks: Sequence[Address]) -> None:
        try:
            await self._take(engine, locks)
        except Exception:  # what is odd about one engine must end neither the others' looks nor the agent
            log.exception("native stacks of engine %s could not be taken", engine)

    async def _take(self, engine: str, locks: Sequence[Address]) -> None:
        """Those that wait already are no news to the window: they are looked at first, by /proc, and told at once."""
        standing = await asyncio.to_thread(_waiting, engine, locks)
        before = [stack for each in standing for stack in each.stacks]
        left_out = tuple(each.problem for each in standing if each.problem is not None)
        first = await asyncio.to_thread(resolve, before)
        self._keep(engine, _with(first, left_out))
        looked = await self._look(engine, locks, self._window_s)
        resolved = _with_those_that_ended(await asyncio.to_thread(resolve, (*looked.stacks, *before)), first)
        late = (f"native stacks of waits that began later: {looked.problem}",) if looked.problem else ()
        self._keep(engine, _with(resolved, left_out + late))
        count = len(looked.stacks) + len(before)
        log.info("native stacks of engine %s: %d%s", engine, count, f"; {looked.problem}" if looked.problem else "")

    def _keep(self, engine: str, resolved: Resolved) -> None:
        self._kept[engine] = _Kept(resolved, self._clock() + self._retention_s)


def _waiting(engine: str, locks: Sequence[Address]) -> list[Standing]:
    wanted: dict[int, set[int]] = defaultdict(set)
    for tgid, address in locks:
        wanted[tgid].add(address)
    return [waiting_now(engine, tgid, addresses) for tgid, addresses in wanted.items()]


def _with(resolved: Resolved, problems: tuple[str, ...]) -> Resolved:
    return resolved._replace(problems=(*resolved.problems, *problems))


def _with_those_that_ended(resolved: Resolved, first: Resolved) -> Resolved:
    """What the first look told of processes that the second could tell nothing of: they ended while the window was open."""
    told = {each.tgid for each in resolved.waits}
    waits = (*resolved.waits, *(each for each in first.waits if each.tgid not in told))
    return resolved._replace(waits=tuple(sorted(waits, key=lambda each: -each.threads)))
