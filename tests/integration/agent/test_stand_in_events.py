"""Events of the stand-in: XIDs and the like, as a waiter gets them."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from aie_agent import simulate
from tests.fakes.stand_in import needs_compiler, simulated

pytestmark = needs_compiler

GIB = 1 << 30


@pytest.fixture(name="host")
def fixture_host(tmp_path: Path) -> Iterator[simulate.Controller]:
    """Four H100s."""
    with simulated(tmp_path / "state") as controller:
        yield controller


def _gpus() -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def test_xids_reach_who_asked_for_them(host: simulate.Controller) -> None:
    gpus = _gpus()
    host.push_xid(0, 13)
    events = nvml.nvmlEventSetCreate()
    for gpu in gpus[:2]:
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    for gpu, xid in ((1, 79), (0, 48), (0, 48), (2, 31)):
        host.push_xid(gpu, xid)
    host.push_event(0, nvml.nvmlEventTypeDoubleBitEccError)
    seen = []
    for _ in range(3):
        data = nvml.nvmlEventSetWait_v2(events, 0)
        seen.append((nvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData))
    assert seen == [(1, 8, 79), (0, 8, 48), (0, 8, 48)]
    # Before the set was made, of another GPU, of another type: none of it was asked for.
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 1)
    host.lose(1)
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlEventSetWait_v2(events, 1000)
    nvml.nvmlEventSetFree(events)


def test_a_waiter_is_woken_by_an_event(host: simulate.Controller) -> None:
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(_gpus()[0], nvml.nvmlEventTypeXidCriticalError, events)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(nvml.nvmlEventSetWait_v2(events, 60_000).eventData))
    thread.start()
    while host.calls("nvmlEventSetWait_v2") == 0:
        time.sleep(0.001)
    host.push_xid(0, 94)
    thread.join(60)
    nvml.nvmlEventSetFree(events)
    assert got == [94]


def test_a_waiter_sleeps_until_something_happens(host: simulate.Controller) -> None:
    events = nvml.nvmlEventSetCreate()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 300)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 10  # looking every 10 ms would take 30
    nvml.nvmlEventSetFree(events)


def test_a_waiter_ends_with_the_session(host: simulate.Controller) -> None:
    events = nvml.nvmlEventSetCreate()
    said: list[int] = []

    def wait() -> None:
        try:
            nvml.nvmlEventSetWait_v2(events, 60_000)
        except nvml.NVMLError as error:
            said.append(error.value)

    thread = threading.Thread(target=wait)
    thread.start()
    while host.calls("nvmlEventSetWait_v2") == 0:
        time.sleep(0.001)
    nvml.nvmlShutdown()
    thread.join(60)
    assert said == [nvml.NVML_ERROR_UNINITIALIZED]
    nvml.nvmlInit()
    nvml.nvmlEventSetFree(events)


def test_events_that_nobody_took_are_lost_oldest_first(host: simulate.Controller) -> None:
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(_gpus()[0], nvml.nvmlEventTypeXidCriticalError, events)
    for xid in range(100):
        host.push_xid(0, xid)
    assert [nvml.nvmlEventSetWait_v2(events, 0).eventData for _ in range(64)] == list(range(36, 100))
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 0)
    nvml.nvmlEventSetFree(events)


def test_no_type_of_event_that_nobody_knows(host: simulate.Controller) -> None:
    events = nvml.nvmlEventSetCreate()
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceRegisterEvents(_gpus()[0], 1 << 40, events)
    nvml.nvmlEventSetFree(events)
