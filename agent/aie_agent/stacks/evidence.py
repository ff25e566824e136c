"""Takes two dumps of an engine when something is found wrong with it, and keeps them: what stands still shows between the two.

Bounded: one process at a time on the host, at most one pair a minute an engine, at most `MOST_PROCESSES` of its processes; in a
worker thread, so that nothing else of the agent waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.stacks.model import Dump
from aie_agent.stacks.py_spy import StacksError, dump
from aie_agent.stacks.sentences import Pair

log = logging.getLogger(__name__)

APART_S: Final = 6.0
EVERY_S: Final = 60.0
MOST_PROCESSES: Final = 16

Take = Callable[[int, float], Dump]
"""Reads the stacks of a process at a time. Raises StacksError."""

Suspicion = tuple[str, str]
"""A cause and the engine that it is found at."""


class _Kept(NamedTuple):
    """A pair, and until when it is kept; later where a finding still holds."""

    pair: Pair
    until_s: float


class StackEvidence:
    """Asks for dumps, takes them and keeps them. `follow` is called once a tick, `run` does the work."""

    def __init__(
        self,
        retention_s: float,
        clock: Callable[[], float],
        take: Take = dump,
        *,
        apart_s: float = APART_S,
        every_s: float = EVERY_S,
    ) -> None:
        self._retention_s = retention_s
        self._clock = clock
        self._take = take
        self._apart_s = apart_s
        self._every_s = every_s
        self._since_s: dict[Suspicion, float] = {}
        self._wanted: dict[str, Sequence[int]] = {}
        self._tried_s: dict[str, float] = {}
        self._kept: dict[str, _Kept] = {}
        self._asked = asyncio.Event()
        self._turn = asyncio.Lock()

    def follow(self, suspicions: Iterable[Suspicion], tgids: Callable[[str], Sequence[int]], now_s: float) -> None:
        """What is found wrong at `now_s`, of which stacks would tell more. What began gets its dumps; what is over leaves its own
        for others to look at, for the retention time."""
        self._since_s = {each: self._since_s.get(each, now_s) for each in suspicions}
        engines = {engine for _, engine in self._since_s}
        self._kept = {
            engine: each._replace(until_s=now_s + self._retention_s) if engine in engines else each
            for engine, each in self._kept.items()
            if engine in engines or each.until_s > now_s
        }
        self._tried_s = {engine: at_s for engine, at_s in self._tried_s.items() if now_s - at_s < self._every_s}
        for engine in [engine for engine in self._wanted if engine not in engines]:
            del self._wanted[engine]
        for cause, engine in self._since_s:
            pair = self.of(engine, cause)
            if pair is None or not pair.first:
                self.wanted(engine, tgids(engine), now_s)

    def wanted(self, engine: str, tgids: Sequence[int], now_s: float) -> None:
        """Asks for two dumps of an engine's processes. Does nothing where the last ones were begun less than a minute ago."""
        if tgids and engine not in self._wanted and now_s - self._tried_s.get(engine, -self._every_s) >= self._every_s:
            self._wanted[engine] = tgids
            self._asked.set()

    def of(self, engine: str, cause: str | None = None) -> Pair | None:
        """The last pair of an engine; with a cause, only one that was begun since that was found. Without dumps where none could be
        taken."""
        kept = self._kept.get(engine)
        if kept is None or cause is None:
            return None if kept is None else kept.pair
        since_s = self._since_s.get((cause, engine))
        return kept.pair if since_s is not None and kept.pair.began_s >= since_s else None

    async def run(self) -> None:
        """Takes what is wanted until cancelled. Engines take turns: while one waits for its second dumps, another has its first."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._asked.wait()
                self._asked.clear()
                for engine, tgids in self._wanted.items():
                    group.create_task(self._try(engine, tgids), name=f"stacks of {engine}")
                self._wanted.clear()

    async def _try(self, engine: str, tgids: Sequence[int]) -> None:
        try:
            await self._take_pair(engine, tgids)
        except Exception:  # what is odd about one engine must end neither the others' dumps nor the agent
            log.exception("stacks of engine %s could not be taken", engine)

    async def _take_pair(self, engine: str, tgids: Sequence[int]) -> None:
        began_s = self._tried_s[engine] = self._clock()
        chosen = tuple(sorted(tgids))[:MOST_PROCESSES]
        first, problems = await self._dumps(chosen)
        last: Mapping[int, Dump] = {}
        if first:
            self._keep(Pair(engine, began_s, tuple(first.values()), (), tuple(dict.fromkeys(problems.values()))))
            await asyncio.sleep(self._apart_s)
            last, later = await self._dumps(tuple(first))
            problems |= later
        # One that ended in between, and whose number went to another, is no pair.
        both = [tgid for tgid in first if tgid in last and first[tgid].start_ticks == last[tgid].start_ticks]
        texts = tuple(dict.fromkeys(problems.values()))
        pair = Pair(engine, began_s, tuple(first[tgid] for tgid in both), tuple(last[tgid] for tgid in both), texts)
        self._keep(pair)
        log.info("stacks of engine %s: %d processes, two dumps each%s", engine, len(both), "".join(f"; {text}" for text in texts))

    def _keep(self, pair: Pair) -> None:
        self._kept[pair.engine] = _Kept(pair, self._clock() + self._retention_s)

    async def _dumps(self, tgids: Sequence[int]) -> tuple[dict[int, Dump], dict[int, str]]:
        """Of each process its dump, or why there is none."""
        dumps, problems = {}, {}
        async with self._turn:
            for tgid in tgids:
                try:
                    dumps[tgid] = await asyncio.to_thread(self._take, tgid, self._clock())
                except StacksError as error:
                    problems[tgid] = str(error)
        return dumps, problems
