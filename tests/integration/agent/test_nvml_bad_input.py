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

from aie_agent.simulate import Controller, Process
from aie_agent.simulate.layout import FUNCTIONS
from aie_agent.sources.nvml.memory import Memory
from aie_agent.sources.nvml.rows import FIELDS, ROWS
from aie_telemetry.catalogue import CATALOGUE
from tests.integration.agent import nvml_host as host

GPUS = 2
CODES = sorted({value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and value > 0})
LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}

# Every function that the source calls of a GPU: of the table, and those around it.
AROUND = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
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


@pytest.mark.parametrize("call", CALLS)
async def test_any_error_on_any_call_spoils_nothing_else(gpus: Controller, call: str, caplog: pytest.LogCaptureFixture) -> None:
    """GPU 0 answers one call with each error in turn; GPU 1 must not notice, and nothing may be made up."""
    caplog.set_level(logging.ERROR)
    for code in CODES:
        at = host.source(host.section(retry=60.0))
        whole = await host.look(at)
        await at.close()
        gpus.fail(call, code, gpu=0)
        at = host.source(host.section(retry=60.0))
        for _ in range(2):
            found = await host.look(at)
        reasons = host.up(found)
        assert reasons["1"] == ""
        assert code not in LOST or reasons["0"] in ("lost", "reset_required", ""), (call, code)
        for key, value in found.items():
            assert key[0] in CATALOGUE
            if "0" in key[1:] and key in whole and not key[0].endswith("_total") and "per_second" not in key[0]:
                # What is there is what it was: nothing became 0 for want of an answer.
                assert value == whole[key] or key[0] in ("aie_gpu_memory_used_bytes", "aie_gpu_up"), (
                    call,
                    code,
                    key,
                )
        gpus.fail(call, 0, gpu=0)
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
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(10_000):
        await at.collect(time.time())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(os.listdir("/proc/self/task")) <= threads
    assert gpus.calls("nvmlInitWithFlags") == 1
    assert gpus.calls("nvmlGpmSampleAlloc") == 2 * GPUS
    await at.close()


async def test_descriptors_stay_the_same_however_often_it_is_given_back(gpus: Controller) -> None:
    at = host.source()
    await host.look(at)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        at.release()
        await host.reason(at)
        at.release()
        await host.look(at)
    assert len(os.listdir("/proc/self/fd")) == descriptors
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
        assert asyncio.get_running_loop().time() - began_s < 5
    finally:
        gpus.delay("nvmlInitWithFlags", 0.0)
    for _ in range(1000):
        if not at._lanes.away():
            break
        await asyncio.sleep(0.01)
    assert host.up(await host.look(at)) == {"0": "", "1": ""}
    await at.close()


def test_field_values_are_asked_in_one_call() -> None:
    fields = [row for row in ROWS if row.call == FIELDS]
    assert len(fields) > 20
    assert len({row.args for row in fields}) == len(fields)
