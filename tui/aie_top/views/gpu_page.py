"""All about one GPU: what each number means, why it is slow, and what to do. And the page of all processes on GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aie_telemetry.api import Gpu
from aie_top import charts, gpu_words
from aie_top import format as fmt
from aie_top.columns.cells import GPU_FULL, tone_for
from aie_top.columns.gpus import link_text, memory_ratio
from aie_top.gpu_processes import process_rows
from aie_top.gpu_state import times_seen
from aie_top.rows import Frame, GpuRow
from aie_top.text import Line, Span, Tone, crop, fit, line, wrap
from aie_top.views.facts import LABEL_WIDTH, facts, sentences, title, with_unit
from aie_top.views.gpus import process_table
from aie_top.views.history import band_lines, gpu_band
from aie_top.views.problems import MARKS
from aie_top.views.tables import Place

_CHART_HEIGHT: Final = 6
_BAR_MOST: Final = 40


def gpu_page(frame: Frame, key: tuple[str, str], width: int) -> list[Line]:
    row = next((row for row in frame.gpus if row.key == key), None)
    if row is None:
        return [crop(one, width) for one in (line(Span(" That GPU is gone.", "warn")), line(Span(" esc goes back.", "dim")))]
    gpu = row.gpu
    lines = [
        title(f"GPU {gpu.index}: {gpu.name}{', simulated' if gpu.simulated else ''}"),
        *facts(_about(row), width),
        *_wrong(row, width),
        *(_measured(gpu, width) if gpu.up else ()),  # of one that does not answer nothing is known
        title("ERRORS"),
        *facts(_errors(gpu), width),
        *_xids(gpu, width),
        *_mig(gpu, width),
        *_processes(row, width),
    ]
    band = gpu_band(row)
    if band:
        lines += band_lines(band, width, _CHART_HEIGHT, len(band))
    return [crop(one, width) for one in lines]


@dataclass(frozen=True)
class GpuPage:
    """The page of one GPU, which knows its neighbour."""

    key: tuple[str, str]

    def __call__(self, frame: Frame, width: int) -> list[Line]:
        return gpu_page(frame, self.key, width)

    def next_one(self, frame: Frame) -> GpuPage:
        """The GPU after it; the first one after the last, and when it is gone."""
        keys = [row.key for row in frame.gpus]
        at = keys.index(self.key) + 1 if self.key in keys else 0
        return GpuPage(keys[at % len(keys)]) if keys else self


def gpu_processes_page(frame: Frame, width: int) -> list[Line]:
    """As many lines as there are processes: the page scrolls."""
    if not frame.gpu_processes:
        return [crop(line(Span(" No process holds a GPU, or the agent sees no GPU.", "dim")), width)]
    rows = frame.gpu_processes
    return [crop(one, width) for one in process_table(rows, Place(width, len(rows) + 1), several_hosts=frame.several_hosts)]


def _about(row: GpuRow) -> Iterable[tuple[str, str | None]]:
    gpu = row.gpu
    state = "up" if gpu.up else f"✖ {gpu_words.not_up(gpu.reason).short}"
    yield "state", state if row.stale_s is None else f"stale: last seen {fmt.age(row.stale_s)} ago ({state})"
    yield "host", row.host
    yield (
        "simulated",
        "yes: a stand-in library speaks in the driver's place, and no number here is measured" if gpu.simulated else None,
    )
    yield "UUID", gpu.uuid
    yield "bus id", gpu.pci_bus_id
    yield "architecture", gpu.architecture
    yield "NUMA node", fmt.count(gpu.numa_node) if gpu.numa_node is not None else None
    yield "memory is", "the host's (unified): used and total are of the host" if gpu.unified_memory else None


def _wrong(row: GpuRow, width: int) -> list[Line]:
    found = [one for one in row.found if one.severity is not None]
    if not found:
        return []
    lines = [title("WHAT IS WRONG WITH IT")]
    for one in found:
        mark, tone = MARKS[one.severity or "info"]
        text = f"{one.words} ({one.detail})" if one.detail else one.words
        for at, part in enumerate(wrap(text, max(width - 5, 8))):
            lines.append(line(Span(f" {mark if at == 0 else ' '} ", tone), Span(part, "strong")))
        lines += sentences([one.do] if one.do else [], width, "dim", 3)
    return lines


def _measured(gpu: Gpu, width: int) -> list[Line]:
    return [
        *_memory(gpu, width),
        title("AT WORK"),
        *facts(_work(gpu), width),
        title("CLOCKS, POWER, HEAT"),
        *facts(_clocks(gpu), width),
        *_clock_events(gpu, width),
        title("LINKS"),
        *facts(_links(gpu), width),
    ]


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
    yield "chip", _against(gpu.temperature_celsius, gpu.slowdown_celsius)
    yield "memory chips", fmt.celsius(gpu.memory_temperature_celsius)


def _against(now: float | None, limit: float | None) -> str:
    return f"{fmt.celsius(now)}, slows down at {fmt.celsius(limit)}" if limit is not None else fmt.celsius(now)


def _clock_events(gpu: Gpu, width: int) -> list[Line]:
    """Also those that are normal: whoever wonders why the clock is not at its highest finds the reason here."""
    lines: list[Line] = []
    for name in gpu.clock_events:
        word = gpu_words.clock_event(name)
        lines += facts([("held down by", f"{name}: {word.words}. {word.do}".rstrip())], width)
    return lines or facts([("held down by", "nothing")], width)


def _links(gpu: Gpu) -> Iterable[tuple[str, str | None]]:
    if gpu.unified_memory:
        yield "PCIe", "none that counts: the GPU shares the host's memory"
    else:
        most = " ".join(
            part
            for part in (
                f"Gen{gpu.pcie_generation_max}" if gpu.pcie_generation_max is not None else "",
                f"x{gpu.pcie_width_max}" if gpu.pcie_width_max is not None else "",
            )
            if part
        )
        yield "PCIe now", link_text(gpu)
        yield "PCIe at most", most or fmt.UNKNOWN
    yield "from the host", _per_second(gpu.pcie_rx_bytes_per_second)
    yield "to the host", _per_second(gpu.pcie_tx_bytes_per_second)
    yield "NVLinks active", fmt.count(gpu.nvlinks_active)
    if gpu.nvlinks_active:
        yield "NVLink in", _per_second(gpu.nvlink_rx_bytes_per_second)
        yield "NVLink out", _per_second(gpu.nvlink_tx_bytes_per_second)


_YES_NO: Final = {None: fmt.UNKNOWN, True: "▲ yes: reset the GPU", False: "no"}


def _errors(gpu: Gpu) -> Iterable[tuple[str, str | None]]:
    yield "ECC uncorrected", fmt.count(gpu.ecc_uncorrected)
    yield "row remap due", _YES_NO[gpu.remap_pending]
    yield "XIDs", "none seen by this agent" if not gpu.xids else None


def _xids(gpu: Gpu, width: int) -> list[Line]:
    pairs = []
    for number, times in sorted(gpu.xids.items(), key=lambda pair: -pair[1]):
        word = gpu_words.xid(number)
        mark = MARKS[word.severity or "info"][0]
        pairs.append((f"{mark} {word.short}", f"{times_seen(times)}: {word.words}. {word.do}"))
    return facts(pairs, width)


def _mig(gpu: Gpu, width: int) -> list[Line]:
    return [title("MIG INSTANCES"), *sentences(gpu.mig_instances, width)] if gpu.mig_instances else []


def _processes(row: GpuRow, width: int) -> list[Line]:
    """Only what they hold of this GPU."""
    rows = process_rows([row])
    if not rows:
        return [title("PROCESSES"), line("  ", Span("none holds a context, or the driver does not tell", "dim"))]
    return process_table(rows, Place(width, len(rows) + 1), several_hosts=False)
