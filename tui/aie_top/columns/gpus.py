"""The GPU table: one row a column, in the order of the screen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from aie_telemetry.api import Gpu
from aie_top import charts
from aie_top import format as fmt
from aie_top.columns.cells import GPU_FULL, Levels, bar_column, history_spans, host_column, number_spans
from aie_top.gpu_state import Condition, when
from aie_top.rows import GpuRow
from aie_top.table import Column
from aie_top.text import Span, Tone, cell_width, fit

# Mark and tone by severity, as in the list of what is wrong; a condition without one is only a word.
_MARKS: Final[dict[str | None, tuple[str, Tone]]] = {
    "critical": ("✖ ", "bad"),
    "warning": ("▲ ", "warn"),
    "info": ("· ", "info"),
    None: ("", "dim"),
}
_HEAT_SIGNS: Final[dict[Tone, str]] = {"bad": "✖", "warn": "▲"}
_MAKER: Final = "NVIDIA "


def gpu_columns(rows: Sequence[GpuRow], *, several_hosts: bool) -> list[Column[GpuRow]]:
    """Those that say something here: none that no GPU has a value for, where older GPUs never have one."""
    kept = [column for column in GPU_COLUMNS if column.key not in _OPTIONAL or any(_OPTIONAL[column.key](row.gpu) for row in rows)]
    kept = [column for column in kept if column.key != "host" or several_hosts]
    if rows and all(row.gpu.simulated for row in rows):
        kept[0] = dataclasses.replace(kept[0], title="GPUS (SIM)", about=kept[0].about)
    return kept


def short_name(gpu: Gpu, width: int) -> str:
    """Its number, whether it is simulated, and of its name without the maker as many words as fit; as wide as `width`."""
    lead = f"{gpu.index}{' sim' if gpu.simulated else ''}"
    words = gpu.name.removeprefix(_MAKER).split()
    while len(words) > 1 and cell_width(" ".join((lead, *words))) > width:
        words.pop()
    return fit(" ".join((lead, *words)), width)


def state_spans(found: Sequence[Condition], width: int) -> tuple[Span, ...]:
    """As many conditions as fit whole, worst first, and how many more there are."""
    if not found:
        return (Span(fit("ok", width), "good"),)
    spans: list[Span] = []
    room = width
    for at, one in enumerate(found):
        mark, tone = _MARKS[one.severity]
        text = mark + one.short
        left = len(found) - at - 1
        needed = cell_width(text) + (3 if left else 0)
        if spans and needed > room:
            spans.append(Span(fit(f"+{left + 1}", room), "dim"))
            return tuple(spans)
        text = fit(text, min(cell_width(text), room - (3 if left and room > 8 else 0)))
        spans.append(Span(text, tone))
        room -= cell_width(text)
        if left and room:
            spans.append(Span(" "))
            room -= 1
    return (*spans, Span(" " * room))


def heat_tone(gpu: Gpu) -> Tone:
    """Only against the GPU's own limit, and only in the last degrees below it. `heat_text` has a sign for each tone."""
    if gpu.temperature_celsius is None or gpu.slowdown_celsius is None:
        return "normal"
    below = gpu.slowdown_celsius - gpu.temperature_celsius
    return "bad" if below <= 0 else "warn" if below <= 3 else "normal"


def heat_text(gpu: Gpu) -> str:
    """▲87°C: near its limit; ✖90°C: at it or above."""
    written = fmt.celsius(gpu.temperature_celsius)
    return _HEAT_SIGNS.get(heat_tone(gpu), "") + written if written != fmt.UNKNOWN else written


def memory_ratio(gpu: Gpu) -> float | None:
    return gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_used_bytes is not None and gpu.memory_total_bytes else None


def link_text(gpu: Gpu) -> str:
    """Gen5 x16; a generation below the highest is normal while idle, so only width is judged."""
    if gpu.unified_memory:
        return "unified"
    generation = f"Gen{gpu.pcie_generation}" if gpu.pcie_generation is not None else ""
    width = f"x{gpu.pcie_width}" if gpu.pcie_width is not None else ""
    return " ".join(filter(None, (generation, width))) or fmt.UNKNOWN


