"""Runs the follower in a thread of its own, so that neither the network nor decoding ever holds up the screen."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from aie_top.model import build_frame
from aie_top.rows import AgentState, Frame
from aie_top.targets import Target


class FrameSource(Protocol):
    """Where the app gets its frames: the feed, or in tests a fixed one."""

    def first(self) -> Frame:
        """What to show before anything is known."""

    def start(self, sink: Callable[[Frame], None]) -> None:
        """Calls `sink` from any thread, for every frame from now on."""

    def stop(self) -> None:
        """No frame after this."""


class Feed:
    """At most one frame an `interval_s` for new data; at once when an agent comes or goes.

    `zone` is for the clock on the screen, None for the reader's own.
    """

    def __init__(self, targets: Sequence[Target], interval_s: float = 1.0, zone: datetime.tzinfo | None = None) -> None:
        self._targets = targets
        self._interval_s = interval_s
        self._zone = zone
        self._sink: Callable[[Frame], None] = lambda _frame: None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aie-top-feed", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None

    def first(self) -> Frame:
        return build_frame([AgentState(label=target.url) for target in self._targets], 0.0, self._zone)

    def start(self, sink: Callable[[Frame], None]) -> None:
        self._sink = sink
        self._thread.start()

    def stop(self) -> None:
        """Returns soon even if the network does not: the thread is a daemon, and its sink is cut off."""
        self._stopped.set()
        loop, main = self._loop, self._main
        if loop is not None and main is not None and not loop.is_closed():
            loop.call_soon_threadsafe(main.cancel)
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        # Imported here, in the thread: the HTTP client takes as long to import as Textual, and the first picture need not wait.
        from aie_top.follower import Follower

        follower = Follower(self._targets, self._deliver, self._interval_s, self._zone)
        loop = asyncio.new_event_loop()
        self._main = loop.create_task(follower.run())
        self._loop = loop
        try:
            if self._stopped.is_set():
                self._main.cancel()
            loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass  # stop() was called
        finally:
            loop.close()

    def _deliver(self, frame: Frame) -> None:
        if not self._stopped.is_set():
            self._sink(frame)
