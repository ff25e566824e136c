"""NVIDIA GPUs as NVML and the kernel log tell of them: `aie_gpu_*`.

`gpu` is the index that NVML gives, as nvidia-smi shows it; `aie_gpu_info` joins it to UUID, bus id and model.
"""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.metric import Metric, counter, gauge

_GPU: Final = ("gpu",)

GPU_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_gpu_info", "1", (*_GPU, "uuid", "pci_bus_id", "name", "architecture", "driver", "simulated"),
          "Always 1; the labels describe the GPU. `simulated` is \"true\" for one of the stand-in library."),
    gauge("aie_gpu_up", "1", (*_GPU, "reason"),
          "1 while the GPU answers, 0 while it does not: `reason` is lost, reset_required, hung or error; of all GPUs released (NVML was given back on a signal) or closed (NVML cannot be used, the source says why). Stays when the GPU is gone."),
    gauge("aie_gpu_expected", "gpus", (), "GPUs that were seen since the agent started, or that the configuration expects."),
    gauge("aie_gpu_present", "gpus", (), "GPUs that answer."),
    gauge("aie_gpu_memory_total_bytes", "bytes", _GPU, "Memory of the GPU. Equals used plus reserved plus free. On a GPU with unified memory: of the host."),
    gauge("aie_gpu_memory_used_bytes", "bytes", _GPU, "Memory that processes hold, without what the driver reserves."),
    gauge("aie_gpu_memory_reserved_bytes", "bytes", _GPU, "Memory that driver and firmware keep for themselves. Absent on drivers that do not tell it apart."),
    gauge("aie_gpu_memory_free_bytes", "bytes", _GPU, "Memory that nobody holds."),
    gauge("aie_gpu_memory_unified", "1", _GPU, "1 where the GPU has no memory of its own and uses the host's (GB10, Jetson). Grace Hopper and Grace Blackwell have their own."),
    gauge("aie_gpu_utilization_ratio", "ratio", _GPU, "Share of time in which a kernel ran, however small: not how much of the GPU it used. See aie_gpu_sm_active_ratio."),
    gauge("aie_gpu_memory_utilization_ratio", "ratio", _GPU, "Share of time in which memory was read or written: not how much of its bandwidth."),
    gauge("aie_gpu_encoder_utilization_ratio", "ratio", _GPU, "Share of time in which the video encoder was busy."),
    gauge("aie_gpu_decoder_utilization_ratio", "ratio", _GPU, "Share of time in which the video decoder was busy."),
    gauge("aie_gpu_graphics_active_ratio", "ratio", _GPU, "GPM (Hopper and later): share of time in which the compute or graphics engine was active."),
    gauge("aie_gpu_sm_active_ratio", "ratio", _GPU, "GPM (Hopper and later): share of multiprocessors with at least one warp, over the period."),
    gauge("aie_gpu_sm_occupancy_ratio", "ratio", _GPU, "GPM (Hopper and later): warps resident, of those that the multiprocessors could hold."),
    gauge("aie_gpu_tensor_active_ratio", "ratio", _GPU, "GPM (Hopper and later): share of time in which tensor cores were active."),
    gauge("aie_gpu_dram_active_ratio", "ratio", _GPU, "GPM (Hopper and later): share of the memory's bandwidth that was used."),
    gauge("aie_gpu_clock_hertz", "hertz", (*_GPU, "clock"), "Clock now: sm, memory, graphics, video."),
    gauge("aie_gpu_clock_max_hertz", "hertz", (*_GPU, "clock"), "The highest that the clock can be: sm, memory, graphics, video."),
    gauge("aie_gpu_clock_event_active", "1", (*_GPU, "reason"),
          "1 while this keeps the clocks down: idle, app_clocks, sw_power_cap, hw_slowdown, sync_boost, sw_thermal, hw_thermal, hw_power_brake, display_clocks, board_limit, reliability, other."),
    counter("aie_gpu_throttle_seconds_total", "seconds", (*_GPU, "reason"),
            "Time in which the clocks were held down since the driver was loaded, by reason: power, thermal, sync_boost, board_limit, low_utilization, reliability."),
    gauge("aie_gpu_performance_state", "1", _GPU, "0 (highest clocks) to 15 (lowest)."),
    gauge("aie_gpu_power_watts", "watts", _GPU, "Power of the board: a mean over a second on Ampere and later other than A100, the moment's elsewhere."),
    gauge("aie_gpu_power_limit_watts", "watts", _GPU, "Power at which the clocks are held down: what is enforced now."),
    gauge("aie_gpu_power_limit_default_watts", "watts", _GPU, "The board's own power limit."),
    counter("aie_gpu_energy_joules_total", "joules", _GPU, "Energy used since the driver was loaded."),
    gauge("aie_gpu_temperature_celsius", "celsius", (*_GPU, "sensor"), "Temperature by sensor: gpu, memory."),
    gauge("aie_gpu_temperature_limit_celsius", "celsius", (*_GPU, "limit"), "Temperatures at which the GPU acts: slowdown, shutdown, gpu_max, memory_max."),
    gauge("aie_gpu_fan_speed_ratio", "ratio", _GPU, "Fan speed, of the highest. Absent on boards without fans."),
    gauge("aie_gpu_pcie_link_generation", "1", _GPU, "PCIe generation now. It falls when the GPU is idle, which is normal."),
    gauge("aie_gpu_pcie_link_generation_max", "1", _GPU, "The highest PCIe generation that card and slot have in common."),
    gauge("aie_gpu_pcie_link_width", "lanes", _GPU, "PCIe lanes now. Fewer than card and slot have is never normal."),
    gauge("aie_gpu_pcie_link_width_max", "lanes", _GPU, "PCIe lanes that the card itself has: the greater of what driver and kernel tell, for some drivers tell the lesser of card and slot."),
    gauge("aie_gpu_pcie_slot_width", "lanes", _GPU, "PCIe lanes of the slot, as the kernel has it. Absent where it does not tell, and in virtual machines whose port claims less than the link does."),
    gauge("aie_gpu_pcie_bytes_per_second", "bytes/s", (*_GPU, "direction"), "PCIe throughput, seen from the GPU: tx (to the host), rx (from the host)."),
    counter("aie_gpu_pcie_replays_total", "replays", _GPU, "PCIe packets sent again. A few are normal, a steady rise is a bad link."),
    gauge("aie_gpu_nvlink_links", "links", (*_GPU, "state"), "NVLinks by state: active, inactive."),
    counter("aie_gpu_nvlink_bytes_total", "bytes", (*_GPU, "direction"), "Bytes over all NVLinks: tx, rx."),
    counter("aie_gpu_nvlink_errors_total", "errors", (*_GPU, "kind"), "NVLink errors of all links: replay, recovery, crc_flit, crc_data. From NVLink 5 on: malformed_packet, buffer_overrun, receive, receive_remote, receive_general, link_integrity, transmit_discard, recovery, recovery_failed, effective, symbol."),
    counter("aie_gpu_ecc_errors_total", "errors", (*_GPU, "type", "since"), "ECC errors by type (corrected, uncorrected), since the last reset or load of the driver (volatile) or ever (aggregate)."),
    gauge("aie_gpu_remapped_rows", "rows", (*_GPU, "type"), "Memory rows that were replaced, by what caused it: corrected, uncorrected."),
    gauge("aie_gpu_row_remap_pending", "1", _GPU, "1 while a row waits to be replaced: reset the GPU."),
    gauge("aie_gpu_row_remap_failed", "1", _GPU, "1 when a row could not be replaced: return the board."),
    gauge("aie_gpu_retired_pages", "pages", (*_GPU, "cause"), "Memory pages that were retired: single_bit, double_bit. Before Ampere."),
    counter("aie_gpu_xid_errors_total", "errors", (*_GPU, "xid"), "XID errors by number, each counted once whichever source told of it. The common ones are there at 0 from the start."),
    gauge("aie_gpu_xid_last_timestamp_seconds", "seconds", (*_GPU, "xid"), "When an XID was last seen, in seconds since the epoch."),
    gauge("aie_gpu_xid_source_up", "1", ("source",), "1 while XIDs are read from this source: nvml_events, kernel_log."),
    gauge("aie_gpu_processes", "processes", _GPU, "Processes that hold a context on the GPU."),
    gauge("aie_gpu_orphan_processes", "processes", _GPU, "Processes that hold a context though nothing can come of them: gone from /proc, zombies, hung in the kernel for minutes, or left by an engine that ended."),
    gauge("aie_gpu_orphan_memory_bytes", "bytes", _GPU, "Memory of those processes. Absent where the driver does not tell it."),
    gauge("aie_gpu_persistence_mode", "1", _GPU, "1 when the driver stays loaded without clients. At 0 the first request after idle time is slow."),
    gauge("aie_gpu_numa_node", "1", _GPU, "NUMA node of the host that the GPU is attached to."),
    gauge("aie_gpu_mig_mode", "1", _GPU, "1 when the GPU is divided into MIG instances."),
    gauge("aie_gpu_mig_info", "1", (*_GPU, "mig", "profile", "uuid"), "Always 1; there is one for each MIG instance, and `mig` is its GPU instance and compute instance."),
    gauge("aie_gpu_mig_memory_total_bytes", "bytes", (*_GPU, "mig"), "Memory of a MIG instance."),
    gauge("aie_gpu_mig_memory_used_bytes", "bytes", (*_GPU, "mig"), "Memory of a MIG instance that processes hold."),
    gauge("aie_gpu_mig_sm_active_ratio", "ratio", (*_GPU, "mig"), "GPM: share of the instance's multiprocessors with at least one warp."),
)  # fmt: skip