def _number(
    key: str,
    title: str,
    width: int,
    priority: int,
    value: Callable[[Gpu], float | None],
    text: Callable[[float | None], str],
    about: str,
    levels: Levels | None = None,
) -> Column[GpuRow]:
    return Column(
        key=key,
        title=title,
        width=width,
        priority=priority,
        spans=lambda row, room: number_spans(value(row.gpu), text, row, room, levels),
        about=about,
    )


def _text(
    key: str,
    title: str,
    width: int,
    priority: int,
    text: Callable[[Gpu], str],
    about: str,
    tone: Callable[[Gpu], Tone] | None = None,
) -> Column[GpuRow]:
    """A text at the right, since these are numbers with a unit or two."""

    def spans(row: GpuRow, room: int) -> tuple[Span, ...]:
        written = text(row.gpu)
        dim = row.stale_s is not None or written == fmt.UNKNOWN
        return (Span(fit(written, room, right=True), "dim" if dim else tone(row.gpu) if tone is not None else "normal"),)

    return Column(key=key, title=title, width=width, priority=priority, spans=spans, about=about)


def _history(
    key: str,
    title: str,
    priority: int,
    points_of: Callable[[Gpu], Sequence[float | None]],
    top: Callable[[Gpu], float | None],
    about: str,
) -> Column[GpuRow]:
    """Between 0 and what is the most for this GPU, so that GPUs can be compared; its own highest where that is not known."""

    def spans(row: GpuRow, width: int) -> tuple[Span, ...]:
        points, most = points_of(row.gpu), top(row.gpu)
        scale = charts.Scale(0.0, most) if most else charts.from_zero(points[-width:])
        return history_spans(charts.sparkline(points, width, scale), row)

    return Column(key=key, title=title, width=12, most=40, priority=priority, grow="room", left=True, spans=spans, about=about)


def _name(row: GpuRow, width: int) -> tuple[Span, ...]:
    return (Span(short_name(row.gpu, width), "dim" if row.stale_s is not None else "strong"),)


def _state(row: GpuRow, width: int) -> tuple[Span, ...]:
    return (Span(fit("stale", width), "warn"),) if row.stale_s is not None else state_spans(row.found, width)


def _why(row: GpuRow, width: int) -> tuple[Span, ...]:
    worst = row.found[0] if row.found and row.stale_s is None else None
    text = ", ".join(filter(None, (when(worst, row.time_s), worst.words))) if worst is not None else ""
    return (Span(fit(text, width), "dim"),)


def _engines(row: GpuRow, width: int) -> tuple[Span, ...]:
    others = len([one for one in row.gpu.processes if one.engine is None])
    names = [*row.engines, *([f"{others} other"] if others else [])]
    return (Span(fit(", ".join(names) or fmt.UNKNOWN, width), "dim"),)


def _nvlink(gpu: Gpu) -> float | None:
    known = [value for value in (gpu.nvlink_rx_bytes_per_second, gpu.nvlink_tx_bytes_per_second) if value is not None]
    return sum(known) if len(known) == 2 else None


_OPTIONAL: Final[dict[str, Callable[[Gpu], bool]]] = {
    "sm": lambda gpu: gpu.sm_active_ratio is not None,
    "tensor": lambda gpu: gpu.tensor_active_ratio is not None,
    "dram": lambda gpu: gpu.dram_active_ratio is not None,
    "nvlink": lambda gpu: _nvlink(gpu) is not None,
    "memory_temp": lambda gpu: gpu.memory_temperature_celsius is not None,
}

