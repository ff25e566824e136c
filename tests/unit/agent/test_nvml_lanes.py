"""Threads for calls that may never return: real threads, and jobs that wait for an event."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from aie_agent.sources.nvml.lanes import Job, Lanes

PATIENCE_S = 0.05


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


async def test_jobs_run_in_order_on_one_thread() -> None:
    lanes, seen = Lanes("lanes-order"), []
    jobs = [Job(number, lambda number=number: seen.append((number, threading.get_ident()))) for number in range(5)]  # type: ignore[misc]
    for _ in range(2):
        await lanes.run(jobs, 10.0)
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4] * 2
    assert len({thread for _, thread in seen}) == 1
    lanes.close()


async def test_a_job_that_does_not_return_leaves_the_others_alone() -> None:
    lanes, seen, release = Lanes("lanes-hang"), [], threading.Event()
    jobs = [
        Job("a", lambda: seen.append("a")),
        Job("hangs", lambda: (release.wait(), seen.append("hangs"))[1]),
        Job("b", lambda: seen.append("b")),
    ]
    await lanes.run(jobs, PATIENCE_S)
    assert seen == ["a", "b"]
    assert lanes.away()["hangs"] >= PATIENCE_S
    await lanes.run(jobs, PATIENCE_S)
    assert seen == ["a", "b"] * 2  # it is not begun again while it runs
    assert sum(thread.name == "lanes-hang" for thread in threading.enumerate()) == 2
    release.set()
    await until(lambda: not lanes.away())
    await lanes.run(jobs, 10.0)
    assert seen.count("hangs") == 2
    lanes.close()
    await until(lambda: not any(thread.name == "lanes-hang" for thread in threading.enumerate()))


async def test_no_more_threads_than_jobs_that_hang_and_one() -> None:
    lanes, release = Lanes("lanes-many"), threading.Event()
    jobs = [Job(number, lambda: release.wait() and None) for number in range(4)]
    for _ in range(3):
        await lanes.run(jobs, 0.01)
    assert sum(thread.name == "lanes-many" for thread in threading.enumerate()) <= 5
    assert len(lanes.away()) == 4
    release.set()
    await until(lambda: not lanes.away())
    lanes.close()


async def test_a_bug_in_one_is_logged_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    lanes, seen = Lanes("lanes-bug"), []
    jobs = [Job("bug", lambda: {}["nothing"]), Job("good", lambda: seen.append(1))]
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await lanes.run(jobs, 10.0)
    assert seen == [1, 1, 1]
    assert len(caplog.records) == 1
    lanes.close()


async def test_who_stops_waiting_stops_what_has_not_begun() -> None:
    lanes, seen, release = Lanes("lanes-cancel"), [], threading.Event()
    jobs = [Job("long", lambda: release.wait() and None), Job("never", lambda: seen.append(1))]
    running = asyncio.create_task(lanes.run(jobs, 60.0))
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.wait([running])
    release.set()
    await lanes.run([Job("other", lambda: seen.append(2))], 10.0)
    assert seen == [2]
    lanes.close()
