"""The list that a good engineer goes through before software is blamed: facts in, one line for each with what to do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.links import Link, Linked, card_lanes, has_built_in_links, inactive_problem, slot_problem, width_problem
from aie_agent.sources.cuda_runtime import CudaLibraries
from aie_agent.sources.memory_channels import Channels
from aie_agent.sources.nvml.facts import LEVELS, GpuFacts, Pair
from aie_agent.sources.nvml.slots import Slot
from aie_telemetry.clock_events import CLOCK_EVENTS, severity_now
from aie_telemetry.xids import BY_NUMBER, describe

_FAR: Final = 50
_LIMIT_SLACK: Final = 0.99


class Check(NamedTuple):
    """One line: what was looked at, whether it is as it should be, what was found, what to do if it is not."""

    what: str
    ok: bool
    found: str
    remedy: str = ""


def check_gpu(gpu: GpuFacts, numa_nodes: int, others: Sequence[GpuFacts] = ()) -> list[Check]:
    """Everything about one GPU. What is not told is left out. `others` are the other GPUs of the host."""
    link, slot, *rest = (check(gpu) for check in _GPU_CHECKS)
    return [each for each in (link, slot, _nvlink(gpu, others), *rest, _numa(gpu, numa_nodes)) if each is not None]


def _link(gpu: GpuFacts) -> Check | None:
    if gpu.unified_memory:
        return Check("link", True, "unified memory: there is no link to the host's to judge")
    link = _link_of(gpu)
    if link.width is None or link.width_max is None:
        return None
    problem = width_problem(link)
    text = f"PCIe generation {_or_unknown(gpu.generation)} of {_or_unknown(gpu.generation_max)}"
    text += f", {link.width} of {link.width_max} lanes"
    if problem is None and link.width < link.width_max:
        text += ", all that the slot has"
    if gpu.generation is not None and gpu.generation_max is not None and gpu.generation < gpu.generation_max:
        text += " (an idle GPU steps down; the agent judges it while it is busy)"
    return Check("link", problem is None, text, problem or "")


def _link_of(gpu: GpuFacts) -> Link:
    slot = _judged(gpu)
    return Link(
        width=gpu.width,
        width_max=card_lanes(gpu.width_max, slot.card_width if slot else None),
        port_width=slot.port_width if slot else None,
        unified_memory=gpu.unified_memory,
    )


def _judged(gpu: GpuFacts) -> Slot | None:
    return None if gpu.slot is None else gpu.slot.judged(gpu.width, gpu.generation)


def _slot(gpu: GpuFacts) -> Check | None:
    slot, known = gpu.slot, _judged(gpu)
    if slot is None or known is None or gpu.unified_memory:
        return None
    if not known.is_virtual and slot.port_generation is None and slot.port_width is None:
        return None
    text = f"card generation {_or_unknown(slot.card_generation)} x{_or_unknown(slot.card_width)}"
    text += f", slot generation {_or_unknown(slot.port_generation)} x{_or_unknown(slot.port_width)}"
    if known.is_virtual:
        return Check("slot", True, f"{text}: the slot is a hypervisor's, and says nothing")
    wrong = [slot_problem(_link_of(gpu)) or ""]
    if slot.port_generation is not None and slot.port_generation < (slot.card_generation or 0):
        wrong.append("the slot is older than the card, or limited in the BIOS: copies to the GPU are slower")
    remedy = "; ".join(filter(None, wrong))
    return Check("slot", not remedy, text, remedy)


def _nvlink(gpu: GpuFacts, others: Sequence[GpuFacts]) -> Check | None:
    links = gpu.nvlinks
    if links is None:
        return None
    peers = [other.nvlinks.active for other in others if other.name == gpu.name and other.nvlinks is not None]
    problem = inactive_problem(
        Linked(
            active=links.active,
            inactive=links.inactive,
            name=gpu.name,
            best_of_peers=max(peers, default=None),
            is_only_gpu=not others,
            is_divided=bool(gpu.mig),
        )
    )
    text = f"{links.active} of {links.active + links.inactive} links active"
    if not links.active and problem is None:
        text += f": {_no_links(gpu)}"
    if links.errors:
        errors = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in links.errors.items())
        text += f"; errors since the driver was loaded: {errors} (the agent judges whether they rise)"
    return Check("NVLink", problem is None, text, problem or "")


def _no_links(gpu: GpuFacts) -> str:
    """Why it is normal that none is active."""
    if not has_built_in_links(gpu.name):
        return "no bridge"
    return "MIG divides it" if gpu.mig else "no other GPU here answers"


def _persistence(gpu: GpuFacts) -> Check | None:
    if gpu.persistence is None:
        return None
    remedy = "enable the service nvidia-persistenced (or nvidia-smi -pm 1): else the driver unloads when nobody uses the GPU"
    return Check("persistence mode", gpu.persistence, "on" if gpu.persistence else "off", remedy)


def _clocks(gpu: GpuFacts) -> Check | None:
    if gpu.sm_clock_mhz is None or gpu.sm_clock_max_mhz is None:
        return None
    events = {name: CLOCK_EVENTS.get(name) for name in gpu.clock_events if name != "idle"}
    text = f"SM {gpu.sm_clock_mhz:.0f} of {gpu.sm_clock_max_mhz:.0f} MHz"
    if events:
        text += ", held down by: " + ", ".join(f"{name} ({event.words})" if event else name for name, event in events.items())
    if _is_held_lower(gpu):
        text += (
            f"; application clocks are set to {gpu.app_clock_mhz:.0f} MHz of the board's own {gpu.app_clock_default_mhz:.0f}:"
            " nvidia-smi -rac gives them back, if that is not meant"
        )
    now = gpu.clock_events, gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.utilization_ratio
    remedies = [event.do for name, event in events.items() if event and severity_now(name, *now) in ("warning", "critical")]
    return Check("clocks", not remedies, text, " ".join(dict.fromkeys(remedies)))


def _is_held_lower(gpu: GpuFacts) -> bool:
    """What somebody has set on purpose is worth a word, and not wrong."""
    return gpu.app_clock_mhz is not None and gpu.app_clock_default_mhz is not None and gpu.app_clock_mhz < gpu.app_clock_default_mhz


def _power(gpu: GpuFacts) -> Check | None:
    limit, default = gpu.power_limit_w, gpu.power_default_w
    if limit is None or default is None:
        return None
    text = f"limit {limit:.0f} W, the board's own {default:.0f} W"
    return Check("power", limit >= _LIMIT_SLACK * default, text, f"nvidia-smi -pl {default:.0f}, if the lower limit is not meant")


def _memory_errors(gpu: GpuFacts) -> Check | None:
    if gpu.ecc is None and gpu.remap_pending is None:
        return None
    wrong = [
        text
        for is_wrong, text in (
            (gpu.remap_failed, "a row could not be replaced: have the board replaced"),
            (gpu.remap_pending, "a row waits to be replaced: reset the GPU"),
            (bool(gpu.ecc_uncorrected), f"{gpu.ecc_uncorrected} uncorrected errors since the driver was loaded: reset the GPU"),
            (gpu.ecc_pending is not None and gpu.ecc != gpu.ecc_pending, "ECC changes at the next reset: reset the GPU"),
        )
        if is_wrong
    ]
    return Check("memory errors", not wrong, "ECC is on" if gpu.ecc else "ECC is off", "; ".join(wrong))


def _mig(gpu: GpuFacts) -> Check | None:
    if gpu.mig is None:
        return None
    pending = gpu.mig_pending is not None and gpu.mig_pending != gpu.mig
    return Check("MIG", not pending, "divided" if gpu.mig else "not divided", "MIG changes at the next reset: reset the GPU")


def _gpm(gpu: GpuFacts) -> Check | None:
    if gpu.gpm is None:
        return None
    found = "SM, tensor and DRAM activity are measured" if gpu.gpm else "no SM, tensor and DRAM activity: Hopper and later have it"
    return Check("GPM", True, found)


def _numa(gpu: GpuFacts, numa_nodes: int) -> Check | None:
    if numa_nodes <= 1:
        return None
    near = f", near CPUs {ranges(gpu.cpus)}" if gpu.cpus else ""
    if gpu.numa_node is None:
        return Check(
            "NUMA", False, f"no node{near}", "the BIOS does not tell the node of this slot: engines cannot be bound near it"
        )
    return Check("NUMA", True, f"node {gpu.numa_node}{near}")


_GPU_CHECKS: Final[tuple[Callable[[GpuFacts], Check | None], ...]] = (
    _link,
    _slot,
    _clocks,
    _power,
    _memory_errors,
    _persistence,
    _mig,
    _gpm,
)


def check_topology(pairs: Sequence[Pair]) -> list[Check]:
    """How the GPUs of the host reach each other. Nothing for a single one."""
    if not pairs:
        return []
    joined = Counter(pair.nvlinks for pair in pairs if pair.nvlinks)
    levels = Counter(pair.level for pair in pairs if pair.level is not None and not pair.nvlinks)
    told = [
        *(f"{_pairs(count)} joined by {links} NVLinks (NV{links})" for links, count in sorted(joined.items(), reverse=True)),
        *(f"{_pairs(count)} {LEVELS.get(level, level)}" for level, count in sorted(levels.items())),
    ]
    text = "; ".join(told)
    blocked = [pair for pair in pairs if pair.p2p_problem]
    far = [pair for pair in blocked if pair.level == _FAR]
    checks = [Check("GPUs to each other", True, text or "not told")]
    if len(blocked) > len(far):
        worst = next(pair for pair in blocked if pair not in far)
        checks.append(
            Check(
                "peer to peer",
                False,
                f"{len(blocked)} of {len(pairs)} pairs cannot, such as GPU {worst.one} and {worst.other}: {worst.p2p_problem}",
                "copies between them go through the host's memory: switch off IOMMU and ACS for these slots where it should work",
            )
        )
    return checks


def _pairs(count: int) -> str:
    return f"{count} pair{'s' if count > 1 else ''}"


def check_process(
    name: str,
    libraries: CudaLibraries,
    driver: str,
    cuda: tuple[int, int] | None,
    allowed: frozenset[int] | None,
    near: frozenset[int] | None,
) -> list[Check]:
    """A process on a GPU: its CUDA against the driver's, and where it may run against where the GPU is."""
    checks = [*_driver_library(name, libraries, driver), *_runtime(name, libraries, cuda)]
    if allowed and near and not allowed & near:
        remedy = f"start it on CPUs {ranges(near)} (numactl --cpunodebind, a CPU set): every copy crosses the processors' link"
        checks.append(Check(f"{name}: CPUs", False, f"runs on CPUs {ranges(allowed)}, far from its GPU", remedy))
    return checks


