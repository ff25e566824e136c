"""What the products are that can be simulated: one row each.

The figures are what drivers report (``nvidia-smi -q`` as people have posted it for the board named) and what NVIDIA's data sheets
say of power, links and SM counts, so that a screen full of simulated GPUs looks like a screen full of real ones. Idle figures are
typical, not guaranteed. Nothing here is measured on this project's machines.
"""

from typing import Final, NamedTuple

from aie_agent.simulate.layout import CONSTANTS

MIB: Final = 1 << 20

_GPM = CONSTANTS["AIE_HAS_GPM"]
_MIG = CONSTANTS["AIE_HAS_MIG"]
_ECC = CONSTANTS["AIE_HAS_ECC"]
_MEMORY = CONSTANTS["AIE_HAS_MEMORY"]
_MEMORY_TEMPERATURE = CONSTANTS["AIE_HAS_MEMORY_TEMPERATURE"]
_POWER_LIMIT = CONSTANTS["AIE_HAS_POWER_LIMIT"]
_ENERGY = CONSTANTS["AIE_HAS_ENERGY"]
_DOWNSHIFTS = CONSTANTS["AIE_LINK_DOWNSHIFTS"]
_NVLINK5 = CONSTANTS["AIE_HAS_NVLINK5"]
_RETIRES_PAGES = CONSTANTS["AIE_RETIRES_PAGES"]
_DATACENTRE = _MIG | _ECC | _MEMORY | _MEMORY_TEMPERATURE | _POWER_LIMIT | _ENERGY


class Profile(NamedTuple):
    """A product. Names are those of ``struct aie_gpu`` where there is a member for it."""

    name: str
    architecture: int
    """NVML's number: 7 Ampere, 9 Hopper, 10 Blackwell."""
    compute: tuple[int, int]
    flags: int
    memory_total_mib: int
    memory_reserved_mib: int
    memory_bus_bits: int
    multiprocessors: int
    cores: int
    power_default_w: int
    power_minimum_w: int
    power_idle_w: int
    clock_max_sm_mhz: int
    clock_max_memory_mhz: int
    clock_max_video_mhz: int
    clock_idle_mhz: int
    temperatures_c: tuple[int, int, int, int]
    """Shutdown, slowdown, GPU maximum, memory maximum; 0: the driver does not say."""
    pcie_generation: int
    pcie_width: int
    link_count: int
    link_version: int
    link_mb_per_s: int
    """One NVLink, one direction."""
    mig_max_devices: int
    pci_device_id: int
    part_number: str
    pci_domain: int = 0
    c2c_link_count: int = 0
    c2c_link_mb_per_s: int = 0
    """Between CPU and GPU of one package."""


PROFILES: Final[dict[str, Profile]] = {
    # A100-SXM4-80GB: data sheet (400 W, 12 links of 25 GB/s, 108 SMs), device 20B2; 81920 MiB, 1410/1593 MHz.
    "A100": Profile(
        "NVIDIA A100-SXM4-80GB", 7, (8, 0), _DATACENTRE, 81920, 670, 5120, 108, 6912, 400, 100, 62, 1410, 1593, 1275, 210,
        (92, 89, 85, 95), 4, 16, 12, 3, 25000, 7, 0x20B210DE, "692-2G506-0210-002",
    ),
    # H100 80GB HBM3 (SXM5): data sheet (700 W, 18 links of 26.6 GB/s, 132 SMs), device 2330; 81559 MiB, 1980/2619 MHz.
    "H100": Profile(
        "NVIDIA H100 80GB HBM3", 9, (9, 0), _DATACENTRE | _GPM, 81559, 551, 5120, 132, 16896, 700, 200, 70, 1980, 2619, 1545, 345,
        (92, 89, 87, 95), 5, 16, 18, 4, 26562, 7, 0x233010DE, "692-2G520-0200-000",
    ),
    # H200 (SXM): device 2335; 143771 MiB, 1980/3201 MHz.
    "H200": Profile(
        "NVIDIA H200", 9, (9, 0), _DATACENTRE | _GPM, 143771, 602, 6144, 132, 16896, 700, 200, 77, 1980, 3201, 1545, 345,
        (92, 89, 87, 95), 5, 16, 18, 4, 26562, 7, 0x233510DE, "692-2G520-0280-000",
    ),
    # B200 (SXM): data sheet (1000 W, 18 links of 53 GB/s, 148 SMs), device 2901; 183359 MiB, 1965/3996 MHz.
    "B200": Profile(
        "NVIDIA B200", 10, (10, 0), _DATACENTRE | _GPM | _NVLINK5, 183359, 718, 8192, 148, 18944, 1000, 200, 140, 1965, 3996,
        1500, 120, (95, 92, 90, 95), 5, 16, 18, 5, 53125, 7, 0x290110DE, "692-2G525-0220-002",
    ),
    # L40S (PCIe card, no NVLink, no MIG, no GPM): device 26B9; 46068 MiB, 2520/9001 MHz; rests at P8 and Gen1 when idle.
    "L40S": Profile(
        "NVIDIA L40S", 8, (8, 9), _ECC | _MEMORY | _POWER_LIMIT | _ENERGY | _DOWNSHIFTS, 46068, 600, 384, 142, 18176,
        350, 100, 36, 2520, 9001, 1965, 210, (100, 97, 92, 0), 4, 16, 0, 0, 0, 0, 0x26B910DE, "900-2G133-0080-000",
    ),
    # V100 (before Ampere: pages are retired, no MIG, no GPM): device 1DB5; 32768 MiB, 1530/877 MHz.
    "V100": Profile(
        "Tesla V100-SXM2-32GB", 5, (7, 0), _ECC | _MEMORY | _MEMORY_TEMPERATURE | _POWER_LIMIT | _ENERGY | _RETIRES_PAGES,
        32768, 258, 4096, 80, 5120, 300, 150, 42, 1530, 877, 1372, 135,
        (90, 87, 83, 85), 3, 16, 6, 2, 25000, 0, 0x1DB510DE, "900-2G503-0010-000",
    ),
    # GB10 (DGX Spark): one memory for CPU and GPU. The driver has no memory figures and no power limit, calls the link Gen1 x1, and
    # puts the GPU on PCI domain 000F (nvtop #426, nvitop #208, NVIDIA's DGX Spark known issues).
    "GB10": Profile(
        "NVIDIA GB10", 10, (12, 1), _ENERGY, 0, 0, 0, 48, 6144, 100, 0, 4, 3003, 0, 2400, 208,
        (0, 0, 0, 0), 1, 1, 0, 0, 0, 0, 0x2E1210DE, "", 0xF, 1, 300_000,
    ),
}  # fmt: skip
"""Products by the short name that ``--simulate-gpus`` and ``install`` take."""
