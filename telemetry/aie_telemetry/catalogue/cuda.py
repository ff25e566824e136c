"""What engines do with CUDA's driver API, as probes on libcuda see it: `aie_cuda_*`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.buckets import PROBE_SIZE_BUCKETS, PROBE_TIME_BUCKETS
from aie_telemetry.catalogue.metric import Metric, counter, gauge, histogram

_ENGINE = ("engine",)
_CALL = ("engine", "call")
_DIRECTION = ("engine", "direction")

CUDA_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_cuda_memory_outstanding_bytes", "bytes", ("engine", "kind"),
           "Memory that was asked from the CUDA driver and not freed, since probes watch, by kind: device, managed, async, vmm, host, registered."),
    gauge("aie_cuda_memory_outstanding_allocations", "allocations", ("engine", "kind"), "How many allocations that memory is."),
    counter("aie_cuda_memory_allocated_bytes_total", "bytes", ("engine", "kind"), "Bytes asked from the driver, by kind."),
    counter("aie_cuda_memory_freed_bytes_total", "bytes", ("engine", "kind"), "Bytes given back to the driver, by kind."),
    counter("aie_cuda_allocations_total", "calls", ("engine", "kind"), "Allocations, by kind."),
    counter("aie_cuda_frees_total", "calls", ("engine", "kind"), "Frees of what was seen to be allocated, by kind."),
    counter("aie_cuda_unknown_frees_total", "calls", _ENGINE, "Frees of what was allocated before probes watched."),
    gauge("aie_cuda_memory_class_bytes", "bytes", ("engine", "size_class"),
           "Outstanding memory by the power of two, in bytes, that holds an allocation's size."),
    gauge("aie_cuda_memory_module_bytes", "bytes", ("engine", "module"),
           "Outstanding memory by the file whose code asked for it: the 16 with the most, the rest together as other."),
    counter("aie_cuda_failures_total", "calls", ("engine", "call", "code"), "Calls that the driver refused, by function and CUresult."),
    gauge("aie_cuda_contexts", "contexts", _ENGINE, "CUDA contexts of the engine's processes."),
    histogram("aie_cuda_sync_seconds", "seconds", _CALL, "Calls of synchronising functions, by function.", PROBE_TIME_BUCKETS),
    gauge("aie_cuda_sync_waiting", "threads", _ENGINE, "Threads that are inside a synchronising function now."),
    gauge("aie_cuda_sync_longest_wait_seconds", "seconds", _ENGINE, "For how long the one of them waits that entered first."),
    counter("aie_cuda_copy_bytes_total", "bytes", _DIRECTION,
             "Bytes that copies asked for, by direction: htod, dtoh, dtod, peer, unified (the driver decides)."),
    histogram("aie_cuda_copy_size_bytes", "bytes", _DIRECTION, "Copies by their size.", PROBE_SIZE_BUCKETS),
    gauge("aie_cuda_copy_burst_bytes", "bytes", _DIRECTION, "Most bytes that copies asked for within one millisecond, since the last reading."),
    counter("aie_cuda_launches_total", "launches", _CALL, "Launches of kernels and graphs, by function. Absent unless the probe set cuda_launch is on."),
)  # fmt: skip
