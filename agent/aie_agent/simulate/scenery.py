"""A new GPU as a host would have it: identity, place on the bus, neighbours. Everything can be changed afterwards."""

from typing import Any, Final

from aie_agent.simulate.layout import CONSTANTS
from aie_agent.simulate.profiles import MIB, Profile

_CLOCK_REASONS_SUPPORTED: Final = 0x1FF
_BRAND_NVIDIA: Final = 14
_GPUS_PER_NODE: Final = 4
_GPUS_PER_SWITCH: Final = 2
_CPUS_PER_NODE: Final = 32
_SWITCH: Final = 2
_BASELINE_MIB: Final = 1


def describe_gpu(gpu: Any, number: int, profile: Profile) -> None:
    """Fills a ``struct aie_gpu``: the GPU with this number on a host of the profile's kind, idle."""
    _describe_identity(gpu, number, profile)
    _describe_limits(gpu, profile)
    _describe_links(gpu, profile)
    gpu.present = 1
    gpu.persistence_mode = 1
    gpu.load_period_s = 20.0
    gpu.load_phase_ratio = number / 8


def _describe_identity(gpu: Any, number: int, profile: Profile) -> None:
    node = number // _GPUS_PER_NODE % 2
    gpu.name = profile.name.encode()
    gpu.uuid = f"GPU-51a1a7ed-0000-4000-8000-{number:012x}".encode()
    gpu.serial = f"SIMULATED{number:04d}".encode()
    gpu.vbios = b"96.00.00.00.00"
    gpu.part_number = profile.part_number.encode()
    gpu.flags = profile.flags
    gpu.architecture = profile.architecture
    gpu.brand = _BRAND_NVIDIA
    gpu.compute_major, gpu.compute_minor = profile.compute
    gpu.multiprocessors = profile.multiprocessors
    gpu.cores = profile.cores
    gpu.pci_domain = profile.pci_domain
    gpu.pci_bus = 1 if profile.pci_domain else (0x19 + 0x10 * number) % 0x100
    gpu.pci_device_id = profile.pci_device_id
    gpu.pci_subsystem_id = 0x16C110DE
    gpu.minor_number = number
    gpu.numa_node = node
    gpu.cpu_affinity = ((1 << _CPUS_PER_NODE) - 1) << (_CPUS_PER_NODE * node)
    gpu.topology_group = number // _GPUS_PER_SWITCH


def _describe_limits(gpu: Any, profile: Profile) -> None:
    gpu.memory_total_bytes = profile.memory_total_mib * MIB
    gpu.memory_reserved_bytes = profile.memory_reserved_mib * MIB
    gpu.memory_baseline_bytes = _BASELINE_MIB * MIB if profile.memory_total_mib else 0
    gpu.memory_bus_bits = profile.memory_bus_bits
    gpu.bar1_total_bytes = (1 << (profile.memory_total_mib - 1).bit_length()) * MIB if profile.memory_total_mib else 0
    gpu.bar1_used_bytes = MIB if profile.memory_total_mib else 0
    gpu.power_default_mw = gpu.power_limit_mw = gpu.power_maximum_mw = profile.power_default_w * 1000
    gpu.power_minimum_mw = profile.power_minimum_w * 1000
    gpu.power_idle_mw = profile.power_idle_w * 1000
    gpu.clock_max_sm_mhz = profile.clock_max_sm_mhz
    gpu.clock_max_memory_mhz = profile.clock_max_memory_mhz
    gpu.clock_max_video_mhz = profile.clock_max_video_mhz
    gpu.clock_idle_mhz = profile.clock_idle_mhz
    gpu.clock_reasons_supported = _CLOCK_REASONS_SUPPORTED
    shutdown, slowdown, gpu_max, memory_max = profile.temperatures_c
    gpu.temperature_shutdown_c, gpu.temperature_slowdown_c = shutdown, slowdown
    gpu.temperature_gpu_max_c, gpu.temperature_memory_max_c = gpu_max, memory_max
    gpu.temperature_idle_c = 32
    gpu.mig_max_devices = profile.mig_max_devices


def _describe_links(gpu: Any, profile: Profile) -> None:
    gpu.pcie_max_generation = gpu.pcie_device_generation = gpu.pcie_generation = profile.pcie_generation
    gpu.pcie_max_width = gpu.pcie_width = profile.pcie_width
    gpu.c2c_link_count, gpu.c2c_link_mb_per_s = profile.c2c_link_count, profile.c2c_link_mb_per_s
    gpu.link_count = profile.link_count
    gpu.link_version = profile.link_version
    gpu.link_mb_per_s = profile.link_mb_per_s
    for link in range(min(profile.link_count, CONSTANTS["AIE_MAX_LINKS"])):
        gpu.links[link].active = 1
        gpu.links[link].remote_type = _SWITCH
        gpu.links[link].remote_bus = 0xC1 + link % 4
