"""The sources that run at present: some for as long as the agent does, others while there is something to read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aie_agent.samples import Batch
from aie_agent.sources.base import Health, Runner, Source

log = logging.getLogger(__name__)


class Runners:
    """Runs sources, also such as come and go. Belongs to the event loop's thread."""

    def __init__(self, deliver: Callable[[Batch], None], clock: Callable[[], float]) -> None:
        self._deliver = deliver
        self._clock = clock
        self._runners: dict[Source, Runner] = {}
        self._tasks: dict[Source, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self.health: list[Health] = []
        """Of all that run at present, in the order in which they were added. One list for ever: readers may keep it."""

    def add(self, source: Source, *, show: bool = True) -> None:
        """Runs a source, from now on or from `start` on. `show` False leaves its health out."""
        runner = self._runners[source] = Runner(source, self._deliver, self._clock)
        if show:
            self.health.append(runner.health)
        if self._group is not None:
            self._start(source)

    def remove(self, source: Source) -> None:
        """Ends a source, and closes it when its last collection has ended."""
        runner = self._runners.pop(source)
        self.health[:] = [health for health in self.health if health is not runner.health]
        task = self._tasks.pop(source, None)
        if self._group is not None and task is not None:
            self._group.create_task(_end(source, task))

    def start(self, group: asyncio.TaskGroup) -> None:
        """Runs all that were added, and will be, in tasks of this group."""
        self._group = group
        for source in self._runners:
            self._start(source)

    def cancel(self) -> None:
        """Ends all collections."""
        self._group = None
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Closes all sources, after `cancel` and the end of the group."""
        for source in self._runners:
            await source.close()

    def _start(self, source: Source) -> None:
        assert self._group is not None
        self._tasks[source] = self._group.create_task(self._runners[source].run(), name=source.name)


async def _end(source: Source, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    try:
        await source.close()
    except Exception:  # what goes must not take those with it that stay
        log.exception("source %s could not be closed", source.name)
