"""GPUs as the agent's API tells of them, for aie-top's tests: healthy ones, and one of each trouble. Deterministic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from aie_telemetry.api import Event, Gpu, GpuFault, GpuProcess, MigInstance, Severity

TIME_S = 1_790_000_000.0
"""The moment of the fake agent's snapshot."""
GIB = float(1 << 30)
MHZ = 1e6


def wave(tick: int, length: int, level: float, swing: float, period: float) -> tuple[float, ...]:
    return tuple(round(level + swing * math.sin((tick - length + at) / period), 3) for at in range(length))


def process(tgid: int = 41_877, **changes: object) -> GpuProcess:
    base = GpuProcess(
        tgid=tgid,
        command="aie-engine serve --model smollm2",
        engine="smollm2",
        memory_bytes=int(61.2 * GIB),
        sm_ratio=0.71,
        container="3f2a91c07be4",
        pod="b1946ac9-2492-4d23-8d61-8ff3a2f0d1c7",
    )
    return msgspec.structs.replace(base, **changes)


def gpu(index: int = 0, tick: int = 0, **changes: object) -> Gpu:
    """An H100 at work for an engine, at nothing wrong."""
    busy = wave(tick + 7 * index, 120, 0.82, 0.12, 5.0 + index)
    used = tuple((61.4 + 0.02 * ((tick + at) % 30)) * GIB for at in range(120))
    power = wave(tick + 7 * index, 120, 560.0, 90.0, 5.0 + index)
    base = Gpu(
        index=index,
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-5a1e{index:04x}-0000-4000-8000-00000000{index:04x}",
        pci_bus_id=f"00000000:{0x18 + index:02X}:00.0",
        up=True,
        architecture="hopper",
        memory_total_bytes=79.65 * GIB,
        memory_used_bytes=used[-1],
        memory_reserved_bytes=0.56 * GIB,
        memory_free_bytes=79.65 * GIB - 0.56 * GIB - used[-1],
        utilization_ratio=busy[-1],
        sm_active_ratio=busy[-1] * 0.62,
        sm_occupancy_ratio=busy[-1] * 0.37,
        tensor_active_ratio=busy[-1] * 0.31,
        dram_active_ratio=busy[-1] * 0.48,
        sm_clock_hertz=1_755 * MHZ,
        sm_clock_max_hertz=1_980 * MHZ,
        memory_clock_hertz=2_619 * MHZ,
        power_watts=power[-1],
        power_limit_watts=700.0,
        temperature_celsius=58.0 + index,
        memory_temperature_celsius=71.0 + index,
        slowdown_celsius=89.0,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        pcie_tx_bytes_per_second=1.3e9,
        pcie_rx_bytes_per_second=2.9e9,
        nvlink_tx_bytes_per_second=41e9,
        nvlink_rx_bytes_per_second=40e9,
        nvlinks_active=18,
        nvlink_errors={"replay": 0.0, "recovery": 0.0, "crc_flit": 0.0, "crc_data": 0.0},
        pcie_replays=3.0,
        pcie_replays_per_second=0.0,
        energy_joules=1.46e9,
        throttled_seconds={"power": 131.0, "thermal": 0.0, "sync_boost": 0.0},
        throttled_ratio={"power": 0.02, "thermal": 0.0, "sync_boost": 0.0},
        ecc_uncorrected=0.0,
        ecc_corrected=2.0,
        ecc_uncorrected_lifetime=0.0,
        ecc_corrected_lifetime=17.0,
        remap_pending=False,
        remap_failed=False,
        remapped_rows={"corrected": 1.0, "uncorrected": 0.0},
        numa_node=index // 4,
        processes=(process(41_877 + index),),
        utilization_history=busy,
        memory_used_history=used,
        power_history=power,
    )
    return msgspec.structs.replace(base, **changes)


def unknown(index: int, **changes: object) -> Gpu:
    """One of which nothing is known but that it is there."""
    base = gpu(index)
    return msgspec.structs.replace(
        Gpu(index=index, name=base.name, uuid=base.uuid, pci_bus_id=base.pci_bus_id, up=True, simulated=base.simulated), **changes
    )


def lost(index: int, **changes: object) -> Gpu:
    told = {"up": False, "reason": "lost", "xids": {"79": 1.0}, "not_up_since_s": TIME_S - 185.0}
    return unknown(index, **(told | changes))


def throttled(index: int, tick: int = 0, **changes: object) -> Gpu:
    told = {
        "clock_events": ("hw_slowdown", "hw_thermal"),
        "clock_events_since_s": {"hw_slowdown": TIME_S - 44.0, "hw_thermal": TIME_S - 44.0},
        "throttled_seconds": {"power": 131.0, "thermal": 912.0, "sync_boost": 0.0},
        "throttled_ratio": {"power": 0.02, "thermal": 0.73, "sync_boost": 0.0},
        "temperature_celsius": 90.0,
        "sm_clock_hertz": 840 * MHZ,
        "power_watts": 388.0,
    }
    return gpu(index, tick, **(told | changes))


