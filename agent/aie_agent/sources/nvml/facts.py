"""What hardly changes of a GPU and decides how fast it can be: read once, for `aie-agent check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aie_agent.sources.nvml import gpm
from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.devices import Identity
from aie_agent.sources.nvml.door import Absent, Device, Door, number
from aie_agent.sources.nvml.memory import is_integrated
from aie_agent.sources.nvml.nvlinks import NvLinks, joining, read_nvlinks
from aie_agent.sources.nvml.rows import CLOCK_EVENTS
from aie_agent.sources.nvml.slots import Slot, read_slot

_CPU_WORDS: Final = 16  # 1024 CPUs
_WORD_BITS: Final = 64
_SM: Final = 1
_P2P_READ: Final = 0
_UNCORRECTED, _VOLATILE = 1, 0

LEVELS: Final[Mapping[int, str]] = {
    0: "on one board",
    10: "below one PCIe switch (PIX)",
    20: "through several PCIe switches (PXB)",
    30: "through the CPU's PCIe host bridge (PHB)",
    40: "within a NUMA node (NODE)",
    50: "across NUMA nodes (SYS)",
}
"""How near two GPUs are, by NVML's number, with nvidia-smi's word."""

_P2P: Final[Mapping[int, str]] = {
    0: "",
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the topology does not support it",
    4: "it is disabled in the driver's settings",
    5: "it is not supported",
    6: "unknown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU. None is what neither driver nor kernel tells. Clocks in MHz, power in watts."""

    index: int
    name: str
    bus: str | None = None
    slot: Slot | None = None
    width: int | None = None
    width_max: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    numa_node: int | None = None
    cpus: frozenset[int] | None = None
    persistence: bool | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    app_clock_mhz: float | None = None
    app_clock_default_mhz: float | None = None
    clock_events: tuple[str, ...] = ()
    utilization_ratio: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    gpm: bool | None = None
    nvlinks: NvLinks | None = None
    unified_memory: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """Two GPUs: how near they are (a key of `LEVELS`), why one cannot read the other's memory ("" where it can, or None), and how
    many NVLinks join them (None where that is not told)."""

    one: int
    other: int
    level: int | None
    p2p_problem: str | None
    nvlinks: int | None = None


class _Asked:
    """The answers of one GPU, as plain numbers or None."""

    def __init__(self, door: Door, device: Device) -> None:
        self._door = door
        self._device = device

    def raw(self, call: str, *args: Any) -> Any:
        answer = self._door.query(call, self._device, *args)
        return None if isinstance(answer, Absent) else answer

    def whole(self, call: str, *args: Any) -> int | None:
        return _plain(self.raw(call, *args))

    def flag(self, call: str, *args: Any) -> bool | None:
        value = self.whole(call, *args)
        return None if value is None else value == 1

    def watts(self, call: str) -> float | None:
        value = self.whole(call)
        return None if value is None else value / 1e3

    def two_flags(self, call: str) -> tuple[bool | None, bool | None]:
        """Now, and from the next reset on."""
        values = self.raw(call)
        if values is None:
            return None, None
        now, pending = (_plain(value) for value in values)
        return None if now is None else now == 1, None if pending is None else pending == 1


def read_facts(door: Door, device: Device, identity: Identity) -> GpuFacts:
    """Asks a GPU everything. What it does not support is None."""
    asked = _Asked(door, device)
    bus = bus_id(identity.pci_bus_id)
    ecc, ecc_pending = asked.two_flags("nvmlDeviceGetEccMode")
    mig, mig_pending = asked.two_flags("nvmlDeviceGetMigMode")
    remapped = asked.raw("nvmlDeviceGetRemappedRows") or (None, None, None, None)
    return GpuFacts(
        index=device.index,
        name=identity.name,
        bus=bus,
        slot=None if bus is None else read_slot(bus),
        width=asked.whole("nvmlDeviceGetCurrPcieLinkWidth"),
        width_max=asked.whole("nvmlDeviceGetMaxPcieLinkWidth"),
        generation=asked.whole("nvmlDeviceGetCurrPcieLinkGeneration"),
        generation_max=asked.whole("nvmlDeviceGetMaxPcieLinkGeneration"),
        numa_node=identity.numa_node,
        cpus=_cpus(asked.raw("nvmlDeviceGetCpuAffinity", _CPU_WORDS)),
        persistence=asked.flag("nvmlDeviceGetPersistenceMode"),
        sm_clock_mhz=asked.whole("nvmlDeviceGetClockInfo", _SM),
        sm_clock_max_mhz=asked.whole("nvmlDeviceGetMaxClockInfo", _SM),
        app_clock_mhz=asked.whole("nvmlDeviceGetApplicationsClock", _SM),
        app_clock_default_mhz=asked.whole("nvmlDeviceGetDefaultApplicationsClock", _SM),
        clock_events=_clock_events(asked),
        utilization_ratio=_utilization(asked),
        power_limit_w=asked.watts("nvmlDeviceGetEnforcedPowerLimit"),
        power_default_w=asked.watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        ecc=ecc,
        ecc_pending=ecc_pending,
        ecc_uncorrected=asked.whole("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        remap_pending=None if remapped[2] is None else bool(remapped[2]),
        remap_failed=None if remapped[3] is None else bool(remapped[3]),
        mig=mig,
        mig_pending=mig_pending,
        gpm=gpm.is_supported(door, device),
        nvlinks=read_nvlinks(door, device),
        unified_memory=_has_no_memory(asked),
    )


def read_pairs(door: Door, device: Device, facts: GpuFacts, others: Sequence[tuple[Device, GpuFacts]]) -> Iterator[Pair]:
    """A GPU with each of these others. Asks only the first."""
    asked = _Asked(door, device)
    for other, their in others:
        if not other.handle or other.gone:
            continue
        status = asked.whole("nvmlDeviceGetP2PStatus", other.handle, _P2P_READ)
        problem = None if status is None else _P2P.get(status, f"status {status}")
        level = asked.whole("nvmlDeviceGetTopologyCommonAncestor", other.handle)
        yield Pair(device.index, other.index, level, problem, joining(facts.nvlinks, their.nvlinks, their.bus))


def cuda_version(door: Door) -> tuple[int, int] | None:
    """The CUDA that the driver has, as (major, minor)."""
    version = door.query("nvmlSystemGetCudaDriverVersion_v2", None)
    return None if isinstance(version, Absent) else (version // 1000, version % 1000 // 10)


def _plain(value: object) -> int | None:
    found = number(value)
    return None if isinstance(found, Absent) else int(found)


def _cpus(words: Sequence[int] | None) -> frozenset[int] | None:
    if words is None:
        return None
    return frozenset(_WORD_BITS * place + bit for place, word in enumerate(words) for bit in range(_WORD_BITS) if word >> bit & 1)


def _clock_events(asked: _Asked) -> tuple[str, ...]:
    bits = asked.whole("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = asked.whole("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    return tuple(reason for reason, bit in CLOCK_EVENTS.items() if bits & bit)


def _utilization(asked: _Asked) -> float | None:
    """None in MIG mode, too."""
    rates = asked.raw("nvmlDeviceGetUtilizationRates")
    percent = None if rates is None else _plain(rates.gpu)
    return None if percent is None else percent / 100


def _has_no_memory(asked: _Asked) -> bool:
    name = asked.raw("nvmlDeviceGetName")
    return isinstance(name, str | bytes) and is_integrated(name if isinstance(name, str) else name.decode("utf-8", "replace"))
