"""Pauses of the whole process: collections by generation, and an event loop that is late."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from aie_engine.pauses import watch_lag, watched_collector


def test_every_collection_is_observed_with_its_generation() -> None:
    seen: list[list[float]] = [[], [], []]
    gc.disable()  # so that only ours happen
    try:
        with watched_collector([durations.append for durations in seen]):
            for generation, times in ((0, 3), (1, 2), (2, 1)):
                for _ in range(times):
                    gc.collect(generation)
        gc.collect()  # nobody watches any more
    finally:
        gc.enable()
    assert [len(durations) for durations in seen] == [3, 2, 1]
    assert all(0 <= duration < 60 for durations in seen for duration in durations)
    assert sum(map(sum, seen)) > 0


def test_the_callback_is_gone_whatever_happened() -> None:
    before = list(gc.callbacks)
    with pytest.raises(KeyError), watched_collector([]):
        raise KeyError
    assert gc.callbacks == before


def test_collections_on_several_threads() -> None:
    seen: list[float] = []
    with watched_collector([seen.append] * 3):
        threads = [threading.Thread(target=lambda: [gc.collect(0) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen  # those that met another one under way are no collections
    assert all(duration >= 0 for duration in seen)


async def test_a_late_loop_is_seen_and_a_punctual_one_is_near_zero() -> None:
    lags: asyncio.Queue[float] = asyncio.Queue()
    task = asyncio.create_task(watch_lag(lags.put_nowait, period_s=0.001))
    assert min([await lags.get() for _ in range(5)]) < 0.05
    time.sleep(0.1)  # noqa: ASYNC251 - what a handler must not do
    assert await lags.get() > 0.05
    task.cancel()
