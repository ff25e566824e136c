"""What is measured of one GPU, with what each number means: memory, work, clocks, links, errors, MIG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from aie_telemetry.api import Gpu, MigInstance
from aie_top import charts, gpu_words
from aie_top import format as fmt
from aie_top.columns.cells import GPU_FULL, tone_for
from aie_top.columns.gpus import heat_text, link_text, memory_ratio
from aie_top.text import Line, Span, Tone, fit, line
from aie_top.views.facts import LABEL_WIDTH, facts, sentences, title, with_unit

_BAR_MOST: Final = 40
_MIG_WIDTH: Final = 7
_PROFILE_WIDTH: Final = 14
_MIG_BAR: Final = 16
_YES_NO: Final = {None: fmt.UNKNOWN, True: "▲ yes", False: "no"}


def measured(gpu: Gpu, window_s: float | None, width: int) -> list[Line]:
    """What a GPU tells while it answers."""
    return [
        *_memory(gpu, width),
        title("AT WORK"),
        *facts(_work(gpu), width),
        title("CLOCKS, POWER, HEAT"),
        *facts(_clocks(gpu), width),
        *_held_down(gpu, window_s, width),
        title("LINKS"),
        *facts(_links(gpu), width),
    ]


def errors(gpu: Gpu) -> Iterable[tuple[str, str | None]]:
    """Counts of what went wrong, and whether something is due."""
    yield "ECC uncorrected", _in_life(gpu.ecc_uncorrected, gpu.ecc_uncorrected_lifetime)
    yield "ECC corrected", _in_life(gpu.ecc_corrected, gpu.ecc_corrected_lifetime)
    yield "rows replaced", _each(gpu.remapped_rows)
    yield "pages retired", _each(gpu.retired_pages)
    yield "row remap due", _YES_NO[gpu.remap_pending]
    yield "remap failed", _YES_NO[gpu.remap_failed] if gpu.remap_failed is not None else None
    yield "XIDs", "none seen by this agent" if not gpu.xids else None


def mig(gpu: Gpu, width: int) -> list[Line]:
    """The instances, each with its own memory and multiprocessors; of an agent of before, their names."""
    if not gpu.mig:
        return [title("MIG INSTANCES"), *sentences(gpu.mig_instances, width)] if gpu.mig_instances else []
    memory = f"{'MEMORY':>{_MIG_BAR + 1 + fmt.SIZE_OF_WIDTH}}"
    head = f"{'MIG':<{_MIG_WIDTH}} {'PROFILE':<{_PROFILE_WIDTH}} {memory}  SM ACTIVE  "
    room = width - len(head) - 1 >= max(len(one.uuid) for one in gpu.mig)  # half a UUID names nothing
    lines = [line(" ", Span(f"{head}UUID" if room else head, "strong"), fill="title")]
    return lines + [_instance(one, one.uuid if room else "") for one in gpu.mig]


def _instance(one: MigInstance, uuid: str) -> Line:
    used, total = one.memory_used_bytes, one.memory_total_bytes
    ratio = used / total if used is not None and total else None
    filled, empty = charts.bar(ratio, _MIG_BAR)
    tone = tone_for(ratio, GPU_FULL)
    shown: Tone = "bar" if tone == "normal" else tone
    return line(
        " ",
        Span(f"{fit(one.mig, _MIG_WIDTH)} {fit(one.profile or fmt.UNKNOWN, _PROFILE_WIDTH)} "),
        Span(filled, shown),
        Span(empty, "track"),
        Span(f" {fit(fmt.size_of(used, total), fmt.SIZE_OF_WIDTH, right=True)}"),
        Span(f"  {fmt.percent(one.sm_active_ratio):>9}  "),
        Span(uuid, "dim"),
    )


def _memory(gpu: Gpu, width: int) -> list[Line]:
    ratio = memory_ratio(gpu)
    tone = tone_for(ratio, GPU_FULL)
    filled, empty = charts.bar(ratio, min(max(width - LABEL_WIDTH - 12, 4), _BAR_MOST))
    meter: list[Line] = []
    if ratio is not None:
        label = Span(fit("in use", LABEL_WIDTH), "dim")
        shown: Tone = "bar" if tone == "normal" else tone
        meter = [line("  ", label, Span(filled, shown), Span(empty, "track"), Span(f" {fmt.percent(ratio)}"))]
    return [title("MEMORY"), *meter, *facts(_memory_facts(gpu), width)]


def _memory_facts(gpu: Gpu) -> Iterable[tuple[str, str | None]]:
    yield "processes hold", fmt.size(gpu.memory_used_bytes)
    yield "driver reserves", fmt.size(gpu.memory_reserved_bytes)
    yield "free", fmt.size(gpu.memory_free_bytes)
    yield "total", fmt.size(gpu.memory_total_bytes)


def _work(gpu: Gpu) -> Iterable[tuple[str, str | None]]:
    yield "utilisation", f"{fmt.percent(gpu.utilization_ratio)}: share of time in which a kernel ran, be it one thread"
    yield "SM active", _gpm(gpu.sm_active_ratio, "share of multiprocessors that had work: how much of the GPU was used")
    yield "SM occupancy", _gpm(gpu.sm_occupancy_ratio, "warps resident, of those that the multiprocessors could hold")
    yield "tensor active", _gpm(gpu.tensor_active_ratio, "share of time in which tensor cores worked")
    yield "DRAM active", _gpm(gpu.dram_active_ratio, "share of the memory's bandwidth: near 100 % it is the limit of decoding")


def _gpm(ratio: float | None, meaning: str) -> str | None:
    return f"{fmt.percent(ratio)}: {meaning}" if ratio is not None else f"{fmt.UNKNOWN}  (told by Hopper and later)"


def _per_second(size: float | None) -> str:
    return f"{fmt.size(size)}/s" if size is not None else fmt.UNKNOWN


def _clocks(gpu: Gpu) -> Iterable[tuple[str, str | None]]:
    yield "SM clock", with_unit(fmt.clock_of(gpu.sm_clock_hertz, gpu.sm_clock_max_hertz), "MHz")
    yield "memory clock", with_unit(fmt.megahertz(gpu.memory_clock_hertz), "MHz")
    yield "power", fmt.watts(gpu.power_watts)
    yield "power limit", fmt.watts(gpu.power_limit_watts)
    yield "chip", _against(heat_text(gpu), gpu.slowdown_celsius)
    yield "memory chips", fmt.celsius(gpu.memory_temperature_celsius)
    yield "energy", f"{fmt.energy(gpu.energy_joules)} so far" if gpu.energy_joules is not None else None
    yield "fans", f"{fmt.percent(gpu.fan_speed_ratio)} of their highest speed" if gpu.fan_speed_ratio is not None else None


def _against(now: str, limit: float | None) -> str:
    return f"{now}, slows down at {fmt.celsius(limit)}" if limit is not None else now


def _held_down(gpu: Gpu, window_s: float | None, width: int) -> list[Line]:
    """Also what is normal: whoever wonders why the clock is not at its highest finds the reason here. What to do about the others
    stands among what is wrong."""
    lines: list[Line] = []
    for name in gpu.clock_events:
        word = gpu_words.clock_event(name)
        do = f". {word.do}" if word.do and word.severity is None else ""
        lines += facts([("held down by", f"{name}: {word.words}{do}")], width)
    lines = lines or facts([("held down by", "nothing")], width)
    return lines + facts([("held down for", _throttled(gpu, window_s))] if gpu.throttled_seconds else [], width)


def _throttled(gpu: Gpu, window_s: float | None) -> str:
    """Thermal 15 min (73.0% of the last 60 s), power 131 s: since the driver was loaded, the one that matters now first."""
    known = {reason: seconds for reason, seconds in gpu.throttled_seconds.items() if seconds > 0}
    if not known:
        return "no time since the driver was loaded"
    shares = {reason: gpu.throttled_ratio.get(reason, 0.0) for reason in known}
    parts = []
    for reason in sorted(known, key=lambda reason: (-shares[reason], -known[reason])):
        recent = f" ({fmt.percent(shares[reason])} of the last {fmt.age(window_s)})" if shares[reason] > 0 else ""
        parts.append(f"{reason.replace('_', ' ')} {fmt.age(known[reason])}{recent}")
    return f"{', '.join(parts)}; since the driver was loaded"


def _links(gpu: Gpu) -> Iterable[tuple[str, str | None]]:
    if gpu.unified_memory:
        yield "PCIe", "none that counts: the GPU shares the host's memory"
    else:
        most = (("Gen", gpu.pcie_generation_max), ("x", gpu.pcie_width_max))
        yield "PCIe now", link_text(gpu)
        yield "PCIe at most", " ".join(f"{mark}{number}" for mark, number in most if number is not None) or fmt.UNKNOWN
    yield "from the host", _per_second(gpu.pcie_rx_bytes_per_second)
    yield "to the host", _per_second(gpu.pcie_tx_bytes_per_second)
    yield "PCIe replays", _replays(gpu)
    yield "NVLinks active", fmt.count(gpu.nvlinks_active)
    if gpu.nvlinks_active:
        yield "NVLink in", _per_second(gpu.nvlink_rx_bytes_per_second)
        yield "NVLink out", _per_second(gpu.nvlink_tx_bytes_per_second)
    yield "NVLink errors", _each(gpu.nvlink_errors)


def _replays(gpu: Gpu) -> str:
    """A few are normal, a steady rise is a bad link: so both, the count and whether it rises."""
    if gpu.pcie_replays is None:
        return fmt.UNKNOWN
    now = gpu.pcie_replays_per_second
    return f"{fmt.count(gpu.pcie_replays)}, now {fmt.rate(now)}/s" if now else fmt.count(gpu.pcie_replays)


def _in_life(number: float | None, lifetime: float | None) -> str:
    """Since the driver was loaded, and since the board was made."""
    return fmt.count(number) if lifetime is None else f"{fmt.count(number)} ({fmt.count(lifetime)} ever)"


def _each(counts: Mapping[str, float]) -> str | None:
    """None where there is nothing to tell; else each kind that was counted."""
    if not counts:
        return None
    seen = {kind: number for kind, number in counts.items() if number}
    return ", ".join(f"{fmt.count(number)} {kind.replace('_', ' ')}" for kind, number in seen.items()) or "none"
