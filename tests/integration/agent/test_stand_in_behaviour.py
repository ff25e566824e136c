"""How simulated GPUs behave: what moves, what adds up, and what only ever rises."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pynvml as nvml
import pytest

from aie_agent import simulate
from tests.fakes.nvml_calls import gpm_between
from tests.fakes.stand_in import needs_compiler, simulated

pytestmark = needs_compiler

GIB = 1 << 30
MONOTONE_FIELDS = (74, 75, 78, 83, 138, 139, 197, 198)


def _field(gpu: object, field: int, scope: int = 0) -> int:
    value = nvml.nvmlDeviceGetFieldValues(gpu, [(field, scope)])[0]
    assert value.nvmlReturn == nvml.NVML_SUCCESS
    return int(value.value.uiVal if value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_INT else value.value.ullVal)


@pytest.mark.parametrize("profile", [name for name in simulate.PROFILES if name != "GB10"])
def test_memory_adds_up_in_both_versions(tmp_path: Path, profile: str) -> None:
    with simulated(tmp_path / "state", 1, profile) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        for held in ([], [3 * GIB], [3 * GIB, 7 * GIB, 500 * GIB]):
            host.set_processes(0, [simulate.Process(100 + row, size) for row, size in enumerate(held)])
            second = nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)
            first = nvml.nvmlDeviceGetMemoryInfo(gpu)
            processes = sum(process.usedGpuMemory for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
            assert second.used + second.reserved + second.free == second.total
            assert second.total == simulate.PROFILES[profile].memory_total_mib * simulate.MIB
            assert first.used == second.used + second.reserved
            assert first.free == second.free
            assert second.used == processes + simulate.MIB


def test_a_process_that_grows_stops_where_memory_ends(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1, "A100") as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_processes(0, [simulate.Process(100, 10 * GIB, growth_bytes_per_s=GIB)])
        host.advance(5)
        assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu)[0].usedGpuMemory == 15 * GIB
        host.advance(1000)
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)
        assert memory.free == 0
        assert memory.used + memory.reserved == memory.total


def test_energy_is_power_times_time(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 0.5)
        before = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
        host.advance(10)
        assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - before == pytest.approx(
            10 * nvml.nvmlDeviceGetPowerUsage(gpu), abs=2
        )


def test_frozen_time_gives_the_same_answer_and_running_time_another(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 0.5, swing_ratio=0.4, period_s=8)
        assert len({nvml.nvmlDeviceGetPowerUsage(gpu) for _ in range(50)}) == 1
        seen = set()
        for _ in range(8):
            host.advance(1)
            seen.add(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        assert len(seen) > 3
        assert all(10 <= percent <= 90 for percent in seen)
        host.run(scale=1000)
        first = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
        while nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == first:
            pass


def test_counters_never_fall_whatever_happens(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        last = dict.fromkeys(MONOTONE_FIELDS, 0)
        for step in range(40):
            host.set_load(0, step % 3 / 2, swing_ratio=0.3, period_s=3)
            host.throttle(0, 0x40 if step % 2 else 0)
            host.set_link(0, width=16 if step % 4 else 8)
            host.set(0, power_limit_mw=300_000 if step % 8 else 700_000)
            host.advance(step % 5 / 10)
            now = {field: _field(gpu, field, 0xFFFFFFFF) for field in MONOTONE_FIELDS}
            assert all(now[field] >= last[field] for field in MONOTONE_FIELDS)
            last = now
        assert all(last.values())


def test_a_link_of_nvlink_carries_its_share(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 1.0)
        host.advance(10)
        total = _field(gpu, 138, 0xFFFFFFFF)
        assert sum(_field(gpu, 138, link) for link in range(18)) == pytest.approx(total, rel=1e-6)
        assert _field(gpu, 139, 0xFFFFFFFF) < total


def test_throttling_shows_in_clocks_power_and_violation_time(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 0.9)
        free_clock, free_power = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM), nvml.nvmlDeviceGetPowerUsage(gpu)
        host.throttle(0, nvml.nvmlClocksEventReasonHwThermalSlowdown)
        before = _field(gpu, 270)
        host.advance(3)
        assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == nvml.nvmlClocksEventReasonHwThermalSlowdown
        assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) < free_clock
        assert nvml.nvmlDeviceGetPowerUsage(gpu) < free_power
        assert nvml.nvmlDeviceGetTemperature(gpu, 0) >= nvml.nvmlDeviceGetTemperatureThreshold(gpu, 1)
        assert _field(gpu, 270) - before == pytest.approx(3e9, rel=1e-6)
        assert nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_THERMAL).violationTime == _field(gpu, 75)


def test_a_lower_power_limit_is_kept_by_lower_clocks(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 1.0)
        free_clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
        host.set(0, power_limit_mw=300_000)
        assert nvml.nvmlDeviceGetPowerUsage(gpu) == 300_000
        assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & nvml.nvmlClocksEventReasonSwPowerCap
        assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) < free_clock


def test_a_narrower_link_carries_less(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 1.0)
        wide = nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)
        host.set_link(0, width=4, generation=3)
        assert nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu) == 4
        assert nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu) == 3
        assert nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu) == 16
        assert nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) < wide / 10


def test_only_some_products_let_the_link_go_when_idle(tmp_path: Path) -> None:
    for profile, idle_generation in (("H100", 5), ("L40S", 1)):
        with simulated(tmp_path / profile, 1, profile) as host:
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            assert nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu) == idle_generation
            host.set_load(0, 0.5)
            assert nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu) == nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)


def test_gpm_says_what_happened_between_two_samples(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 2) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.fix(0, "sm_ppm", 300_000)
        host.fix(0, "pcie_tx_kb_per_s", 1_048_576)

        def move_on() -> None:
            host.advance(1)
            host.fix(0, "sm_ppm", 500_000)
            # Counters move when they are read: here, as another monitor would.
            nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
            host.advance(1)

        results = gpm_between(lambda sample: nvml.nvmlGpmSampleGet(gpu, sample), move_on, 2, 20, 9999)
        # 1 s at 30 % was read only after the change to 50 %: what was not looked at takes the later rate.
        assert results[0] == (nvml.NVML_SUCCESS, pytest.approx(50, abs=0.01))
        assert results[1] == (nvml.NVML_SUCCESS, pytest.approx(1000, abs=0.1))
        assert results[2][0] == nvml.NVML_ERROR_NOT_SUPPORTED


def test_gpm_refuses_samples_that_do_not_belong_together(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 2) as host:
        gpus = iter([nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetHandleByIndex(1)])
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            gpm_between(lambda sample: nvml.nvmlGpmSampleGet(next(gpus), sample), lambda: host.advance(1), 2)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = 2
        with pytest.raises(nvml.NVMLError_ArgumentVersionMismatch):
            nvml.nvmlGpmMetricsGet(request)


def test_before_hopper_there_is_no_gpm(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1, "A100"):
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice == 0
        sample = nvml.nvmlGpmSampleAlloc()
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlGpmSampleGet(gpu, sample)
        nvml.nvmlGpmSampleFree(sample)


def test_samples_come_once(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 0.5, swing_ratio=0.2, period_s=1)
        host.advance(1)
        kind, samples = nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, 0)
        times = [sample.timeStamp for sample in samples]
        assert kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT
        assert times == sorted(set(times))
        assert {later - earlier for earlier, later in itertools.pairwise(times)} == {20_000}
        assert len({sample.sampleValue.uiVal for sample in samples}) > 10
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, times[-1])
        host.advance(0.1)
        assert len(nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, times[-1])[1]) == 5


def test_utilisation_of_processes_comes_once_and_shares_the_load(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1) as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_load(0, 0.8)
        host.set_processes(0, [simulate.Process(os.getpid(), GIB), simulate.Process(2, GIB)])
        host.advance(1)
        samples = nvml.nvmlDeviceGetProcessUtilization(gpu, 0)
        assert [(sample.pid, sample.smUtil) for sample in samples] == [(os.getpid(), 40), (2, 40)]
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetProcessUtilization(gpu, samples[0].timeStamp)
        host.set_load(0, 0.0)
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetProcessUtilization(gpu, 0)


def test_topology(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 8):
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
        levels = [nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[0], other) for other in gpus]
        assert levels == [
            nvml.NVML_TOPOLOGY_INTERNAL,
            nvml.NVML_TOPOLOGY_SINGLE,
            nvml.NVML_TOPOLOGY_NODE,
            nvml.NVML_TOPOLOGY_NODE,
            *[nvml.NVML_TOPOLOGY_SYSTEM] * 4,
        ]
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetNumaNodeId(gpus[0])


def test_unified_memory_has_no_memory_figures_but_processes_have(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1, "GB10") as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        host.set_processes(0, [simulate.Process(100, GIB)])
        for version in (None, nvml.nvmlMemory_v2):
            with pytest.raises(nvml.NVMLError_NotSupported):
                nvml.nvmlDeviceGetMemoryInfo(gpu, version)
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetEnforcedPowerLimit(gpu)
        assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu)[0].usedGpuMemory == GIB
        assert nvml.nvmlDeviceGetPciInfo(gpu).busId == "0000000F:01:00.0"
        assert (nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu), nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)) == (1, 1)
