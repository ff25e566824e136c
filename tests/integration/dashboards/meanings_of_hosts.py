"""What the panels about GPUs, hosts and agents mean, likewise; and those of the hot spots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.integration.dashboards.oracle import Meaning, largest, level, over, pace, quantile, ratio, rise, share

HOST: Final = "instance"
E: Final = "instance, engine"
G: Final = "instance, gpu"


def percentiles(name: str, keep: str = E) -> list[Meaning]:
    """The three that pictures show."""
    return [quantile(at, name, keep) for at in (0.5, 0.95, 0.99)]


OF_HOSTS: Final[dict[str, dict[str, Sequence[Meaning]]]] = {
    "gpus": {
        "GPUs that answer": [level("aie_gpu_present", "")],
        "Held back now": [
            over(
                level("aie_gpu_clock_event_active", G, "max", where='reason=~"hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"'),
                "sum",
            )
        ],
        ": Orphan processes": [level("aie_gpu_orphan_processes", "")],
        "Power, all GPUs": [level("aie_gpu_power_watts", "")],
        "GPUs": [
            level("aie_gpu_up", "instance, gpu, reason", "max"),
            level("aie_gpu_utilization_ratio", G, "max"),
            ratio("aie_gpu_memory_used_bytes", "aie_gpu_memory_total_bytes", G, "max"),
            level("aie_gpu_temperature_celsius", G, "max", where='sensor="gpu"'),
            level("aie_gpu_power_watts", G, "max"),
            level("aie_gpu_processes", G, "max"),
        ],
        "Rows of memory replaced": [level("aie_gpu_remapped_rows", "instance, gpu, type")],
        "Rows that wait for a reset, or failed": [
            level("aie_gpu_row_remap_pending", G, "max"),
            level("aie_gpu_row_remap_failed", G, "max"),
        ],
        "What is wrong: Orphan processes": [level("aie_gpu_orphan_processes", G, "max")],
        "NVLink errors a second": [pace("aie_gpu_nvlink_errors_total", "instance, gpu, kind")],
        "Utilization": [level("aie_gpu_utilization_ratio", G, "max")],
        "Multiprocessors active": [level("aie_gpu_sm_active_ratio", G, "max")],
        "Memory in use": [ratio("aie_gpu_memory_used_bytes", "aie_gpu_memory_total_bytes", G, "max")],
        "Power, of its limit": [ratio("aie_gpu_power_watts", "aie_gpu_power_limit_watts", G, "max")],
        "Time held back": [pace("aie_gpu_throttle_seconds_total", "instance, gpu, reason", where='reason!="low_utilization"')],
    },
    "gpu": {
        "State": [level("aie_gpu_up", G, "max")],
        "Utilization": [level("aie_gpu_utilization_ratio", G, "max")],
        "Memory in use": [ratio("aie_gpu_memory_used_bytes", "aie_gpu_memory_total_bytes", G, "max")],
        "Temperature": [level("aie_gpu_temperature_celsius", G, "max", where='sensor="gpu"')],
        "Power": [level("aie_gpu_power_watts", G, "max")],
        "Which GPU this is": [level("aie_gpu_info", "instance, gpu, name, uuid, pci_bus_id, driver, simulated", "max")],
        "How busy": [
            level("aie_gpu_utilization_ratio", G, "max"),
            level("aie_gpu_sm_active_ratio", G, "max"),
            level("aie_gpu_sm_occupancy_ratio", G, "max"),
        ],
        "Tensor cores and memory bandwidth": [
            level("aie_gpu_tensor_active_ratio", G, "max"),
            level("aie_gpu_dram_active_ratio", G, "max"),
        ],
        "Memory": [
            level("aie_gpu_memory_used_bytes", G, "max"),
            level("aie_gpu_memory_reserved_bytes", G, "max"),
            level("aie_gpu_memory_free_bytes", G, "max"),
        ],
        "Processes": [level("aie_gpu_processes", G, "max"), level("aie_gpu_orphan_processes", G, "max")],
        "PCIe traffic": [level("aie_gpu_pcie_bytes_per_second", "instance, gpu, direction", "max")],
        "NVLink traffic": [pace("aie_gpu_nvlink_bytes_total", "instance, gpu, direction")],
        "Clocks, of their highest": [
            ratio("aie_gpu_clock_hertz", "aie_gpu_clock_max_hertz", "instance, gpu, clock", "max", 'clock=~"sm|memory"')
        ],
        "Power and its limits": [
            level("aie_gpu_power_watts", G, "max"),
            level("aie_gpu_power_limit_watts", G, "max"),
            level("aie_gpu_power_limit_default_watts", G, "max"),
        ],
        "Temperatures and their limits": [
            level("aie_gpu_temperature_celsius", "instance, gpu, sensor", "max"),
            level("aie_gpu_temperature_limit_celsius", G, "max", where='limit="slowdown"'),
        ],
        "Reasons for lower clocks": [level("aie_gpu_clock_event_active", "instance, gpu, reason", "max")],
        "Time held back": [pace("aie_gpu_throttle_seconds_total", "instance, gpu, reason")],
        "PCIe lanes": [level("aie_gpu_pcie_link_width", G, "max"), level("aie_gpu_pcie_link_width_max", G, "max")],
        "PCIe generation": [level("aie_gpu_pcie_link_generation", G, "max"), level("aie_gpu_pcie_link_generation_max", G, "max")],
        "PCIe replays a second": [pace("aie_gpu_pcie_replays_total", G)],
        "NVLinks": [level("aie_gpu_nvlink_links", "instance, gpu, state", "max")],
        "Memory of instances": [
            ratio("aie_gpu_mig_memory_used_bytes", "aie_gpu_mig_memory_total_bytes", "instance, gpu, mig", "max")
        ],
        "Multiprocessors active": [level("aie_gpu_mig_sm_active_ratio", "instance, gpu, mig", "max")],
    },
    "host": {
        "CPU in use, busiest host": [
            over(
                share(
                    pace("aie_host_cpu_seconds_total", HOST, where='mode=~"user|nice|system|irq|softirq|steal"'),
                    level("aie_host_cpus", HOST, "max"),
                ),
                "max",
            )
        ],
        "Stolen, worst host": [
            over(share(pace("aie_host_cpu_seconds_total", HOST, where='mode=~"steal"'), level("aie_host_cpus", HOST, "max")), "max")
        ],
        "Memory available, least": [ratio("aie_host_memory_available_bytes", "aie_host_memory_total_bytes", "", "min")],
        "Killed for lack of memory": [rise("aie_host_oom_kills_total", "")],
        "Threads that wait for a CPU": [pace("aie_process_run_queue_seconds_total", "")],
        "Waits, by reason": [pace("aie_process_wait_seconds_total", "instance, engine, reason", where='reason!~"idle|sleep"')],
        "CPU, and the wait for it": [pace("aie_process_cpu_seconds_total", E), pace("aie_process_run_queue_seconds_total", E)],
        "Wait for a CPU, p99": [quantile(0.99, "aie_process_run_queue_delay_seconds", E)],
        "Waits for locks a second": [pace("aie_process_lock_waits_total", "instance, engine, kind", where='kind!="idle"')],
        "Stopped by its CPU quota": [
            share(pace("aie_process_cgroup_throttled_periods_total", E), pace("aie_process_cgroup_periods_total", E))
        ],
        "Page faults that need the disk": [pace("aie_process_major_faults_total", E)],
        "Context switches": [pace("aie_process_context_switches_total", "instance, engine, kind")],
        "Threads and processes": [level("aie_process_threads", E), level("aie_process_instances", E)],
        "CPU, by what it does": [
            share(pace("aie_host_cpu_seconds_total", HOST, where='mode=~"user|nice"'), level("aie_host_cpus", HOST, "max")),
            share(
                pace("aie_host_cpu_seconds_total", HOST, where='mode=~"system|irq|softirq"'), level("aie_host_cpus", HOST, "max")
            ),
            share(pace("aie_host_cpu_seconds_total", HOST, where='mode=~"iowait"'), level("aie_host_cpus", HOST, "max")),
            share(pace("aie_host_cpu_seconds_total", HOST, where='mode=~"steal"'), level("aie_host_cpus", HOST, "max")),
        ],
        "Stalled, for some tasks": [pace("aie_host_pressure_seconds_total", "instance, resource", where='kind="some"')],
        "Memory": [
            level("aie_host_memory_available_bytes", HOST, "max"),
            level("aie_host_memory_total_bytes", HOST, "max"),
            level("aie_host_swap_used_bytes", HOST, "max"),
        ],
        "Load, of CPUs": [ratio("aie_host_load1", "aie_host_cpus", HOST, "max")],
        "Disk, p99": [quantile(0.99, "aie_host_block_io_seconds", "instance, device, op")],
        "Disk traffic": [pace("aie_host_block_io_bytes_total", "instance, device, op")],
        "Synchronisation, p99": [quantile(0.99, "aie_cuda_sync_seconds", "instance, engine, call")],
        "Waits for the GPU now": [level("aie_cuda_sync_longest_wait_seconds", E, "max")],
        "Copies": [pace("aie_cuda_copy_bytes_total", "instance, engine, direction")],
    },
    "hot": {
        "GPU memory by engine": [level("aie_engine_memory_physical_bytes", E, where='device!="cpu"')],
        "Fullest GPUs": [ratio("aie_gpu_memory_used_bytes", "aie_gpu_memory_total_bytes", G, "max")],
        "Slowest to the first token, p99": [quantile(0.99, "aie_engine_time_to_first_token_seconds", E)],
        "Most requests waiting": [level("aie_engine_requests_waiting", E)],
        "Fullest KV caches": [level("aie_engine_kv_usage_ratio", E, "max")],
        "Most tokens a second": [pace("aie_engine_generation_tokens_total", E)],
        "Fastest growing memory": [largest(10, level("aie_leak_rate_bytes_per_second", "instance, engine, device, line", "max"))],
        "Most heap on the host": [level("aie_process_resident_anon_bytes", E)],
        "Most CPU": [pace("aie_process_cpu_seconds_total", E)],
        "Longest waits for locks": [pace("aie_process_wait_seconds_total", "instance, engine, reason", where='reason=~"lock|gil"')],
    },
    "agent": {
        "Agents": [level("aie_agent_info", "", "count")],
        "Series refused a second": [pace("aie_agent_samples_refused_total", "")],
        "CPU, busiest agent": [over(pace("aie_agent_cpu_seconds_total", HOST), "max")],
        "Memory, largest agent": [level("aie_agent_resident_bytes", "", "max")],
        "CPU": [pace("aie_agent_cpu_seconds_total", HOST)],
        "Memory": [level("aie_agent_resident_bytes", HOST, "max")],
        "Series, of what the store takes": [ratio("aie_agent_series", "aie_agent_series_limit", HOST, "max")],
        "Time in sources": [pace("aie_agent_source_seconds_total", "instance, source")],
        "Taken from engines by probes": [level("aie_agent_probe_overhead_ratio", E, "max")],
        "Time in NVML": [pace("aie_agent_nvml_seconds_total", "instance, call")],
        "Samples taken": [pace("aie_agent_samples_total", "instance, source")],
        "Samples refused": [pace("aie_agent_samples_refused_total", "instance, reason")],
        "Refused of engines' pages": [pace("aie_agent_scrape_refused_total", "instance, engine, reason")],
        "StatsD packets": [pace("aie_agent_statsd_packets_total", "instance, socket")],
        "StatsD lost": [
            pace("aie_agent_statsd_dropped_total", "instance, reason"),
            pace("aie_agent_statsd_kernel_drops_total", "instance, socket"),
            pace("aie_hooks_dropped_total", "instance, engine, reason"),
        ],
        "Requests to the agent": [pace("aie_agent_http_requests_total", "instance, path, code")],
        "Pushes to an OTLP collector": [pace("aie_agent_otlp_exports_total", "instance, result")],
        "Spans of engines": [pace("aie_engine_spans_total", "instance, engine, result")],
        "Hits of probes": [pace("aie_agent_probe_hits_total", "instance, engine, set")],
        "Memory of the child": [level("aie_agent_bpf_resident_bytes", HOST, "max")],
        "Starts of the child": [level("aie_agent_bpf_starts_total", HOST, "max")],
        "Events lost": [pace("aie_agent_probe_lost_total", "instance, map")],
    },
}
