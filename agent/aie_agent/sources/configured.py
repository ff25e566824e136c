"""The engines that the configuration names, joined to their processes: by pid file, with all that this process started, or by who
listens where their page is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from pathlib import Path

from aie_agent.config import EngineSection
from aie_agent.identity import Home
from aie_agent.samples import Batch, Hello
from aie_agent.sources.base import SourceError
from aie_agent.sources.listeners import Holders, is_this_host, tgids_listening_at
from aie_agent.sources.process_tree import ProcessTree
from aie_agent.sources.procfs import Procfs

_MAX_STARTED = 1024
"""More than an engine has, and less than a fork bomb."""


class ConfiguredEngines:
    """Looks for the processes of configured engines, so that they need no hooks to be joined.

    One that was seen and is gone is down, which the engine's own state says: that is no failure of this source.
    """

    name = "engines"
    period_s = 5.0

    def __init__(self, engines: Sequence[EngineSection], procfs: Procfs | None = None) -> None:
        self._engines = engines
        by_file = any(engine.pid_file is not None for engine in engines)
        self._tree = ProcessTree(procfs or Procfs()) if by_file else None
        self._seen: set[str] = set()
        self._holders = {
            engine.name: Holders(engine.metrics_url.host, engine.metrics_url.port)
            for engine in engines
            if engine.metrics_url is not None
        }

    async def collect(self, now_s: float) -> Batch:
        """Raises SourceError, with what was found all the same, when an engine has no process that can be seen."""
        batch = Batch(self.name, now_s)
        missing = []
        looked = [await asyncio.to_thread(tgids_of, engine, self._holders.get(engine.name)) for engine in self._engines]
        named = frozenset[int]().union(*(tgids for tgids, _ in looked))
        if self._tree is not None:
            await asyncio.to_thread(self._tree.look)
        for engine, (tgids, problem) in zip(self._engines, looked, strict=True):
            if problem is not None:
                missing.append(f"{engine.name}: {problem}")
            batch.hellos += [Hello(engine.name, tgid) for tgid in sorted(tgids)]
            if engine.pid_file is not None:
                batch.hellos += [Hello(engine.name, tgid) for tgid in await asyncio.to_thread(self._started_by, tgids, named)]
            if tgids:
                self._seen.add(engine.name)
            elif problem is None and engine.name not in self._seen and _is_here(engine):
                missing.append(f"{engine.name}: no process seen to listen at {engine.metrics_url} (not started, or another user's)")
        if missing:
            raise SourceError("; ".join(missing), batch)
        return batch

    async def close(self) -> None:
        """Holds nothing."""

    def _started_by(self, roots: Set[int], named: Set[int]) -> list[int]:
        """All that these processes started, and what that started, but for what is another configured engine's."""
        found: list[int] = []
        asked = list(roots)
        while asked and self._tree is not None and len(found) < _MAX_STARTED:
            started = [each.tgid for each in self._tree.started_by(asked.pop()) if each.tgid not in named]
            found += started
            asked += started
        return sorted(found)


def home_of(engine: EngineSection) -> Home:
    """Where the processes of an engine are, as far as the configuration says it. A pid file is of this host."""
    if engine.pid_file is not None or _is_here(engine):
        return Home.HERE
    return Home.UNSAID if engine.metrics_url is None else Home.ELSEWHERE


def tgids_of(engine: EngineSection, holders: Holders | None = None) -> tuple[set[int], str | None]:
    """The processes of an engine: of its pid file, else of its socket; and what is wrong with a pid file that does not help.
    `holders` is what was found out at the looks before, of whoever looks again and again."""
    if engine.pid_file is None:
        return _listening(engine, holders), None
    try:
        return {int(Path(engine.pid_file).read_text())}, None
    except OSError as error:
        problem = f"{engine.pid_file}: {error.strerror}"
    except ValueError:
        problem = f"{engine.pid_file} holds no pid"
    found = _listening(engine, holders)
    return found, None if found else problem


def _listening(engine: EngineSection, holders: Holders | None) -> set[int]:
    if engine.metrics_url is None or not _is_here(engine):
        return set()
    if holders is not None:
        return holders.look()
    return tgids_listening_at(engine.metrics_url.host, engine.metrics_url.port)


def _is_here(engine: EngineSection) -> bool:
    return engine.metrics_url is not None and is_this_host(engine.metrics_url.host)
