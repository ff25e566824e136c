"""The host: `aie_host_*`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.buckets import PROBE_TIME_BUCKETS
from aie_telemetry.catalogue.metric import Metric, counter, gauge, histogram

HOST_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_host_info", "1", ("hostname", "kernel"), "Always 1; the labels describe the host."),
    gauge("aie_host_cpus", "cpus", (), "CPUs that are online."),
    counter("aie_host_cpu_seconds_total", "seconds", ("mode",),
             "CPU time of all CPUs by mode: user, nice, system, idle, iowait, irq, softirq, steal. Modes are disjoint, guest time is in user."),
    gauge("aie_host_load1", "tasks", (), "Load average over one minute: tasks that run, wait to run or wait for the disk."),
    gauge("aie_host_memory_total_bytes", "bytes", (), "Memory of the host."),
    gauge("aie_host_memory_available_bytes", "bytes", (), "Memory that can be had without swapping (MemAvailable)."),
    gauge("aie_host_swap_total_bytes", "bytes", (), "Swap space."),
    gauge("aie_host_swap_used_bytes", "bytes", (), "Swap space in use."),
    counter("aie_host_swap_in_pages_total", "pages", (), "Pages read back from swap."),
    counter("aie_host_swap_out_pages_total", "pages", (), "Pages written to swap."),
    counter("aie_host_major_faults_total", "faults", (), "Page faults of all processes that needed the disk."),
    counter("aie_host_oom_kills_total", "kills", (), "Processes that the kernel killed for lack of memory."),
    counter("aie_host_pressure_seconds_total", "seconds", ("resource", "kind"),
             "Pressure stall information: time that some, or all (full), runnable tasks stalled on cpu, memory or io."),
    histogram("aie_host_block_io_seconds", "seconds", ("device", "op"),
               "Requests that a block device completed, from issue to completion, by op: read, write, other.", PROBE_TIME_BUCKETS),
    counter("aie_host_block_io_bytes_total", "bytes", ("device", "op"), "Bytes of requests that a block device completed."),
)  # fmt: skip