def _driver_library(name: str, libraries: CudaLibraries, driver: str) -> Iterable[Check]:
    if libraries.driver is None:
        return
    what = f"{name}: driver library"
    if libraries.is_compat:
        yield Check(what, True, f"libcuda {libraries.driver} of CUDA's compat package, driver {driver}")
    elif libraries.is_deleted or (driver and libraries.driver != driver):
        yield Check(
            what, False, f"libcuda {libraries.driver}, driver {driver}", "the driver was changed under it: restart the process"
        )
    else:
        yield Check(what, True, f"libcuda {libraries.driver}, as the driver")


def _runtime(name: str, libraries: CudaLibraries, cuda: tuple[int, int] | None) -> Iterable[Check]:
    if libraries.runtime is None or cuda is None:
        return
    what = f"{name}: CUDA runtime"
    major, minor = libraries.runtime
    shown = f"{major}" if minor is None else f"{major}.{minor}"
    text = f"CUDA {shown}, the driver has {cuda[0]}.{cuda[1]}"
    if major > cuda[0] and not libraries.is_compat:
        yield Check(what, False, text, "the driver is too old for it: update the driver, or install the cuda-compat package")
    elif major == cuda[0] and (minor or 0) > cuda[1]:
        yield Check(what, True, f"{text}: works, but kernels that come as PTX may be refused")
    else:
        yield Check(what, True, text)


