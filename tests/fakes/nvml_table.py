"""Every function of the stand-in: how to call it, and what it must say about the host of ``nvml_calls``.

A row that swaps two directions, forgets a unit or reads its neighbour's field cannot pass.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import pynvml as nvml

from tests.fakes.nvml_calls import (
    GIB,
    GPU,
    Handles,
    ProcessV1,
    address,
    clean_event_set,
    gpm,
    init,
    members,
    number,
    pci,
    pids,
    pids_and_bytes,
    raw,
    reads,
    registered,
    waited,
)

UUID = "GPU-51a1a7ed-0000-4000-8000-000000000001"
BUS_ID = "00000000:29:00.0"
_LIMITS = [201_000, 702_000]
_CLOCKS = {"graphics_mhz": 0, "sm_mhz": 1, "memory_mhz": 2, "video_mhz": 3}

Row = tuple[str, Callable[[Handles], Any], Any]

# symbol, the call, what it must return
CALLS: tuple[Row, ...] = (
    ("nvmlInit", lambda h: init("nvmlInit"), True),
    ("nvmlInit_v2", lambda h: init("nvmlInit_v2"), True),
    ("nvmlInitWithFlags", lambda h: init("nvmlInitWithFlags", ctypes.c_uint(0)), True),
    ("nvmlShutdown", lambda h: init("nvmlInitWithFlags", ctypes.c_uint(0)), True),
    ("nvmlSystemGetDriverVersion", lambda h: nvml.nvmlSystemGetDriverVersion(), "580.95.05"),
    ("nvmlSystemGetNVMLVersion", lambda h: nvml.nvmlSystemGetNVMLVersion(), "13.580.95.05"),
    ("nvmlSystemGetCudaDriverVersion", lambda h: nvml.nvmlSystemGetCudaDriverVersion(), 13000),
    ("nvmlSystemGetCudaDriverVersion_v2", lambda h: nvml.nvmlSystemGetCudaDriverVersion_v2(), 13000),
    ("nvmlSystemGetProcessName", lambda h: nvml.nvmlSystemGetProcessName(os.getpid()) != "", True),
    ("nvmlDeviceGetCount", lambda h: number("nvmlDeviceGetCount"), 4),
    ("nvmlDeviceGetCount_v2", lambda h: nvml.nvmlDeviceGetCount(), 4),
    (
        "nvmlDeviceGetHandleByIndex",
        lambda h: number("nvmlDeviceGetHandleByIndex", ctypes.c_uint(2), kind=ctypes.c_void_p) != address(h.gpu),
        True,
    ),
    ("nvmlDeviceGetHandleByIndex_v2", lambda h: nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByIndex(GPU)), GPU),
    ("nvmlDeviceGetHandleByUUID", lambda h: nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(UUID.encode())), GPU),
    ("nvmlDeviceGetHandleBySerial", lambda h: nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleBySerial(b"1320000000001")), GPU),
    (
        "nvmlDeviceGetHandleByPciBusId",
        lambda h: number("nvmlDeviceGetHandleByPciBusId", BUS_ID.encode(), kind=ctypes.c_void_p) is not None,
        True,
    ),
    (
        "nvmlDeviceGetHandleByPciBusId_v2",
        lambda h: nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(b"0000:29:00.0")),
        GPU,
    ),
    ("nvmlDeviceGetName", lambda h: nvml.nvmlDeviceGetName(h.gpu), "NVIDIA H100 80GB HBM3"),
    ("nvmlDeviceGetUUID", lambda h: nvml.nvmlDeviceGetUUID(h.gpu), UUID),
    ("nvmlDeviceGetIndex", lambda h: nvml.nvmlDeviceGetIndex(h.other), 2),
    ("nvmlDeviceGetMinorNumber", lambda h: nvml.nvmlDeviceGetMinorNumber(h.gpu), 9),
    ("nvmlDeviceGetSerial", lambda h: nvml.nvmlDeviceGetSerial(h.gpu), "1320000000001"),
    ("nvmlDeviceGetVbiosVersion", lambda h: nvml.nvmlDeviceGetVbiosVersion(h.gpu), "96.00.11.22.33"),
    ("nvmlDeviceGetBoardPartNumber", lambda h: nvml.nvmlDeviceGetBoardPartNumber(h.gpu), "692-2G520-0200-000"),
    ("nvmlDeviceGetBrand", lambda h: nvml.nvmlDeviceGetBrand(h.gpu), nvml.NVML_BRAND_NVIDIA),
    ("nvmlDeviceGetArchitecture", lambda h: nvml.nvmlDeviceGetArchitecture(h.gpu), nvml.NVML_DEVICE_ARCH_HOPPER),
    ("nvmlDeviceGetCudaComputeCapability", lambda h: nvml.nvmlDeviceGetCudaComputeCapability(h.gpu), (9, 0)),
    ("nvmlDeviceGetNumGpuCores", lambda h: nvml.nvmlDeviceGetNumGpuCores(h.gpu), 16896),
    ("nvmlDeviceGetMemoryBusWidth", lambda h: nvml.nvmlDeviceGetMemoryBusWidth(h.gpu), 5120),
    ("nvmlDeviceGetPciInfo_v2", lambda h: pci("nvmlDeviceGetPciInfo_v2", nvml.nvmlPciInfo_v2_t, h.gpu), "0000:29:00.0"),
    ("nvmlDeviceGetPciInfo_v3", lambda h: members(nvml.nvmlDeviceGetPciInfo(h.gpu), "busId", "bus"), (BUS_ID, 0x29)),
    (
        "nvmlDeviceGetMemoryInfo",
        lambda h: members(nvml.nvmlDeviceGetMemoryInfo(h.gpu), "total", "used", "free"),
        tuple(map(reads, ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"))),
    ),
    (
        "nvmlDeviceGetMemoryInfo_v2",
        lambda h: members(nvml.nvmlDeviceGetMemoryInfo(h.gpu, nvml.nvmlMemory_v2), "total", "reserved", "used", "free"),
        tuple(map(reads, ("memory_total_bytes", "memory_reserved_bytes", "memory_used_bytes", "memory_free_bytes"))),
    ),
    (
        "nvmlDeviceGetBAR1MemoryInfo",
        lambda h: members(nvml.nvmlDeviceGetBAR1MemoryInfo(h.gpu), "bar1Total", "bar1Used", "bar1Free"),
        (128 * GIB, 5 * GIB, 123 * GIB),
    ),
    (
        "nvmlDeviceGetUtilizationRates",
        lambda h: members(nvml.nvmlDeviceGetUtilizationRates(h.gpu), "gpu", "memory"),
        (reads("gpu_percent"), reads("memory_percent")),
    ),
    ("nvmlDeviceGetEncoderUtilization", lambda h: nvml.nvmlDeviceGetEncoderUtilization(h.gpu)[0], reads("encoder_percent")),
    ("nvmlDeviceGetDecoderUtilization", lambda h: nvml.nvmlDeviceGetDecoderUtilization(h.gpu)[0], reads("decoder_percent")),
    ("nvmlDeviceGetJpgUtilization", lambda h: nvml.nvmlDeviceGetJpgUtilization(h.gpu)[0], reads("jpeg_percent")),
    ("nvmlDeviceGetOfaUtilization", lambda h: nvml.nvmlDeviceGetOfaUtilization(h.gpu)[0], reads("ofa_percent")),
    ("nvmlDeviceGetTemperature", lambda h: nvml.nvmlDeviceGetTemperature(h.gpu, 0), reads("temperature_c")),
    ("nvmlDeviceGetTemperatureV", lambda h: nvml.nvmlDeviceGetTemperatureV(h.gpu, 0), reads("temperature_c")),
    (
        "nvmlDeviceGetTemperatureThreshold",
        lambda h: [nvml.nvmlDeviceGetTemperatureThreshold(h.gpu, which) for which in range(4)],
        [92, 89, 95, 87],
    ),
    ("nvmlDeviceGetMarginTemperature", lambda h: nvml.nvmlDeviceGetMarginTemperature(h.gpu), 89 - reads("temperature_c")),
    ("nvmlDeviceGetPowerUsage", lambda h: nvml.nvmlDeviceGetPowerUsage(h.gpu), reads("power_mw")),
    ("nvmlDeviceGetPowerManagementMode", lambda h: nvml.nvmlDeviceGetPowerManagementMode(h.gpu), 1),
    ("nvmlDeviceGetPowerManagementLimit", lambda h: nvml.nvmlDeviceGetPowerManagementLimit(h.gpu), 601_000),
    ("nvmlDeviceGetPowerManagementDefaultLimit", lambda h: nvml.nvmlDeviceGetPowerManagementDefaultLimit(h.gpu), 700_000),
    (
        "nvmlDeviceGetPowerManagementLimitConstraints",
        lambda h: list(nvml.nvmlDeviceGetPowerManagementLimitConstraints(h.gpu)),
        _LIMITS,
    ),
    ("nvmlDeviceGetEnforcedPowerLimit", lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h.gpu), 601_000),
    ("nvmlDeviceGetTotalEnergyConsumption", lambda h: nvml.nvmlDeviceGetTotalEnergyConsumption(h.gpu) >= 0, True),
    (
        "nvmlDeviceGetClockInfo",
        lambda h: {n: nvml.nvmlDeviceGetClockInfo(h.gpu, t) for n, t in _CLOCKS.items()},
        {n: reads(n) for n in _CLOCKS},
    ),
    ("nvmlDeviceGetMaxClockInfo", lambda h: [nvml.nvmlDeviceGetMaxClockInfo(h.gpu, t) for t in range(4)], [1980, 1980, 2619, 1545]),
    ("nvmlDeviceGetClock", lambda h: [nvml.nvmlDeviceGetClock(h.gpu, 1, which) for which in (0, 3)], [reads("sm_mhz"), 1980]),
    ("nvmlDeviceGetApplicationsClock", lambda h: nvml.nvmlDeviceGetApplicationsClock(h.gpu, 1), 1980),
    ("nvmlDeviceGetDefaultApplicationsClock", lambda h: nvml.nvmlDeviceGetDefaultApplicationsClock(h.gpu, 2), 2619),
    ("nvmlDeviceGetMaxCustomerBoostClock", lambda h: nvml.nvmlDeviceGetMaxCustomerBoostClock(h.gpu, 0), 1980),
    (
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        lambda h: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h.gpu),
        reads("clock_reasons"),
    ),
    ("nvmlDeviceGetSupportedClocksThrottleReasons", lambda h: nvml.nvmlDeviceGetSupportedClocksThrottleReasons(h.gpu), 0x1FF),
    (
        "nvmlDeviceGetCurrentClocksEventReasons",
        lambda h: nvml.nvmlDeviceGetCurrentClocksEventReasons(h.gpu),
        reads("clock_reasons"),
    ),
    ("nvmlDeviceGetSupportedClocksEventReasons", lambda h: nvml.nvmlDeviceGetSupportedClocksEventReasons(h.gpu), 0x1FF),
    ("nvmlDeviceGetViolationStatus", lambda h: nvml.nvmlDeviceGetViolationStatus(h.gpu, 0).violationTime >= 0, True),
    ("nvmlDeviceGetPerformanceState", lambda h: nvml.nvmlDeviceGetPerformanceState(h.gpu), reads("performance_state")),
    ("nvmlDeviceGetPowerState", lambda h: nvml.nvmlDeviceGetPowerState(h.gpu), reads("performance_state")),
    ("nvmlDeviceGetFanSpeed", lambda h: nvml.nvmlDeviceGetFanSpeed(h.gpu), reads("fan_percent")),
    ("nvmlDeviceGetFanSpeed_v2", lambda h: nvml.nvmlDeviceGetFanSpeed_v2(h.gpu, 1), reads("fan_percent")),
    ("nvmlDeviceGetNumFans", lambda h: nvml.nvmlDeviceGetNumFans(h.gpu), 2),
    ("nvmlDeviceGetPersistenceMode", lambda h: nvml.nvmlDeviceGetPersistenceMode(h.gpu), 1),
    ("nvmlDeviceGetComputeMode", lambda h: nvml.nvmlDeviceGetComputeMode(h.gpu), 3),
    ("nvmlDeviceGetDisplayActive", lambda h: nvml.nvmlDeviceGetDisplayActive(h.gpu), 1),
    ("nvmlDeviceGetDisplayMode", lambda h: nvml.nvmlDeviceGetDisplayMode(h.gpu), 1),
    ("nvmlDeviceGetNumaNodeId", lambda h: nvml.nvmlDeviceGetNumaNodeId(h.gpu), 3),
    ("nvmlDeviceGetCpuAffinity", lambda h: list(nvml.nvmlDeviceGetCpuAffinity(h.gpu, 2)), [0xF0, 0]),
    ("nvmlDeviceGetCpuAffinityWithinScope", lambda h: list(nvml.nvmlDeviceGetCpuAffinityWithinScope(h.gpu, 1, 0)), [0xF0]),
    ("nvmlDeviceGetMemoryAffinity", lambda h: list(nvml.nvmlDeviceGetMemoryAffinity(h.gpu, 1, 0)), [1 << 3]),
    ("nvmlDeviceGetTopologyCommonAncestor", lambda h: nvml.nvmlDeviceGetTopologyCommonAncestor(h.mig_gpu, h.other), 10),
    ("nvmlDeviceGetTopologyNearestGpus", lambda h: len(nvml.nvmlDeviceGetTopologyNearestGpus(h.gpu, 50)), 2),
    ("nvmlDeviceGetP2PStatus", lambda h: nvml.nvmlDeviceGetP2PStatus(h.gpu, h.other, nvml.NVML_P2P_CAPS_INDEX_NVLINK), 0),
    ("nvmlDeviceGetCurrPcieLinkGeneration", lambda h: nvml.nvmlDeviceGetCurrPcieLinkGeneration(h.gpu), reads("pcie_generation")),
    ("nvmlDeviceGetCurrPcieLinkWidth", lambda h: nvml.nvmlDeviceGetCurrPcieLinkWidth(h.gpu), reads("pcie_width")),
    ("nvmlDeviceGetMaxPcieLinkGeneration", lambda h: nvml.nvmlDeviceGetMaxPcieLinkGeneration(h.gpu), 4),
    ("nvmlDeviceGetMaxPcieLinkWidth", lambda h: nvml.nvmlDeviceGetMaxPcieLinkWidth(h.gpu), 16),
    ("nvmlDeviceGetGpuMaxPcieLinkGeneration", lambda h: nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(h.gpu), 5),
    ("nvmlDeviceGetPcieLinkMaxSpeed", lambda h: nvml.nvmlDeviceGetPcieLinkMaxSpeed(h.gpu), 4),
    ("nvmlDeviceGetPcieSpeed", lambda h: nvml.nvmlDeviceGetPcieSpeed(h.other), 32000),
    ("nvmlDeviceGetPcieReplayCounter", lambda h: nvml.nvmlDeviceGetPcieReplayCounter(h.gpu), 15),
    (
        "nvmlDeviceGetPcieThroughput",
        lambda h: [
            nvml.nvmlDeviceGetPcieThroughput(h.gpu, way) for way in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        ],
        [reads("pcie_tx_kb_per_s"), reads("pcie_rx_kb_per_s")],
    ),
    ("nvmlDeviceGetNvLinkState", lambda h: nvml.nvmlDeviceGetNvLinkState(h.gpu, 17), 1),
    ("nvmlDeviceGetNvLinkVersion", lambda h: nvml.nvmlDeviceGetNvLinkVersion(h.gpu, 0), 4),
    ("nvmlDeviceGetNvLinkCapability", lambda h: nvml.nvmlDeviceGetNvLinkCapability(h.gpu, 0, 0), 1),
    (
        "nvmlDeviceGetNvLinkErrorCounter",
        lambda h: [nvml.nvmlDeviceGetNvLinkErrorCounter(h.gpu, 2, which) for which in range(5)],
        [21, 22, 23, 24, 25],
    ),
    (
        "nvmlDeviceGetNvLinkRemotePciInfo",
        lambda h: pci("nvmlDeviceGetNvLinkRemotePciInfo", nvml.nvmlPciInfo_t, h.gpu, ctypes.c_uint(1)),
        "00000000:C2:00.0",
    ),
    ("nvmlDeviceGetNvLinkRemotePciInfo_v2", lambda h: nvml.nvmlDeviceGetNvLinkRemotePciInfo(h.gpu, 3).busId, "00000000:C4:00.0"),
    ("nvmlDeviceGetNvLinkRemoteDeviceType", lambda h: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(h.gpu, 0), 2),
    ("nvmlDeviceGetEccMode", lambda h: list(nvml.nvmlDeviceGetEccMode(h.gpu)), [1, 1]),
    (
        "nvmlDeviceGetTotalEccErrors",
        lambda h: [nvml.nvmlDeviceGetTotalEccErrors(h.gpu, kind, life) for kind in (0, 1) for life in (0, 1)],
        [11, 12, 13, 14],
    ),
    (
        "nvmlDeviceGetMemoryErrorCounter",
        lambda h: [nvml.nvmlDeviceGetMemoryErrorCounter(h.gpu, 1, 0, where) for where in (2, 3)],
        [13, 0],
    ),
    ("nvmlDeviceGetRemappedRows", lambda h: list(nvml.nvmlDeviceGetRemappedRows(h.gpu)), [16, 17, 1, 0]),
    (
        "nvmlDeviceGetRowRemapperHistogram",
        lambda h: members(nvml.nvmlDeviceGetRowRemapperHistogram(h.gpu), "max", "high", "none"),
        (640 - 33, 33, 0),
    ),
    ("nvmlDeviceGetComputeRunningProcesses", lambda h: pids("nvmlDeviceGetComputeRunningProcesses", h.gpu, ProcessV1), [101]),
    (
        "nvmlDeviceGetComputeRunningProcesses_v2",
        lambda h: pids_and_bytes(nvml.nvmlDeviceGetComputeRunningProcesses_v2(h.gpu)),
        [(101, 3 * GIB)],
    ),
    (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        lambda h: pids_and_bytes(nvml.nvmlDeviceGetComputeRunningProcesses_v3(h.gpu)),
        [(101, 3 * GIB)],
    ),
    ("nvmlDeviceGetGraphicsRunningProcesses", lambda h: pids("nvmlDeviceGetGraphicsRunningProcesses", h.gpu, ProcessV1), [102]),
    (
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
        lambda h: pids_and_bytes(nvml.nvmlDeviceGetGraphicsRunningProcesses_v2(h.gpu)),
        [(102, 4 * GIB)],
    ),
    (
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        lambda h: pids_and_bytes(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(h.gpu)),
        [(102, 4 * GIB)],
    ),
    (
        "nvmlDeviceGetMPSComputeRunningProcesses",
        lambda h: pids("nvmlDeviceGetMPSComputeRunningProcesses", h.gpu, ProcessV1),
        [103],
    ),
    (
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        lambda h: pids_and_bytes(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v2(h.gpu)),
        [(103, 5 * GIB)],
    ),
    (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        lambda h: pids_and_bytes(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(h.gpu)),
        [(103, 5 * GIB)],
    ),
    (
        "nvmlDeviceGetRunningProcessDetailList",
        lambda h: pids_and_bytes(nvml.nvmlDeviceGetRunningProcessDetailList(h.gpu, nvml.nvmlProcessDetailList_v1, 2)),
        [(103, 5 * GIB)],
    ),
    (
        "nvmlDeviceGetProcessUtilization",
        lambda h: [
            members(s, "pid", "smUtil", "memUtil", "encUtil", "decUtil") for s in nvml.nvmlDeviceGetProcessUtilization(h.gpu, 0)
        ],
        [(101, 31, 32, 33, 34), (103, 41, 42, 43, 44)],
    ),
    (
        "nvmlDeviceGetProcessesUtilizationInfo",
        lambda h: [members(s, "pid", "smUtil", "decUtil") for s in nvml.nvmlDeviceGetProcessesUtilizationInfo(h.gpu, 0)],
        [(101, 31, 34), (103, 41, 44)],
    ),
    (
        "nvmlDeviceGetSamples",
        lambda h: nvml.nvmlDeviceGetSamples(h.gpu, nvml.NVML_TOTAL_POWER_SAMPLES, 0)[1][0].sampleValue.uiVal,
        reads("power_mw"),
    ),
    (
        "nvmlDeviceGetFieldValues",
        lambda h: nvml.nvmlDeviceGetFieldValues(h.gpu, [82])[0].value.uiVal,
        reads("memory_temperature_c"),
    ),
    ("nvmlDeviceGetMigMode", lambda h: list(nvml.nvmlDeviceGetMigMode(h.mig_gpu)), [1, 1]),
    ("nvmlDeviceGetMaxMigDeviceCount", lambda h: nvml.nvmlDeviceGetMaxMigDeviceCount(h.gpu), 7),
    (
        "nvmlDeviceGetMigDeviceHandleByIndex",
        lambda h: address(nvml.nvmlDeviceGetMigDeviceHandleByIndex(h.mig_gpu, 0)) == address(h.mig),
        True,
    ),
    (
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        lambda h: address(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(h.mig)) == address(h.mig_gpu),
        True,
    ),
    ("nvmlDeviceIsMigDeviceHandle", lambda h: [nvml.nvmlDeviceIsMigDeviceHandle(x).value for x in (h.mig, h.gpu)], [1, 0]),
    ("nvmlDeviceGetGpuInstanceId", lambda h: nvml.nvmlDeviceGetGpuInstanceId(h.mig), 7),
    ("nvmlDeviceGetComputeInstanceId", lambda h: nvml.nvmlDeviceGetComputeInstanceId(h.mig), 0),
    (
        "nvmlDeviceGetAttributes_v2",
        lambda h: members(nvml.nvmlDeviceGetAttributes(h.mig), "multiprocessorCount", "memorySizeMB"),
        (16, 10240),
    ),
    ("nvmlGpmQueryDeviceSupport", lambda h: nvml.nvmlGpmQueryDeviceSupport(h.gpu).isSupportedDevice, 1),
    ("nvmlGpmSampleAlloc", lambda h: gpm(lambda sample: nvml.nvmlGpmSampleGet(h.gpu, sample)), True),
    ("nvmlGpmSampleFree", lambda h: gpm(lambda sample: nvml.nvmlGpmSampleGet(h.gpu, sample)), True),
    ("nvmlGpmSampleGet", lambda h: gpm(lambda sample: nvml.nvmlGpmSampleGet(h.gpu, sample)), True),
    ("nvmlGpmMigSampleGet", lambda h: gpm(lambda sample: nvml.nvmlGpmMigSampleGet(h.mig_gpu, 7, sample)), True),
    ("nvmlGpmMetricsGet", lambda h: gpm(lambda sample: nvml.nvmlGpmSampleGet(h.gpu, sample)), True),
    ("nvmlEventSetCreate", lambda h: clean_event_set(), True),
    ("nvmlEventSetFree", lambda h: clean_event_set(), True),
    ("nvmlEventSetWait", lambda h: waited("nvmlEventSetWait", h), 79),
    ("nvmlEventSetWait_v2", lambda h: waited("nvmlEventSetWait_v2", h), 79),
    ("nvmlDeviceRegisterEvents", lambda h: registered(h.gpu), True),
    (
        "nvmlDeviceGetSupportedEventTypes",
        lambda h: nvml.nvmlDeviceGetSupportedEventTypes(h.gpu) & nvml.nvmlEventTypeXidCriticalError,
        8,
    ),
)

# What this GPU does not have: the call, and that it says so.
NOT_SUPPORTED: tuple[tuple[str, Callable[[Handles], Any]], ...] = (
    ("nvmlDeviceGetDriverModel", lambda h: raw("nvmlDeviceGetDriverModel", h.gpu, None, None)),
    ("nvmlDeviceGetDriverModel_v2", lambda h: raw("nvmlDeviceGetDriverModel_v2", h.gpu, None, None)),
    ("nvmlDeviceGetConfComputeMemSizeInfo", lambda h: raw("nvmlDeviceGetConfComputeMemSizeInfo", h.gpu, None)),
    ("nvmlDeviceGetRetiredPages", lambda h: nvml.nvmlDeviceGetRetiredPages(h.gpu, 0)),
    ("nvmlDeviceGetRetiredPages_v2", lambda h: nvml.nvmlDeviceGetRetiredPages_v2(h.gpu, 0)),
    ("nvmlDeviceGetRetiredPagesPendingStatus", lambda h: nvml.nvmlDeviceGetRetiredPagesPendingStatus(h.gpu)),
)
