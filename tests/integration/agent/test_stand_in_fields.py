"""Fields of nvmlDeviceGetFieldValues: each says what the call of its own, or the state, says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from aie_agent import simulate
from tests.fakes.stand_in import needs_compiler, simulated

pytestmark = needs_compiler

# Members of the GPU, each with its own number, and the fields that must show it.
MEMBERS = {
    "ecc_corrected_volatile": (101, [nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL]),
    "ecc_uncorrected_volatile": (102, [nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL]),
    "ecc_corrected_aggregate": (103, [nvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL]),
    "ecc_uncorrected_aggregate": (104, [nvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL]),
    "pcie_replays": (105, [nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER]),
    "remapped_corrected": (106, [nvml.NVML_FI_DEV_REMAPPED_COR]),
    "remapped_uncorrected": (107, [nvml.NVML_FI_DEV_REMAPPED_UNC]),
    "remapped_pending": (1, [nvml.NVML_FI_DEV_REMAPPED_PENDING]),
    "remapped_failed": (2, [nvml.NVML_FI_DEV_REMAPPED_FAILURE]),
    "power_minimum_mw": (108_000, [nvml.NVML_FI_DEV_POWER_MIN_LIMIT]),
    "power_maximum_mw": (709_000, [nvml.NVML_FI_DEV_POWER_MAX_LIMIT]),
    "power_limit_mw": (610_000, [nvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, nvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT]),
    "power_default_mw": (611_000, [nvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT]),
    "recovery_action": (3, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]),
    "c2c_link_count": (4, [nvml.NVML_FI_DEV_C2C_LINK_COUNT]),
    "c2c_link_mb_per_s": (112, [nvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW]),
    "link_mb_per_s": (26_000, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, nvml.NVML_FI_DEV_NVLINK_GET_SPEED]),
}
PCIE_ERRORS = range(nvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, nvml.NVML_FI_DEV_PCIE_COUNT_LANE_ERROR + 1)
LINK_ERRORS = {
    "crc_flit_errors": [nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL],
    "crc_data_errors": [nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL],
    "replay_errors": [nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL],
    "recovery_errors": [nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL],
    "ecc_errors": [nvml.NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL],
}
SAME_AS_CALL: dict[int, Callable[[Any], int]] = {
    nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: nvml.nvmlDeviceGetTotalEnergyConsumption,
    nvml.NVML_FI_DEV_ENERGY: nvml.nvmlDeviceGetTotalEnergyConsumption,
    nvml.NVML_FI_DEV_POWER_INSTANT: nvml.nvmlDeviceGetPowerUsage,
    nvml.NVML_FI_DEV_POWER_AVERAGE: nvml.nvmlDeviceGetPowerUsage,
    nvml.NVML_FI_DEV_PERF_POLICY_POWER: lambda gpu: (
        nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_POWER).violationTime
    ),
    nvml.NVML_FI_DEV_PERF_POLICY_THERMAL: lambda gpu: (
        nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_THERMAL).violationTime
    ),
    nvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION: lambda gpu: (
        nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_LOW_UTILIZATION).violationTime
    ),
}
OF_TYPE = {
    nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
}


@pytest.fixture(name="host")
def fixture_host(tmp_path: Path) -> Iterator[simulate.Controller]:
    """One H100 at work, that has been throttled."""
    with simulated(tmp_path / "state", 1) as controller:
        controller.set_load(0, 1.0)
        controller.throttle(0, nvml.nvmlClocksEventReasonSwThermalSlowdown)
        controller.advance(2)
        yield controller


def field(number: int, scope: int = 0) -> int:
    """The value of one field, read in the type that the driver says it has."""
    value = nvml.nvmlDeviceGetFieldValues(nvml.nvmlDeviceGetHandleByIndex(0), [(number, scope)])[0]
    assert value.nvmlReturn == nvml.NVML_SUCCESS
    return int(getattr(value.value, OF_TYPE[value.valueType]))


def test_members(host: simulate.Controller) -> None:
    host.set(0, **{member: value for member, (value, _) in MEMBERS.items()})
    with host.edit() as config:
        for row, number in enumerate(PCIE_ERRORS):
            config.gpus[0].pcie_errors[row] = number
    shown = {number: field(number) for _, numbers in MEMBERS.values() for number in numbers}
    assert shown == {number: value for value, numbers in MEMBERS.values() for number in numbers}
    assert {number: field(number) for number in PCIE_ERRORS} == {number: number for number in PCIE_ERRORS}


def test_errors_of_links_are_summed(host: simulate.Controller) -> None:
    with host.edit() as config:
        for row, member in enumerate(LINK_ERRORS):
            setattr(config.gpus[0].links[1], member, 10 + row)
            setattr(config.gpus[0].links[17], member, 100)
    shown = {member: field(number) for member, numbers in LINK_ERRORS.items() for number in numbers}
    assert shown == {member: 110 + row for row, member in enumerate(LINK_ERRORS)}


@pytest.mark.parametrize("number", SAME_AS_CALL)
def test_says_what_the_call_says(host: simulate.Controller, number: int) -> None:
    assert field(number) == SAME_AS_CALL[number](nvml.nvmlDeviceGetHandleByIndex(0))
    assert host.calls("nvmlDeviceGetFieldValues") == 1


def test_traffic_is_the_rate_times_the_time(host: simulate.Controller) -> None:
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    every_link = 0xFFFFFFFF
    rates = {
        nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: 1000 * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES),
        nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: 1000 * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES),
    }
    before = {number: field(number) for number in rates}
    link_before = field(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, every_link)
    raw_before = field(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, every_link)
    host.advance(10)
    for number, rate in rates.items():
        assert field(number) - before[number] == pytest.approx(10 * rate, rel=1e-6)
    sent = field(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, every_link) - link_before
    raw = field(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, every_link) - raw_before
    assert sent > 0
    assert raw == pytest.approx(1.1 * sent, rel=1e-3)


OF_OLD_LINKS = [
    *(number for numbers in LINK_ERRORS.values() for number in numbers),
    nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX,
    nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX,
]
PACKET_ERRORS = [
    nvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    nvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
]
OF_LINKS_5 = [nvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, *PACKET_ERRORS]


@pytest.mark.parametrize(
    ("profile", "has", "lacks"),
    [
        ("V100", OF_OLD_LINKS, OF_LINKS_5),
        ("A100", OF_OLD_LINKS, OF_LINKS_5),
        ("H100", OF_OLD_LINKS, OF_LINKS_5),
        ("B200", OF_LINKS_5, OF_OLD_LINKS),
    ],
)
def test_links_count_what_their_generation_counts(tmp_path: Path, profile: str, has: list[int], lacks: list[int]) -> None:
    with simulated(tmp_path / "other", 1, profile):
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        codes = {
            number: value.nvmlReturn
            for number, value in zip(
                [*has, *lacks], nvml.nvmlDeviceGetFieldValues(gpu, [(number, 0) for number in (*has, *lacks)]), strict=True
            )
        }
    assert codes == dict.fromkeys(has, nvml.NVML_SUCCESS) | dict.fromkeys(lacks, nvml.NVML_ERROR_NOT_SUPPORTED)


def test_links_of_the_fifth_generation_each_count_for_themselves(tmp_path: Path) -> None:
    with simulated(tmp_path / "other", 1, "B200") as host:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        with host.edit() as config:
            for row, _ in enumerate(PACKET_ERRORS):
                config.gpus[0].links[3].packet_errors[row] = 100 + row
        host.set_load(0, 1.0)
        host.advance(10)
        assert [field(number, 3) for number in PACKET_ERRORS] == [100 + row for row, _ in enumerate(PACKET_ERRORS)]
        assert [field(number, 4) for number in PACKET_ERRORS] == [0] * len(PACKET_ERRORS)
        sent = [field(nvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, link) for link in range(18)]
        assert len(set(sent)) == 1
        assert sum(sent) == pytest.approx(0.15 * 18 * 53_125e6 * 10, rel=1e-3)
        for scope in (18, 0xFFFFFFFF):
            refused = nvml.nvmlDeviceGetFieldValues(gpu, [(nvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, scope)])[0]
            assert refused.nvmlReturn == nvml.NVML_ERROR_INVALID_ARGUMENT
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, 0, nvml.NVML_NVLINK_ERROR_DL_REPLAY)


def test_a_product_without_links_has_no_fields_of_links(tmp_path: Path) -> None:
    with simulated(tmp_path / "other", 1, "L40S"):
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        numbers = [
            nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            nvml.NVML_FI_DEV_MEMORY_TEMP,
        ]
        values = nvml.nvmlDeviceGetFieldValues(gpu, [*numbers, nvml.NVML_FI_DEV_POWER_INSTANT])
        assert [value.nvmlReturn for value in values] == [nvml.NVML_ERROR_NOT_SUPPORTED] * 3 + [nvml.NVML_SUCCESS]
