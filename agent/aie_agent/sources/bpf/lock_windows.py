"""Windows on the stacks of threads that wait: asked for one at a time an engine, and answered when the child has closed them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from aie_agent.sources.bpf.child import ChildError
from aie_ebpf.messages import LockStack, OpenWindow, Report, WindowClosed

SET: Final = "lock_stacks"
_CLOSED_WITHIN_S: Final = 60.0
"""After its time: its programs may have to be compiled first, on a host that is busy."""


class Looked(NamedTuple):
    """The stacks that a window saw, and why it saw none ("" where that is the answer)."""

    stacks: tuple[LockStack, ...]
    problem: str = ""


class LockWindows:
    """Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[list[LockStack], asyncio.Future[str]]] = {}

    async def look(
        self, send: Callable[[OpenWindow], None], engine: str, locks: Sequence[tuple[int, int]], seconds: float
    ) -> Looked:
        """The stacks of an engine's threads that begin to wait at these locks (tgid, address) within `seconds`; at any, where
        there are none."""
        if engine in self._open:
            return Looked((), "a window on its locks is open already")
        stacks, closed = self._open[engine] = [], asyncio.get_running_loop().create_future()
        try:
            send(OpenWindow(set=SET, engine=engine, seconds=seconds, locks=tuple(locks)))
            problem = await asyncio.wait_for(closed, seconds + _CLOSED_WITHIN_S)
        except ChildError as error:
            problem = str(error)
        except TimeoutError:
            problem = f"the window was not closed within {_CLOSED_WITHIN_S:.0f} s of its end"
        finally:
            del self._open[engine]
        return Looked(tuple(stacks), problem)

    def take(self, messages: Iterable[Report | WindowClosed]) -> None:
        """What the child said, in its order: the stacks of a window come before its end."""
        for each in messages:
            if isinstance(each, Report):
                for stack in each.lock_stacks:
                    stacks, closed = self._open.get(stack.engine, ([], None))
                    if closed is not None and not closed.done():
                        stacks.append(stack)
            elif each.set == SET:
                self._end(each.engine, each.reason)

    def fail(self, reason: str) -> None:
        """The child is gone, and its windows with it."""
        for engine in list(self._open):
            self._end(engine, reason)

    def _end(self, engine: str, reason: str) -> None:
        if engine in self._open and not self._open[engine][1].done():
            self._open[engine][1].set_result(reason)
