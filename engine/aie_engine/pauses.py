"""What makes the whole process wait: Python's garbage collector, and an event loop that is late."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

LAG_PERIOD_S: Final = 0.1

Observe = Callable[[float], None]
"""Takes one duration in seconds."""


async def watch_lag(observe: Observe, period_s: float = LAG_PERIOD_S) -> None:
    """Observes, for ever, how late a timer of `period_s` fires: what everybody waits for whom this event loop serves."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + period_s
        await asyncio.sleep(period_s)
        observe(max(0.0, clock() - due))


@contextmanager
def watched_collector(observe: Sequence[Observe]) -> Iterator[None]:
    """Within, `observe[generation]` takes the duration of every garbage collection, on whichever thread it happens.

    Python runs one collection at a time, callbacks included, so one start time is enough. For the same reason `observe`
    may take a lock, as long as nothing else takes it: a collection can begin anywhere, also in whoever holds it.
    """
    started = 0.0

    def on_collection(phase: str, info: dict[str, Any]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        else:
            observe[info["generation"]](time.perf_counter() - started)

    gc.callbacks.append(on_collection)
    try:
        yield
    finally:
        gc.callbacks.remove(on_collection)
