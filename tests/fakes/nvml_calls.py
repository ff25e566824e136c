"""A host on which every number differs from every other, and ways to ask it things that nvidia-ml-py has no function for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml as nvml

from aie_agent import simulate
from aie_agent.simulate.layout import READINGS

GPU = 1
MIG_GPU = 3
GIB = 1 << 30
MIG_INSTANCE = simulate.MigInstance("1g.10gb", 7, 10 * GIB, 16, memory_reserved_bytes=GIB, load_ratio=0.5, decoders=1)
FIXED = {name: 40 + row for row, name in enumerate(READINGS)}
"""Every reading of ``GPU`` is its own number, in the reading's unit."""
PROCESSES = (
    simulate.Process(
        101, 3 * GIB, kinds=simulate.COMPUTE, sm_percent=31, memory_percent=32, encoder_percent=33, decoder_percent=34
    ),
    simulate.Process(102, 4 * GIB, kinds=simulate.GRAPHICS, sm_percent=0, memory_percent=0),
    simulate.Process(103, 5 * GIB, kinds=simulate.MPS, sm_percent=41, memory_percent=42, encoder_percent=43, decoder_percent=44),
)
MEMBERS: dict[str, int | float | str] = {
    "serial": "1320000000001",
    "vbios": "96.00.11.22.33",
    "bar1_used_bytes": 5 * GIB,
    "ecc_corrected_volatile": 11,
    "ecc_corrected_aggregate": 12,
    "ecc_uncorrected_volatile": 13,
    "ecc_uncorrected_aggregate": 14,
    "power_limit_mw": 601_000,
    "power_minimum_mw": 201_000,
    "power_maximum_mw": 702_000,
    "pcie_replays": 15,
    "pcie_max_generation": 4,
    "remapped_corrected": 16,
    "remapped_uncorrected": 17,
    "remapped_pending": 1,
    "recovery_action": 2,
    "retired_single_count": 1,
    "retired_double_count": 2,
    "retired_pending": 1,
    "numa_node": 3,
    "cpu_affinity": 0xF0,
    "compute_mode": 3,
    "display_active": 1,
    "fans": 2,
    "minor_number": 9,
}


class Handles(NamedTuple):
    """What the calls are made on."""

    host: simulate.Controller
    gpu: Any
    other: Any
    mig_gpu: Any
    mig: Any


def prepare(host: simulate.Controller) -> Handles:
    """Sets the host up and looks the handles up."""
    host.set(GPU, **MEMBERS)
    for name, value in FIXED.items():
        host.fix(GPU, name, value)
    host.set_processes(GPU, PROCESSES)
    host.set_mig(MIG_GPU, [MIG_INSTANCE])
    host.set_processes(MIG_GPU, [simulate.Process(104, 2 * GIB, gpu_instance=7, compute_instance=0)])
    with host.edit() as config:
        gpu = config.gpus[GPU]
        gpu.flags |= simulate.layout.CONSTANTS["AIE_IS_NUMA_NODE"]
        gpu.retired_pages_single[0], gpu.retired_pages_double[0], gpu.retired_pages_double[1] = 0x1000, 0x2000, 0x3000
        link = gpu.links[2]
        link.replay_errors, link.recovery_errors, link.crc_flit_errors, link.crc_data_errors, link.ecc_errors = 21, 22, 23, 24, 25
        config.functions[_row("nvmlDeviceGetPcieThroughput")].delay_us = 0
    gpu, other, mig_gpu = (nvml.nvmlDeviceGetHandleByIndex(index) for index in (GPU, 2, MIG_GPU))
    return Handles(host, gpu, other, mig_gpu, nvml.nvmlDeviceGetMigDeviceHandleByIndex(mig_gpu, 0))


def _row(function: str) -> int:
    return [row.name for row in simulate.layout.FUNCTIONS].index(function)


def raw(name: str, *arguments: Any) -> None:
    """Calls a symbol that nvidia-ml-py has no wrapper for any more.

    Raises:
        NVMLError: as nvidia-ml-py does.
    """
    nvml._nvmlCheckReturn(nvml._nvmlGetFunctionPointer(name)(*arguments))


def address(handle: Any) -> int | None:
    """Where a handle points to."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def number(name: str, *arguments: Any, kind: type[Any] = ctypes.c_uint) -> Any:
    """One number that a symbol writes into its last argument."""

    value = kind()
    raw(name, *arguments, ctypes.byref(value))
    return value.value


def pids(name: str, handle: Any, entry: type[Any]) -> list[int]:
    """The pids of a process list in the layout given."""

    count = ctypes.c_uint(16)
    entries = (entry * 16)()
    raw(name, handle, ctypes.byref(count), entries)
    return [entries[row].pid for row in range(count.value)]


class ProcessV1(ctypes.Structure):
    """An entry of the first process lists."""

    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


def clean_event_set() -> Any:
    """An event set, made and freed."""

    event_set = nvml.nvmlEventSetCreate()
    nvml.nvmlEventSetFree(event_set)
    return address(event_set) is not None


def waited(name: str, handles: Handles) -> int:
    """The XID that a waiter gets after one happened."""

    event_set = nvml.nvmlEventSetCreate()
    try:
        nvml.nvmlDeviceRegisterEvents(handles.gpu, nvml.nvmlEventTypeXidCriticalError, event_set)
        handles.host.push_xid(GPU, 79)
        data = nvml.c_nvmlEventData_t()
        raw(name, event_set, ctypes.byref(data), ctypes.c_uint(0))
        return int(data.eventData)
    finally:
        nvml.nvmlEventSetFree(event_set)


def registered(handle: Any) -> Any:
    """Registers for XIDs."""

    event_set = nvml.nvmlEventSetCreate()
    try:
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, event_set)
    finally:
        nvml.nvmlEventSetFree(event_set)
    return True


def gpm_between(take: Callable[[Any], object], between: Callable[[], None], *metrics: int) -> list[tuple[int, float]]:
    """(error, value) of GPM metrics between two samples; ``between`` happens in between."""
    samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    try:
        take(samples[0])
        between()
        take(samples[1])
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
        request.sample1, request.sample2 = samples
        for row, metric in enumerate(metrics):
            request.metrics[row].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        return [(request.metrics[row].nvmlReturn, request.metrics[row].value) for row in range(len(metrics))]
    finally:
        for sample in samples:
            nvml.nvmlGpmSampleFree(sample)


def gpm(take: Callable[[Any], object]) -> bool:
    """Two samples of the same moment: nothing can be said of them."""

    return gpm_between(take, lambda: None, nvml.NVML_GPM_METRIC_SM_UTIL)[0][0] == nvml.NVML_ERROR_NO_DATA


def init(function: str, *arguments: Any) -> bool:
    """Starts a session and ends it."""

    raw(function, *arguments)
    nvml.nvmlShutdown()
    return True


def reads(reading: str) -> int:
    """What a reading of ``GPU`` was fixed to."""

    return FIXED[reading]


def members(struct: Any, *names: str) -> tuple[Any, ...]:
    """Members of a struct, in the order asked for."""

    return tuple(getattr(struct, name) for name in names)


def pids_and_bytes(processes: Any) -> list[tuple[int, int]]:
    """(pid, bytes) of each."""

    return [(process.pid, process.usedGpuMemory) for process in processes]


def pci(name: str, struct: type[Any], *arguments: Any) -> str:
    """The bus id that a symbol gives in a struct of this layout."""

    pci = struct()
    raw(name, *arguments, ctypes.byref(pci))
    return str(pci.busId)
