"""Every error that NVML has, on every call of the table, and what else a driver or a library may do to the source."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from aie_agent.simulate import GRAPHICS, MIB, MPS, Controller, MigInstance, Process
from aie_agent.simulate.layout import FUNCTIONS
from aie_agent.sources.nvml.memory import Memory
from aie_agent.sources.nvml.rows import FIELDS, ROWS, Row
from aie_agent.sources.nvml.source import NvmlSource
from aie_telemetry.catalogue import CATALOGUE
from tests.integration.agent import nvml_host as host

GPUS = 2
CODES = sorted({value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and value > 0})
FOR_GOOD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED,
}
LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}

LISTS = tuple(f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute"))
OF_MIG = (
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlGpmMigSampleGet",
)
OF_ALL_GPUS = ("nvmlDeviceGetHandleByIndex_v2", "nvmlGpmSampleAlloc", "nvmlGpmMetricsGet")
# Asked where the newer one is not there.
NEWER = {
    "nvmlDeviceGetMemoryInfo": ("nvmlDeviceGetMemoryInfo_v2",),
    "nvmlDeviceGetProcessUtilization": ("nvmlDeviceGetProcessesUtilizationInfo",),
    **{f"{name}_v2": (f"{name}_v3",) for name in LISTS},
    **{name: (f"{name}_v2", f"{name}_v3") for name in LISTS},
}

# Every function that the source calls of a GPU: of the table, and those around it.
AROUND = (
    *OF_MIG,
    *(name + version for name in LISTS for version in ("", "_v2", "_v3")),
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetProcessUtilization",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleGet",
)
KNOWN = {function.name for function in FUNCTIONS}
CALLS = sorted({row.call for row in ROWS if row.call in KNOWN}.union(AROUND))


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Controller]:
    with host.simulated(tmp_path / "gpus", GPUS, "H100") as controller:
        host.quiet(controller, GPUS)
        yield controller


def test_the_table_is_of_functions_that_exist() -> None:
    for row in ROWS:
        assert hasattr(pynvml, row.call), row.call
        metric = CATALOGUE[row.metric]
        assert metric.labels[0] == "gpu"
        assert len(metric.labels) == 1 + len(row.labels), row


def prepare(gpus: Controller, call: str) -> None:
    """Makes GPU 0 one of which the source asks this."""
    gpus.set_processes(0, [Process(10, 3 << 30), Process(20, 2 << 30, GRAPHICS), Process(30, 1 << 30, MPS)])
    gpus.set_processes(1, [Process(40, 4 << 30)])
    for newer in NEWER.get(call, ()):
        gpus.fail(newer, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    for place, row in enumerate(ROWS):
        for better in ROWS[:place] if row.call == call else ():
            if (better.metric, better.labels) == (row.metric, row.labels) and not better.each_link:
                take_away(gpus, better)
    if call in OF_MIG:
        gpus.set_mig(0, [MigInstance("1g.10gb", number, 9728 * MIB, 16, load_ratio=0.5) for number in (7, 8)])


def take_away(gpus: Controller, row: Row) -> None:
    """GPUs lack what a row of the table asks for."""
    if row.call == FIELDS:
        gpus.fail_field(row.args[0], pynvml.NVML_ERROR_NOT_SUPPORTED)
    elif row.call in KNOWN:
        gpus.fail(row.call, pynvml.NVML_ERROR_NOT_SUPPORTED)


def pids(at: NvmlSource, gpu: int) -> set[int] | None:
    """The processes of a GPU, None where they are not told."""
    found = at._on_gpus.get(gpu)
    return None if found is None or found.contexts is None else {context.pid for context in found.contexts}


def lasting(found: host.Numbers) -> host.Numbers:
    """What is the same at every look while time stands still."""
    passing = ("_total", "per_second", "_active_ratio", "_occupancy_ratio")
    return {key: value for key, value in found.items() if not key[0].endswith(passing)}


def source_for(call: str) -> NvmlSource:
    """A source that asks for this, and leaves alone for a minute what is lost. GPM would tell of PCIe in a better way."""
    return host.source(host.section(retry=60.0, gpm=call != "nvmlDeviceGetPcieThroughput"))


async def healed(at: NvmlSource, call: str, whole: host.Numbers, of_gpu: dict[int, set[int] | None], code: int) -> NvmlSource:
    """The source after the error is over, which has everything again: a new one, where it was told that it is for good."""
    at._next_try_s = at._next_revival_s = 0.0
    if code in FOR_GOOD:
        await at.close()
        at = source_for(call)
    found = await host.until(at, lambda found: lasting(found).keys() >= lasting(whole).keys())
    assert lasting(found) == lasting(whole)
    assert {gpu: pids(at, gpu) for gpu in range(GPUS)} == of_gpu
    return at


@pytest.mark.parametrize("call", [*CALLS, *OF_ALL_GPUS])
async def test_any_error_on_any_call_spoils_nothing_else_and_is_over_when_it_is(
    gpus: Controller, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """GPU 0 answers one call with each error in turn; GPU 1 must not notice, nothing may be made up, and nothing stays away."""
    caplog.set_level(logging.ERROR)
    prepare(gpus, call)
    asked = gpus.calls(call)
    at = source_for(call)
    await host.look(at)
    await asyncio.sleep(0.11)  # GPM's least interval
    whole = await host.look(at)
    assert gpus.calls(call) > asked, "it is not asked for at all"
    of_gpu = {gpu: pids(at, gpu) for gpu in range(GPUS)}
    await at.close()
    of_one = None if call in OF_ALL_GPUS else 0
    for code in CODES:
        gpus.fail(call, code, gpu=of_one)
        at = source_for(call)
        for _ in range(2):
            found = await host.look(at)
        reasons = host.up(found)
        assert reasons["1"] == "" or of_one is None
        assert code not in LOST or reasons["0"] in ("lost", "reset_required", ""), (call, code)
        assert pids(at, 1) == of_gpu[1] or of_one is None
        assert (pids(at, 0) or set()) <= (of_gpu[0] or set())
        assert {key[0] for key in found} <= CATALOGUE.keys()
        for key, value in lasting(found).items():
            if "0" in key[1:] and key in whole:
                # What is there is what it was: nothing became 0 for want of an answer.
                assert value == whole[key] or key[0] in ("aie_gpu_memory_used_bytes", "aie_gpu_up"), (call, code, key)
        gpus.fail(call, 0, gpu=of_one)
        at = await healed(at, call, whole, of_gpu, code)
        await at.close()
    assert not caplog.records, [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("code", CODES)
async def test_any_error_on_a_field_is_only_the_fields(gpus: Controller, code: int) -> None:
    gpus.fail_field(82, code, gpu=0)
    at = host.source(host.section(retry=60.0))
    for _ in range(2):
        found = await host.look(at)
    assert ("aie_gpu_temperature_celsius", "0", "memory") not in found
    assert ("aie_gpu_temperature_celsius", "1", "memory") in found
    if code not in LOST:
        assert ("aie_gpu_energy_joules_total", "0") in found
        assert host.up(found)["0"] == ""
    await at.close()


@pytest.mark.parametrize("code", CODES)
async def test_any_error_of_all_calls_is_a_gpu_that_is_down(gpus: Controller, code: int) -> None:
    for function in CALLS:
        gpus.fail(function, code, gpu=0)
    at = host.source(host.section(retry=60.0), memory=Memory(2, 1, 1))
    for _ in range(2):
        found = await host.look(at)
    assert host.up(found)["0"] in ("lost", "reset_required", "error")
    assert host.up(found)["1"] == ""
    assert not [key for key in found if key[0] not in ("aie_gpu_up", "aie_gpu_info") and key[1:2] == ("0",)]
    await at.close()


@pytest.mark.parametrize("code", CODES)
async def test_any_error_of_the_session_is_a_reason(gpus: Controller, code: int) -> None:
    for function in ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2"):
        gpus.fail(function, code)
        at = host.source()
        assert "NVML" in (line := await host.reason(at)) or "NVIDIA" in line or "driver" in line or "nvmlInit" in line
        assert "\n" not in line
        await at.close()
        gpus.fail(function, 0)


class NullHandles:
    """The binding, but for one GPU of which it gives NULL."""

    def __init__(self) -> None:
        self.passed_on: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        if name == "nvmlDeviceGetHandleByIndex":
            return lambda index: None if index == 0 else value(index)
        if name.startswith("nvmlDevice") and callable(value):
            return lambda *arguments: self._call(name, value, arguments)
        return value

    def __dir__(self) -> list[str]:
        return dir(pynvml)

    def _call(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        if arguments and arguments[0] is None:
            self.passed_on.append(name)
        return function(*arguments)


async def test_a_null_handle_is_never_passed_on(gpus: Controller) -> None:
    binding = NullHandles()
    at = host.source(load=lambda: binding)
    for _ in range(3):
        found = await host.look(at)
    assert host.up(found) == {"0": "error", "1": ""}
    assert binding.passed_on == []
    await at.close()


async def test_names_that_are_no_text_are_no_end(gpus: Controller) -> None:
    def broken(_: Any) -> str:
        return b"\xff\xfe".decode()

    names = {name: getattr(pynvml, name) for name in dir(pynvml)}
    binding = SimpleNamespace(**names | {"nvmlDeviceGetName": broken})
    at = host.source(load=lambda: binding)
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": ""}
    await at.close()


async def test_descriptors_stay_the_same_over_10000_cycles(gpus: Controller) -> None:
    """And so do threads. NVML is opened once."""
    at = host.source(host.section(slow_period=10.0))
    for _ in range(20):
        await at.collect(time.time())
    gc.collect()  # what tests before left in cycles may hold descriptors
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(10_000):
        await at.collect(time.time())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(os.listdir("/proc/self/task")) <= threads
    assert gpus.calls("nvmlInitWithFlags") == 1
    assert gpus.calls("nvmlGpmSampleAlloc") == 2 * GPUS
    await at.close()


async def test_descriptors_stay_the_same_however_often_it_is_given_back(gpus: Controller) -> None:
    at = host.source()
    await host.look(at)
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        at.release()
        await host.reason(at)
        at.release()
        await host.look(at)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert gpus.calls("nvmlInitWithFlags") == gpus.calls("nvmlShutdown") + 1
    assert gpus.calls("nvmlGpmSampleAlloc") == gpus.calls("nvmlGpmSampleFree") + 2 * GPUS
    await at.close()


async def test_200_processes_that_come_and_go_leave_nothing_behind(gpus: Controller) -> None:
    at = host.source()
    numbers = itertools.count(100_000)

    async def churn(cycles: int) -> int:
        for _ in range(cycles):
            gpus.set_processes(0, [Process(next(numbers) % 4_000_000, 1 << 20) for _ in range(200)])
            assert host.up(await host.look(at))["0"] == ""
        gc.collect()
        return len(gc.get_objects())

    await churn(20)
    before = await churn(10)
    assert await churn(60) < before + 2_000
    await at.close()


async def test_gpus_that_come_and_go_at_random_never_confuse_it(gpus: Controller) -> None:
    dice = random.Random(4)
    at = host.source(host.section(released_for=60.0))
    for _ in range(40):
        action = dice.randrange(4)
        gpu = dice.randrange(GPUS)
        if action == 0:
            gpus.lose(gpu, lost=dice.random() < 0.5)
        elif action == 1:
            gpus.remove(gpu, removed=dice.random() < 0.5)
        elif action == 2:
            at.release()
            await host.reason(at)
            at.release()
        found = await host.look(at)
        assert found["aie_gpu_present",] == sum(reason == "" for reason in host.up(found).values())
        assert found["aie_gpu_expected",] >= found["aie_gpu_present",]
        assert len(host.up(found)) <= GPUS
    await at.close()


async def test_a_session_that_hangs_is_a_reason_and_the_loop_goes_on(gpus: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie_agent.sources.nvml.source._OPEN_PATIENCE_S", 0.1)
    gpus.delay("nvmlInitWithFlags", 600.0)
    at = host.source()
    try:
        assert "hangs" in await host.reason(at)
        began_s = asyncio.get_running_loop().time()
        assert "hangs" in await host.reason(at)
        assert asyncio.get_running_loop().time() - began_s < 60
    finally:
        gpus.delay("nvmlInitWithFlags", 0.0)
    monkeypatch.setattr("aie_agent.sources.nvml.source._OPEN_PATIENCE_S", 60.0)
    while at._lanes.away():  # noqa: ASYNC110 - the test's own time limit ends it
        await asyncio.sleep(0.01)
    assert host.up(await host.look(at)) == {"0": "", "1": ""}
    await at.close()


def test_field_values_are_asked_in_one_call() -> None:
    fields = [row for row in ROWS if row.call == FIELDS]
    assert len(fields) > 20
    assert len({row.args for row in fields}) == len(fields)
