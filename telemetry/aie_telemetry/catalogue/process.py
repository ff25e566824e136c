"""Engines' processes as the kernel sees them: `aie_process_*`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.buckets import PROBE_TIME_BUCKETS
from aie_telemetry.catalogue.metric import Metric, counter, gauge, histogram

_PROCESS = ("engine",)
PROCESS_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_process_instances", "processes", _PROCESS, "Live processes of the engine."),
    gauge("aie_process_threads", "threads", _PROCESS, "Threads of the engine's processes."),
    gauge("aie_process_start_time_seconds", "seconds", _PROCESS,
           "When the oldest live process of the engine started, in seconds since the epoch, to the second."),
    gauge("aie_process_resident_anon_bytes", "bytes", _PROCESS, "Resident anonymous memory (RssAnon): heap, tensors, stacks."),
    gauge("aie_process_anonymous_bytes", "bytes", (*_PROCESS, "kind", "size_class"),
           "Anonymous memory, resident or swapped out, by kind (heap: malloc's heap and arenas; file: written pages of mapped files; mapping: the rest) and by the size of the mapping, up to the next power of two. Only while the engine is suspect of a leak, and where its smaps may be read."),
    gauge("aie_process_resident_file_bytes", "bytes", _PROCESS, "Resident file-backed memory (RssFile): code, mapped weights."),
    gauge(
        "aie_process_resident_shmem_bytes",
        "bytes",
        _PROCESS,
        "Resident shared memory (RssShmem) of the process that has most of it: what several map counts once.",
    ),
    gauge("aie_process_swap_bytes", "bytes", _PROCESS, "Memory of the engine's processes that is swapped out."),
    counter("aie_process_cpu_seconds_total", "seconds", (*_PROCESS, "mode"), "CPU time by mode: user, system."),
    counter("aie_process_run_queue_seconds_total", "seconds", _PROCESS,
             "Time that threads were ready to run and waited for a CPU (schedstat). Rises when neighbours take the CPU."),
    counter("aie_process_context_switches_total", "switches", (*_PROCESS, "kind"),
             "Context switches: voluntary (the thread waited) or involuntary (it was preempted)."),
    counter("aie_process_major_faults_total", "faults", _PROCESS, "Page faults that needed the disk."),
    counter("aie_process_cgroup_throttled_seconds_total", "seconds", _PROCESS,
             "Time that the CPU quota of the engine's cgroup stopped it. Absent where no quota is set."),
    counter("aie_process_cgroup_throttled_periods_total", "periods", _PROCESS,
             "Enforcement periods in which the quota stopped the cgroup. Absent where no quota is set."),
    counter("aie_process_cgroup_periods_total", "periods", _PROCESS,
             "Enforcement periods of the quota. Absent where no quota is set."),
    gauge("aie_process_cgroup_memory_bytes", "bytes", _PROCESS, "Memory charged to the engine's cgroup, page cache included."),
    gauge("aie_process_cgroup_memory_limit_bytes", "bytes", _PROCESS, "Memory limit of the engine's cgroup. Absent where none is set."),
    gauge("aie_process_cgroup_memory_held_ratio", "ratio", _PROCESS,
           "Anonymous and shared memory, which the kernel cannot take back as it does page cache, of all that is in the engine's cgroup, as a share of its limit: of that cgroup or the one above it that is nearest to its own limit. Each page counts once, and engines that share a cgroup share it. Absent where no limit is set."),
    counter("aie_process_wait_seconds_total", "seconds", (*_PROCESS, "reason"),
             "Thread-seconds that the engine's threads waited, by reason: lock (another thread holds it), gil (Python's), idle (a queue or condition), page_fault, disk, gpu_sync (inside a CUDA synchronisation), sleep (any other). A reason that no probe sees is absent."),
    counter("aie_process_gpu_spin_seconds_total", "seconds", _PROCESS,
             "CPU time that threads spent inside a CUDA synchronisation, where the library spins: part of the waits for gpu_sync, and of aie_process_cpu_seconds_total. Absent where it is not seen."),
    histogram("aie_process_run_queue_delay_seconds", "seconds", _PROCESS,
               "Single delays of threads that were ready to run and waited for a CPU.", PROBE_TIME_BUCKETS),
    histogram("aie_process_off_cpu_seconds", "seconds", _PROCESS,
               "Single times for which threads left the CPU, whatever they waited for.", PROBE_TIME_BUCKETS),
    counter("aie_process_lock_waits_total", "waits", (*_PROCESS, "kind"), "Waits of threads on a futex, by kind: lock, gil, idle."),
    histogram("aie_process_gc_seconds", "seconds", _PROCESS,
               "Collections of CPython's garbage collector. Absent unless the probe set gc is on.", PROBE_TIME_BUCKETS),
)  # fmt: skip
