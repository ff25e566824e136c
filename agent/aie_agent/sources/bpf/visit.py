"""A BPF child for a moment: what `aie-agent check` and `aie-agent probe` look through, beside any agent that runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from aie_agent.config import BpfSection
from aie_agent.sources.bpf.child import COMMAND, Child, ChildError
from aie_agent.sources.bpf.source import arguments
from aie_ebpf.messages import Coverage, OpenWindow, Ready, Report, Target, Watch, WindowClosed

_COVERED_WITHIN_S: Final = 20.0
_CLOSED_WITHIN_S: Final = 60.0
"""After its time a window is detached, probe by probe."""


class Sight(NamedTuple):
    """What a child could see: of each process by each set, and what a hit costs, in nanoseconds by kind."""

    ready: Ready
    coverage: tuple[Coverage, ...]


class Window(NamedTuple):
    """A window that was open: the reports while it was, and how it ended."""

    ready: Ready
    reports: tuple[Report, ...]
    closed: WindowClosed


@asynccontextmanager
async def _watching(
    targets: Sequence[Target], section: BpfSection, command: Sequence[str]
) -> AsyncIterator[tuple[Child, Ready, tuple[Coverage, ...]]]:
    """A child that watches these processes, with the first coverage that it reports. Raises ChildError."""
    child = Child([*command, *arguments(section)])
    try:
        await child.start()
        ready = await child.until_ready()
        child.send(Watch(targets=tuple(targets)))
        yield child, ready, await _coverage(child, {target.tgid for target in targets})
    finally:
        await child.close()


async def _coverage(child: Child, tgids: set[int]) -> tuple[Coverage, ...]:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _COVERED_WITHIN_S
    known: tuple[Coverage, ...] = ()
    while tgids and not tgids <= {each.tgid for each in known} and loop.time() < end_s:
        for message in await child.reports(1.0):
            if isinstance(message, Report) and message.coverage is not None:
                known = message.coverage
    return known


async def look(targets: Sequence[Target], section: BpfSection, command: Sequence[str] = COMMAND) -> Sight:
    """What can be seen of these processes. Raises ChildError."""
    async with _watching(targets, section, command) as (_, ready, coverage):
        return Sight(ready, coverage)


async def open_window(
    targets: Sequence[Target], section: BpfSection, set_: str, seconds: float, command: Sequence[str] = COMMAND
) -> Window:
    """Opens one set for `seconds` on the processes of one engine. Raises ChildError."""
    reports: list[Report] = []
    async with _watching(targets, section, command) as (child, ready, _):
        child.send(OpenWindow(set=set_, engine=targets[0].engine, seconds=seconds))
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds + _CLOSED_WITHIN_S
        while loop.time() < end_s:
            for message in await child.reports(1.0):
                if isinstance(message, WindowClosed):
                    return Window(ready, tuple(reports), message)
                reports.append(message)
        raise ChildError(f"the window was not closed within {_CLOSED_WITHIN_S:.0f} s of its end")
