"""Pauses of the whole process: collections by generation, and an event loop that is late."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from aie_engine.pauses import watch_lag, watched_collector
from aie_telemetry.instruments import Registry


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


def test_a_collection_in_the_middle_of_a_page_or_an_observation_hangs_nothing() -> None:
    """As in the engine: the collector's times go to the registry that is on the page."""
    registry = Registry()
    pauses = [registry.distribution("aie_engine_gc_pause_seconds", "e", "m", generation) for generation in ("0", "1", "2")]
    steps = registry.distribution("aie_engine_step_seconds", "e", "m")
    collections = 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal collections
        collections += phase == "stop"

    def work() -> None:
        for number in range(300):
            registry.value("aie_engine_kv_used_tokens", "e", f"m{number}").set(number)
            registry.render()
            steps.observe(0.1)

    thresholds = gc.get_threshold()
    thread = threading.Thread(target=work, daemon=True)
    with watched_collector([pause.observe for pause in pauses]):
        gc.callbacks.append(count)
        gc.set_threshold(1)
        try:
            thread.start()
            thread.join(60)
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(count)
    assert not thread.is_alive()
    assert sum(sum(pause.counts) for pause in pauses) >= collections > 300
    assert sum(steps.counts) == 300


async def test_a_late_loop_is_seen_and_a_punctual_one_is_near_zero() -> None:
    lags: asyncio.Queue[float] = asyncio.Queue()
    task = asyncio.create_task(watch_lag(lags.put_nowait, period_s=0.001))
    assert min([await lags.get() for _ in range(5)]) < 0.05
    time.sleep(0.1)  # noqa: ASYNC251 - what a handler must not do
    assert await lags.get() > 0.05
    task.cancel()
