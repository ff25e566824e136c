"""What goes wrong with GPUs, on the stand-in: lost, hung, removed, refused, and full of garbage."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from aie_agent import simulate
from aie_agent.simulate.layout import State
from tests.fakes.nvml_calls import gpm_between
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


def test_a_lost_gpu_says_so_and_the_others_go_on(host: simulate.Controller) -> None:
    gpus = _gpus()
    host.lose(1)
    for call in (nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetMemoryInfo):
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            call(gpus[1])
        assert all(call(gpu) is not None for gpu in (gpus[0], gpus[2]))
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetCount() == 4
    host.lose(1, lost=False)
    assert nvml.nvmlDeviceGetPowerUsage(gpus[1]) > 0


def test_the_count_changes_at_the_next_session_only(host: simulate.Controller) -> None:
    uuids = [nvml.nvmlDeviceGetUUID(gpu) for gpu in _gpus()]
    host.remove(1)
    assert nvml.nvmlDeviceGetCount() == 4
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert [nvml.nvmlDeviceGetUUID(gpu) for gpu in _gpus()] == [uuids[0], uuids[2], uuids[3]]
    assert [nvml.nvmlDeviceGetIndex(gpu) for gpu in _gpus()] == [0, 1, 2]
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(3)
    host.remove(1, removed=False)
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert [nvml.nvmlDeviceGetUUID(gpu) for gpu in _gpus()] == uuids


def test_sessions_are_counted_and_nothing_works_outside_one(host: simulate.Controller) -> None:
    gpu = _gpus()[0]
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetPowerUsage(gpu) > 0
    nvml.nvmlShutdown()
    for call in (lambda: nvml.nvmlDeviceGetPowerUsage(gpu), nvml.nvmlDeviceGetCount, nvml.nvmlShutdown):
        with pytest.raises(nvml.NVMLError_Uninitialized):
            call()
    assert host.calls("nvmlInitWithFlags") == 2


@pytest.mark.parametrize(
    "error", [nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.NVML_ERROR_NO_PERMISSION]
)
def test_no_session_for_a_reason(host: simulate.Controller, error: int) -> None:
    nvml.nvmlShutdown()
    host.fail_init(error)
    with pytest.raises(nvml.NVMLError) as raised:
        nvml.nvmlInit()
    assert raised.value.value == error
    host.fail_init(0)
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 4


def test_a_call_that_hangs_holds_up_nobody_else_and_can_be_called_off(host: simulate.Controller) -> None:
    gpus = _gpus()
    host.delay("nvmlDeviceGetPowerUsage", 3600, gpu=1)
    returned = threading.Event()

    def hang() -> None:
        nvml.nvmlDeviceGetPowerUsage(gpus[1])
        returned.set()

    thread = threading.Thread(target=hang)
    thread.start()
    while host.calls("nvmlDeviceGetPowerUsage") == 0:
        time.sleep(0.001)
    assert nvml.nvmlDeviceGetPowerUsage(gpus[0]) > 0
    assert nvml.nvmlDeviceGetTemperature(gpus[1], 0) > 0
    assert not returned.is_set()
    host.delay("nvmlDeviceGetPowerUsage", 0)
    thread.join(60)
    assert returned.is_set()


def test_pcie_throughput_takes_its_20_ms_a_direction(host: simulate.Controller) -> None:
    gpu = _gpus()[0]
    began = time.monotonic()
    for direction in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES):
        nvml.nvmlDeviceGetPcieThroughput(gpu, direction)
    assert time.monotonic() - began >= 0.04
    assert host.calls("nvmlDeviceGetPcieThroughput") == 2


def test_garbage_and_sentinels_come_through_as_they_are(host: simulate.Controller) -> None:
    gpu = _gpus()[0]
    host.fix(0, "gpu_percent", 37_100)
    host.fix(0, "memory_used_bytes", simulate.NOT_AVAILABLE)
    host.fix(0, "power_mw", 0xFFFFFFFF)
    host.set_processes(0, [simulate.Process(1, simulate.NOT_AVAILABLE, sm_percent=37_100, sample_age_us=3_600_000_000)])
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 37_100
    assert nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).used == 2**64 - 1
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 2**32 - 1
    assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu)[0].usedGpuMemory is None
    sample = nvml.nvmlDeviceGetProcessUtilization(gpu, 0)[0]
    assert sample.smUtil == 37_100
    assert sample.timeStamp < time.time_ns() // 1000 - 3_000_000_000
    host.unfix(0, "gpu_percent")
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0


def test_a_field_fails_alone(host: simulate.Controller) -> None:
    gpu = _gpus()[2]
    host.fail_field(82, nvml.NVML_ERROR_UNKNOWN, gpu=2)
    values = nvml.nvmlDeviceGetFieldValues(gpu, [82, 83, 99_999])
    assert [value.nvmlReturn for value in values] == [nvml.NVML_ERROR_UNKNOWN, nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_SUPPORTED]
    assert nvml.nvmlDeviceGetFieldValues(_gpus()[0], [82])[0].nvmlReturn == nvml.NVML_SUCCESS
    host.fail_field(82, 0, gpu=2)
    assert nvml.nvmlDeviceGetFieldValues(gpu, [82])[0].nvmlReturn == nvml.NVML_SUCCESS


def test_a_metric_of_gpm_fails_alone(host: simulate.Controller) -> None:
    gpu = _gpus()[1]
    host.fail_gpm(2, nvml.NVML_ERROR_NO_PERMISSION, gpu=1)
    results = gpm_between(lambda sample: nvml.nvmlGpmSampleGet(gpu, sample), lambda: host.advance(1), 2, 5)
    assert [error for error, _ in results] == [nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_SUCCESS]


def test_gpm_of_an_instance(host: simulate.Controller) -> None:
    host.set_mig(0, [simulate.MigInstance("1g.10gb", 7, 10 * GIB, 16, load_ratio=0.5)])
    gpu = _gpus()[0]
    results = gpm_between(lambda sample: nvml.nvmlGpmMigSampleGet(gpu, 7, sample), lambda: host.advance(1), 1, 2, 20)
    assert results[0] == (nvml.NVML_SUCCESS, pytest.approx(50, abs=0.01))
    assert results[1] == (nvml.NVML_SUCCESS, pytest.approx(41, abs=0.01))
    assert results[2][0] == nvml.NVML_ERROR_NOT_SUPPORTED


def test_an_unknown_version_of_a_struct_is_refused(host: simulate.Controller) -> None:
    gpu = _gpus()[0]
    with pytest.raises(nvml.NVMLError_ArgumentVersionMismatch):
        nvml.nvmlDeviceGetMemoryInfo(gpu, 2)
    for name, struct in (
        ("nvmlDeviceGetTemperatureV", nvml.c_nvmlTemperature_v1_t),
        ("nvmlDeviceGetMarginTemperature", nvml.c_nvmlMarginTemperature_v1_t),
        ("nvmlDeviceGetProcessesUtilizationInfo", nvml.c_nvmlProcessesUtilizationInfo_v1_t),
        ("nvmlDeviceGetRunningProcessDetailList", nvml.c_nvmlProcessDetailList_v1_t),
        ("nvmlGpmQueryDeviceSupport", nvml.c_nvmlGpmSupport_t),
    ):
        request = struct()
        request.version = 0x0900_0001
        result = nvml._nvmlGetFunctionPointer(name)(gpu, ctypes.byref(request))
        assert result == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, name
    assert host.calls("nvmlGpmQueryDeviceSupport") == 1


def test_instances(host: simulate.Controller) -> None:
    host.set_mig(0, [simulate.MigInstance("3g.40gb", 1, 40 * GIB, 60, 3, 3), simulate.MigInstance("1g.10gb", 7, 10 * GIB, 16)])
    host.set_processes(0, [simulate.Process(1, 5 * GIB, gpu_instance=1, compute_instance=0)])
    gpu = _gpus()[0]
    first, second = (nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number) for number in range(2))
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)
    assert nvml.nvmlDeviceGetName(first) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert nvml.nvmlDeviceGetUUID(first) != nvml.nvmlDeviceGetUUID(second)
    memory = nvml.nvmlDeviceGetMemoryInfo(first, nvml.nvmlMemory_v2)
    assert (memory.total, memory.used, memory.free) == (40 * GIB, 5 * GIB, 35 * GIB)
    assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(first)] == [1]
    assert nvml.nvmlDeviceGetComputeRunningProcesses(second) == []
    assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu)[0].gpuInstanceId == 1
    # What the classic calls cannot say of a GPU in parts, they do not say.
    for handle in (gpu, first):
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetUtilizationRates(handle)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetPowerUsage(first)
    host.set_mig(0, [])
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetName(first)


def test_no_reader_sees_half_a_change(host: simulate.Controller) -> None:
    gpu = _gpus()[0]
    torn: list[tuple[int, int, int]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            values = nvml.nvmlDeviceGetPciInfo(gpu), nvml.nvmlDeviceGetPciInfo(gpu)
            torn.extend(
                (pci.domain, pci.bus, pci.pciDeviceId) for pci in values if len({pci.domain, pci.bus, pci.pciDeviceId}) != 1
            )

    host.set(0, pci_domain=1, pci_bus=1, pci_device_id=1)
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2, 200):
        host.set(0, pci_domain=number, pci_bus=number, pci_device_id=number)
    stop.set()
    for thread in threads:
        thread.join()
    assert torn == []


def test_controllers_of_two_processes_do_not_undo_each_other(host: simulate.Controller) -> None:
    code = (
        "import sys; from pathlib import Path; from aie_agent import simulate\n"
        "with simulate.Controller(Path(sys.argv[1])) as other:\n"
        "    for number in range(200): other.set(1, pcie_replays=number)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(host.path)])
    number = 0
    while other.poll() is None:
        number += 1
        host.set(0, pcie_replays=number)
    assert other.returncode == 0
    assert [nvml.nvmlDeviceGetPcieReplayCounter(gpu) for gpu in _gpus()[:2]] == [number, 199]


def test_a_writer_that_died_half_way_holds_nobody_up_for_ever(host: simulate.Controller) -> None:
    gpu = _gpus()[0]
    with host.path.open("r+b") as file:
        file.seek(State.sequence.offset)
        sequence = int.from_bytes(file.read(8), "little")
        file.seek(State.sequence.offset)
        file.write((sequence + 1).to_bytes(8, "little"))
    assert nvml.nvmlDeviceGetIndex(gpu) == 0
    host.set(0, pcie_replays=5)
    assert nvml.nvmlDeviceGetPcieReplayCounter(gpu) == 5


def test_nonsense_is_no_state_file(tmp_path: Path) -> None:
    for content in (b"", b"short", bytes(ctypes.sizeof(State))):
        path = tmp_path / "nonsense"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="no state file of simulated GPUs"):
            simulate.Controller(path)
    with pytest.raises(ValueError, match="257 processes"), simulate.Controller.create(tmp_path / "full", 1) as full:
        full.set_processes(0, [simulate.Process(pid, 1) for pid in range(257)])
    for gpus, profile in ((0, "H100"), (17, "H100"), (1, "H9000")):
        with pytest.raises(ValueError, match="simulated GPU"):
            simulate.Controller.create(tmp_path / "new", gpus, profile)


def test_a_temporary_state_file_goes_with_its_controller() -> None:
    with simulate.install(1) as host:
        assert host.path.exists()
    assert not host.path.exists()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 1
    nvml.nvmlShutdown()
    simulate.uninstall()
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()


def test_it_says_that_it_is_simulated(host: simulate.Controller) -> None:
    assert simulate.is_simulated()
    assert nvml.nvmlDeviceGetSerial(_gpus()[0]).startswith("SIMULATED")
    assert len({nvml.nvmlDeviceGetUUID(gpu) for gpu in _gpus()}) == 4
    assert len({nvml.nvmlDeviceGetName(gpu) for gpu in _gpus()}) == 1
