"""Keeps one BPF child running: starts it again after it ended, later each time, and says why there is none meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aie_agent.sources.bpf.child import SILENT_AFTER_S, Child, ChildError

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
GOOD_AFTER_S: Final = 60.0
"""A child that worked for so long was no failed attempt: the next one is started soon again."""


class Keeper:
    """`clock` is monotonic. Belongs to the event loop's thread."""

    def __init__(self, command: Sequence[str], clock: Callable[[], float], silent_after_s: float = SILENT_AFTER_S) -> None:
        self._command = command
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._child: Child | None = None
        self._reason = ""
        self._pause_s = FIRST_PAUSE_S
        self._next_start_s = float("-inf")
        self._started_s = 0.0
        self.starts = 0
        """How often a child was started."""

    @property
    def reason(self) -> str:
        """Why there is no child; empty while there is one, or none was asked for yet."""
        return self._reason

    async def child(self) -> Child:
        """A child that works and has compiled its programs. Raises ChildError while there is none."""
        try:
            if self._child is None:
                await self._start()
            assert self._child is not None
            await self._child.until_ready()
        except ChildError as error:
            await self.failed(error)
            raise
        self._reason = ""
        return self._child

    async def failed(self, error: ChildError) -> None:
        """The child is of no use any more: it is ended, and another one is started after a pause."""
        if self._child is None:
            return
        now_s = self._clock()
        if now_s - self._started_s >= GOOD_AFTER_S:
            self._pause_s = FIRST_PAUSE_S
        self._next_start_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._reason = str(error)
        child, self._child = self._child, None
        await child.kill()

    async def close(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def _start(self) -> None:
        now_s = self._clock()
        if now_s < self._next_start_s:
            raise ChildError(self._reason)
        self.starts += 1
        self._started_s = now_s
        self._child = Child(self._command, self._silent_after_s)
        await self._child.start()
