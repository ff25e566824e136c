"""Who is on a GPU, in the layouts that drivers have had, and how busy each is: from the stand-in, through the real binding."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent import simulate
from aie_agent.simulate import GRAPHICS, MPS, NOT_AVAILABLE, Process
from aie_agent.sources.nvml.door import Absent, Device, Door
from aie_agent.sources.nvml.processes import LAYOUTS, Context, Entry, ProcessReader, decode, is_plausible

GIB = 1 << 30
TOTAL = 80.0 * GIB
LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[simulate.Controller]:
    controller = simulate.install(1, "H100", state_file=tmp_path / "gpus")
    controller.freeze()
    pynvml.nvmlInit()
    yield controller
    pynvml.nvmlShutdown()
    controller.close()


def reader(exists: Callable[[int], bool] | None = lambda _: True) -> tuple[Door, ProcessReader]:
    door = Door(pynvml)
    return door, ProcessReader(door, Device(0, pynvml.nvmlDeviceGetHandleByIndex(0)), exists)


def read(of: ProcessReader, wall_s: float | None = None) -> list[Context]:
    found = of.read(TOTAL, time.time() if wall_s is None else wall_s)
    assert not isinstance(found, Absent)
    return found


def memories(of: ProcessReader) -> dict[int, int | None]:
    return {context.pid: context.memory_bytes for context in read(of)}


def test_the_three_lists_are_one(gpus: simulate.Controller) -> None:
    _, processes = reader()
    assert read(processes) == []
    gpus.set_processes(0, [Process(30, GIB, MPS), Process(10, 2 * GIB), Process(20, 3 * GIB, simulate.COMPUTE | GRAPHICS)])
    found = read(processes)
    assert [(each.pid, each.kind, each.memory_bytes) for each in found] == [
        (10, "compute", 2 * GIB),
        (20, "compute+graphics", 3 * GIB),
        (30, "mps", GIB),
    ]


def test_memory_that_the_driver_does_not_tell_is_none(gpus: simulate.Controller) -> None:
    _, processes = reader()
    gpus.set_processes(0, [Process(10, NOT_AVAILABLE), Process(20, GIB)])
    assert memories(processes) == {10: None, 20: GIB}


@pytest.mark.parametrize("missing", [(), ("_v3",), ("_v3", "_v2"), ("_v2",)])
def test_the_lists_of_older_drivers(gpus: simulate.Controller, missing: tuple[str, ...]) -> None:
    for ending in missing:
        for name in LISTS:
            gpus.fail(name + ending, 13)
    gpus.set_processes(0, [Process(10, GIB), Process(20, 2 * GIB)])
    _, processes = reader()
    assert memories(processes) == {10: GIB, 20: 2 * GIB}


def test_entries_that_are_longer_than_their_name_says(gpus: simulate.Controller) -> None:
    """The first drivers of 535: nvitop and others showed scrambled pids."""
    with gpus.edit() as config:
        config.process_info_bytes = 32
    gpus.set_processes(0, [Process(pid, pid * GIB) for pid in (11, 12, 13, 14)])
    _, processes = reader(lambda pid: pid in (11, 12, 13, 14))
    assert memories(processes) == {pid: pid * GIB for pid in (11, 12, 13, 14)}


def test_pids_that_do_not_exist_are_not_shown_where_layouts_disagree(gpus: simulate.Controller) -> None:
    for ending in ("_v2", ""):
        gpus.fail(LISTS[0] + ending, 13)
    with gpus.edit() as config:
        config.process_info_bytes = 32
    gpus.set_processes(0, [Process(11, NOT_AVAILABLE)])
    door, processes = reader(lambda _: False)
    assert memories(processes) == {11: None}, "one entry reads the same in both: it is a process that is gone"
    gpus.set_processes(0, [Process(11, GIB), Process(5_000_000, GIB)])
    assert read(processes) == [], "no kernel gives such a pid"
    assert door.errors()[LISTS[0], "implausible"] == 1


def test_a_list_that_grows_between_two_calls(gpus: simulate.Controller) -> None:
    _, processes = reader()
    for count in (3, 250, 5, 256):
        gpus.set_processes(0, [Process(1000 + pid, 1 << 20) for pid in range(count)])
        assert len(read(processes)) == count


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 7, 9, 10, 13, 15, 16, 17, 25, 999])
@pytest.mark.parametrize("function", [*(name + "_v3" for name in LISTS), "nvmlDeviceGetProcessesUtilizationInfo"])
def test_every_error_on_every_call(gpus: simulate.Controller, function: str, code: int) -> None:
    gpus.fail(function, code)
    gpus.set_processes(0, [Process(10, GIB, sm_percent=50)])
    _, processes = reader()
    now_s = time.time()
    for second in range(3):
        found = processes.read(TOTAL, now_s + second)
        if not isinstance(found, Absent):
            assert [(each.pid, each.memory_bytes) for each in found] in ([], [(10, GIB)])


def test_utilisation_of_each_process(gpus: simulate.Controller) -> None:
    gpus.set_processes(0, [Process(10, GIB, sm_percent=42), Process(20, GIB, sm_percent=0, memory_percent=0)])
    _, processes = reader()
    now_s = time.time()
    first = {each.pid: each.sm_ratio for each in read(processes, now_s)}
    assert first == {10: 0.42, 20: None}, "one that was not listed before may be too new for a sample"
    gpus.advance(1.0)
    second = {each.pid: each.sm_ratio for each in read(processes, now_s + 1)}
    assert second == {10: 0.42, 20: 0.0}


def test_no_new_samples_is_no_use_and_never_flickers(gpus: simulate.Controller) -> None:
    gpus.set_processes(0, [Process(10, GIB, sm_percent=42)])
    door, processes = reader()
    now_s = time.time()
    assert read(processes, now_s)[0].sm_ratio == 0.42
    assert read(processes, now_s + 0.5)[0].sm_ratio == 0.42, "the driver had no new sample yet"
    gpus.set_processes(0, [Process(10, GIB, sm_percent=0, memory_percent=0)])
    assert read(processes, now_s + 4)[0].sm_ratio == 0.0
    assert door.errors() == {}, "that is no error"


class Refusing:
    """The binding, whose utilisation call has grown too much between its two steps for some calls to come."""

    def __init__(self) -> None:
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        return self._ask if name == "nvmlDeviceGetProcessesUtilizationInfo" else value

    def __dir__(self) -> list[str]:
        return dir(pynvml)

    def _ask(self, *arguments: Any) -> Any:
        if self.refusals > 0:
            self.refusals -= 1
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        return pynvml.nvmlDeviceGetProcessesUtilizationInfo(*arguments)


def test_utilisation_of_more_processes_than_there_was_room_for_is_asked_again(gpus: simulate.Controller) -> None:
    gpus.set_processes(0, [Process(10, GIB, sm_percent=42), Process(20, GIB, sm_percent=0, memory_percent=0)])
    binding = Refusing()
    door = Door(binding)
    processes = ProcessReader(door, Device(0, pynvml.nvmlDeviceGetHandleByIndex(0)), lambda _: True)
    now_s = time.time()
    binding.refusals = 1
    assert {each.pid: each.sm_ratio for each in read(processes, now_s)} == {10: 0.42, 20: None}
    binding.refusals = 2
    held = {each.pid: each.sm_ratio for each in read(processes, now_s + 1)}
    assert held == {10: 0.42, 20: None}, "the last sample holds, and of who has none nothing is known"
    assert binding.refusals == 0
    assert read(processes, now_s + 1)[1].sm_ratio == 0.0
    assert door.errors() == {}


def test_garbage_is_dropped(gpus: simulate.Controller) -> None:
    """nvtop showed 37100 %, and samples of long ago as if they were new."""
    gpus.set_processes(0, [Process(10, GIB, sm_percent=37100), Process(20, GIB, sm_percent=50, sample_age_us=60_000_000)])
    door, processes = reader()
    now_s = time.time()
    assert {each.pid: each.sm_ratio for each in read(processes, now_s)} == {10: None, 20: None}
    assert door.errors()["nvmlDeviceGetProcessesUtilizationInfo", "implausible"] == 1
    assert {each.pid: each.sm_ratio for each in read(processes, now_s + 1)} == {10: 0.0, 20: 0.0}


def test_times_from_the_future_do_not_deafen_it(gpus: simulate.Controller) -> None:
    gpus.set_processes(0, [Process(10, GIB, sm_percent=50, sample_age_us=-3_600_000_000 % 2**32 - 2**32)])
    _, processes = reader()
    now_s = time.time()
    assert read(processes, now_s)[0].sm_ratio is None
    gpus.set_processes(0, [Process(10, GIB, sm_percent=60)])
    gpus.advance(1.0)
    assert read(processes, now_s + 1)[0].sm_ratio == 0.6


def test_drivers_without_the_newer_call_are_asked_by_the_older(gpus: simulate.Controller) -> None:
    gpus.fail("nvmlDeviceGetProcessesUtilizationInfo", 13)
    gpus.set_processes(0, [Process(10, GIB, sm_percent=42)])
    _, processes = reader()
    assert read(processes)[0].sm_ratio == 0.42
    gpus.fail("nvmlDeviceGetProcessUtilization", 3)
    gpus.advance(10.0)
    assert read(processes, time.time() + 10)[0].sm_ratio is None


def test_a_lost_gpu_has_no_list(gpus: simulate.Controller) -> None:
    gpus.set_processes(0, [Process(10, GIB)])
    _, processes = reader()
    read(processes)
    gpus.lose(0)
    assert processes.read(TOTAL, time.time()) == Absent("lost")


def test_churn_costs_no_memory(gpus: simulate.Controller) -> None:
    """200 processes that come and go at each look; the second thousand looks leaves nothing behind."""
    _, processes = reader()
    now_s = time.time()
    for look in range(50):
        gpus.set_processes(0, [Process(1000 + 200 * look + pid, 1 << 20, sm_percent=1) for pid in range(200)])
        gpus.advance(1.0)
        assert len(read(processes, now_s + look)) == 200
    assert len(processes._utilization._latest) <= 200
    assert len(processes._device.unsupported) <= 1


@given(st.binary(max_size=400))
def test_any_bytes_are_judged(content: bytes) -> None:
    for layout in LAYOUTS:
        entries = decode(layout, content, len(content) // layout.entry.size)
        if is_plausible(entries, TOTAL):
            assert all(0 < entry.pid <= 1 << 22 for entry in entries)


def test_layouts_are_c_s() -> None:
    """As the binding, which follows the header, has them."""
    assert LAYOUTS[0].entry.size == LAYOUTS[2].entry.size == pynvml.sizeof(pynvml.c_nvmlProcessInfo_v2_t)
    assert LAYOUTS[1].entry.size == pynvml.sizeof(pynvml.c_nvmlProcessDetail_v1_t)
    packed = struct.pack("=IIQII", 7, 0, GIB, 0xFFFFFFFF, 0xFFFFFFFF)
    assert decode(LAYOUTS[0], packed, 1) == [Entry(7, GIB, None)]
    assert decode(LAYOUTS[3], packed[:16], 1) == [Entry(7, GIB, None)]


def test_a_real_process_is_there_and_then_not(gpus: simulate.Controller) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    gpus.set_processes(0, [Process(sleeper.pid, GIB)])
    _, processes = reader(lambda pid: os.path.exists(f"/proc/{pid}"))
    assert memories(processes) == {sleeper.pid: GIB}
    sleeper.communicate(b"\n")
    assert memories(processes) == {sleeper.pid: GIB}, "the driver still holds it: that is what is to be seen"