def check_xids(seen: Iterable[tuple[str, int, float]]) -> list[Check]:
    """XIDs that stand in the kernel's log, as (bus id, number, seconds ago): one line for each number of a GPU, the newest first.

    What an application did to itself, and what only tells of another error, says nothing against the host.
    """
    ages: dict[tuple[str, int], list[float]] = {}
    for bus, xid, age_s in seen:
        ages.setdefault((bus, xid), []).append(age_s)
    checks = []
    for (bus, xid), times in sorted(ages.items(), key=lambda item: min(item[1])):
        known = BY_NUMBER.get(xid)
        harmless = known is not None and known.blame in ("application", "report")
        often = "once" if len(times) == 1 else f"{len(times)} times, last"
        text = f"{describe(xid)}: {often} {_ago(min(times))}"
        remedy = known.action if known is not None else "see NVIDIA's catalogue of XIDs"
        checks.append(Check(f"XID {xid} of the GPU at {bus}", harmless, text, remedy))
    return checks


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{max(seconds, 0.0):.0f} seconds ago"


def check_memory_channels(found: Channels) -> Check | None:
    """Empty memory channels. None where the firmware tells nothing."""
    if found.slots == 0:
        return None
    text = f"{found.filled} of {found.slots} slots filled"
    if found.channels:
        text += f", {found.channels - len(found.empty)} of {found.channels} channels used"
    remedy = f"put a module into {', '.join(found.empty)}: each empty channel takes its share of the memory's bandwidth away"
    return Check("memory channels", not found.empty, text, remedy)


def ranges(cpus: Iterable[int] | None) -> str:
    """CPU numbers as Linux writes them: "0-31,64-95"."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus or ()):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def _or_unknown(value: int | None) -> str:
    return "?" if value is None else str(value)