GPU_COLUMNS: Final[tuple[Column[GpuRow], ...]] = (
    Column(
        key="name",
        title="GPUS",
        width=10,
        most=28,
        priority=1,
        left=True,
        grow="content",
        spans=_name,
        about="NVML's index and the name; “sim” is a simulated one",
    ),
    host_column(lambda row: row.host, 5),
    Column(
        key="state",
        title="STATE",
        width=12,
        most=20,
        priority=2,
        left=True,
        grow="room",
        spans=_state,
        about="ok, or what is wrong, worst first: why clocks are down, a narrow link, XIDs, orphans; +2 is two more",
    ),
    bar_column("util_bar", 12, lambda row: row.gpu.utilization_ratio, None),
    _number(
        "util",
        "UTIL",
        fmt.PERCENT_WIDTH,
        3,
        lambda g: g.utilization_ratio,
        fmt.percent,
        "share of time in which a kernel ran, however small: says little about how much of the GPU works",
    ),
    _number(
        "sm",
        "SM",
        fmt.PERCENT_WIDTH,
        9,
        lambda g: g.sm_active_ratio,
        fmt.percent,
        "share of multiprocessors that had work (Hopper and later): how much of the GPU works",
    ),
    _history(
        "util_history",
        "UTIL HISTORY",
        11,
        lambda g: g.utilization_history,
        lambda _: 1.0,
        "utilisation, 0 to 100 %, a column a second",
    ),
    _number(
        "tensor",
        "TENSOR",
        6,
        15,
        lambda g: g.tensor_active_ratio,
        fmt.percent,
        "share of time in which tensor cores worked (Hopper and later)",
    ),
    _number(
        "dram",
        "DRAM",
        fmt.PERCENT_WIDTH,
        14,
        lambda g: g.dram_active_ratio,
        fmt.percent,
        "share of memory bandwidth in use (Hopper and later)",
    ),
    bar_column("memory_bar", 7, lambda row: memory_ratio(row.gpu), GPU_FULL, width=4),
    _text(
        "memory",
        "MEMORY",
        fmt.SIZE_OF_WIDTH,
        4,
        lambda g: fmt.size_of(g.memory_used_bytes, g.memory_total_bytes),
        "what processes hold, of all that it has (what the driver reserves is on its page)",
    ),
    _text(
        "temp",
        "TEMP",
        fmt.CELSIUS_WIDTH + 1,
        6,
        heat_text,
        "temperature of the chip; ▲ is within 3 degrees of where it slows down, ✖ at it",
        heat_tone,
    ),
    _text(
        "memory_temp",
        "MEM T",
        fmt.CELSIUS_WIDTH,
        17,
        lambda g: fmt.celsius(g.memory_temperature_celsius),
        "temperature of the memory",
    ),
    _text(
        "power",
        "POWER",
        fmt.WATTS_OF_WIDTH,
        6,
        lambda g: fmt.watts_of(g.power_watts, g.power_limit_watts),
        "watts now, and the limit",
    ),
    _text(
        "clock",
        "SM MHZ",
        fmt.CLOCK_OF_WIDTH,
        8,
        lambda g: fmt.clock_of(g.sm_clock_hertz, g.sm_clock_max_hertz),
        "clock of the multiprocessors now, and the highest it can be",
    ),
    _text("link", "LINK", 8, 13, link_text, "PCIe generation and lanes now; the generation falls when idle"),
    _number(
        "rx", "PCIE RX/S", fmt.SIZE_WIDTH, 18, lambda g: g.pcie_rx_bytes_per_second, fmt.size, "from the host over PCIe, a second"
    ),
    _number(
        "tx", "PCIE TX/S", fmt.SIZE_WIDTH, 18, lambda g: g.pcie_tx_bytes_per_second, fmt.size, "to the host over PCIe, a second"
    ),
    _number("nvlink", "NVLINK/S", fmt.SIZE_WIDTH, 19, _nvlink, fmt.size, "both ways over all NVLinks, a second"),
    Column(
        key="engines",
        title="HELD BY",
        width=12,
        most=28,
        priority=16,
        left=True,
        grow="content",
        spans=_engines,
        about="engines with a context on it, and how many other processes",
    ),
    _history(
        "power_history", "POWER HISTORY", 20, lambda g: g.power_history, lambda g: g.power_limit_watts, "power, 0 to the limit"
    ),
    Column(
        key="why",
        title="WHY",
        width=26,
        most=72,
        priority=10,
        left=True,
        grow="room",
        spans=_why,
        about="the worst of STATE, in words",
    ),
)