def fault(cause: str, text: str, severity: Severity = "warning", age_s: float | None = None) -> GpuFault:
    """As the agent tells of one that it has seen for so long."""
    return GpuFault(cause=cause, text=text, severity=severity, since_s=None if age_s is None else TIME_S - age_s)


def faulty(index: int, tick: int, faults: Sequence[GpuFault], **changes: object) -> Gpu:
    return gpu(index, tick, faults=tuple(faults), problems=tuple(one.text for one in faults), **changes)


def narrow(index: int, tick: int = 0, **changes: object) -> Gpu:
    told = fault("gpu_link_width", "PCIe link has 8 lanes of 16: reseat the card, look at riser and slot", age_s=1_260.0)
    return faulty(index, tick, [told], **({"pcie_width": 8} | changes))


def instance(mig: str, profile: str, used_gib: float, total_gib: float, active: float | None) -> MigInstance:
    return MigInstance(
        mig=mig,
        profile=profile,
        uuid=f"MIG-51a1a7ed-0000-5000-8000-{int(mig[0]):012x}",
        memory_total_bytes=total_gib * GIB,
        memory_used_bytes=used_gib * GIB,
        sm_active_ratio=active,
    )


def divided(index: int, tick: int = 0, **changes: object) -> Gpu:
    """In MIG mode: utilisation by the old call is not told."""
    told = {
        "utilization_ratio": None,
        "utilization_history": (),
        "mig_instances": ("1/0 3g.40gb", "2/0 2g.20gb", "3/0 1g.10gb"),
        "mig": (
            instance("1/0", "3g.40gb", 12.1, 39.5, 0.62),
            instance("2/0", "2g.20gb", 0.1, 19.6, 0.0),
            instance("3/0", "1g.10gb", 9.75, 9.8, None),
        ),
    }
    return gpu(index, tick, **(told | changes))


def unified(index: int = 0, tick: int = 0, **changes: object) -> Gpu:
    """A GB10: its memory is the host's, and its link says nothing."""
    told = {
        "name": "NVIDIA GB10",
        "unified_memory": True,
        "memory_total_bytes": 119.6 * GIB,
        "memory_reserved_bytes": None,
        "pcie_generation": 1,
        "pcie_generation_max": 5,
        "pcie_width": 1,
        "pcie_width_max": 16,
        "memory_temperature_celsius": None,
        "power_limit_watts": None,
    }
    return gpu(index, tick, **(told | changes))


def healthy(count: int, tick: int = 0, **changes: object) -> tuple[Gpu, ...]:
    return tuple(gpu(index, tick, **changes) for index in range(count))


def troubled(count: int, tick: int = 0, **changes: object) -> tuple[Gpu, ...]:
    """Of at least eight: one hot, one lost, one with a narrow link, one with XIDs, an orphan and its family, one at its limit."""
    family = (
        process(
            9_001,
            command="python train.py --nproc 2",
            engine=None,
            memory_bytes=int(1.2 * GIB),
            sm_ratio=None,
            container=None,
            pod=None,
        ),
        process(9_014, command="python train.py --rank 0", engine=None, parent_tgid=9_001, memory_bytes=int(20 * GIB)),
        process(7_310, command="vllm serve (defunct)", engine=None, orphan=True, memory_bytes=int(31 * GIB), sm_ratio=0.0),
    )
    orphan = fault("gpu_orphan", "1 orphan process holds memory 31.0 GiB: end it", age_s=7_500.0)
    special: dict[int, Gpu] = {
        1: throttled(1, tick),
        3: lost(3),
        4: narrow(4, tick),
        5: faulty(5, tick, [orphan], xids={"31": 4.0, "94": 1.0}, processes=family),
        6: gpu(6, tick, clock_events=("sw_power_cap",), power_watts=699.0),
        7: gpu(7, tick, name="NVIDIA RTX PRO 6000 Blackwell Server Edition with a name that does not end", sm_active_ratio=None),
    }
    rows = (special.get(index) or gpu(index, tick) for index in range(count))
    return tuple(msgspec.structs.replace(row, **changes) for row in rows)


def xid_event(time_s: float, index: int = 5, xid: int = 94) -> Event:
    """As the agent tells of one that just happened."""
    details: dict[str, float | str] = {
        "gpu": str(index),
        "xid": float(xid),
        "source": "nvml_events",
        "action": "Restart that application.",
    }
    return Event(
        time_s=time_s, kind="gpu_xid", engine="", summary=f"GPU {index}: XID {xid}: memory error, contained", details=details
    )
