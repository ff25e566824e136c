"""Charts in the room that is left: a band for the engine and the GPU under the cursor, then for the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from aie_top import charts
from aie_top import format as fmt
from aie_top.rows import EngineRow, Frame, GpuRow, HostRow, MemoryRow
from aie_top.text import Line, Span, cell_width, crop, fit

LEAST_HEIGHT: Final = 5
_MOST_HEIGHT: Final = 24
_LEAST_WIDTH: Final = 34

Points = Sequence[float | None]


class Chart(NamedTuple):
    """One history: what it shows, how its values read, and where its chart begins and ends."""

    title: str
    points: Points
    text: Callable[[float | None], str]
    scale: Callable[[Points], charts.Scale] = charts.from_zero


# Charts side by side.
Band = tuple[Chart, ...]


class Selected(NamedTuple):
    """What the cursor is on, by key: an engine, a GPU, and which of them the user looks at."""

    engine: Hashable = None
    gpu: Hashable = None
    gpu_first: bool = False


def bands(frame: Frame, selected: Selected) -> list[Band]:
    """Only what has a history. What is selected comes first, since the first band is the last to go."""
    engines = sorted(frame.engines, key=lambda row: row.key != selected.engine)
    gpus = sorted(frame.gpus, key=lambda row: row.key != selected.gpu)
    of_engines = [engine_band(row, frame.memory) for row in engines]
    of_gpus = [gpu_band(row) for row in gpus]
    first = [*of_gpus[:1], *of_engines] if selected.gpu_first else [*of_engines[:1], *of_gpus[:1], *of_engines[1:]]
    return [band for band in (*first, _host_band(frame.hosts), *of_gpus[1:]) if band]


def history_lines(frame: Frame, selected: Selected, width: int, height: int) -> list[Line]:
    every = _side_by_side(bands(frame, selected), _across(width))
    fitting = min(len(every), max(height // LEAST_HEIGHT, 0))
    if not fitting:
        return []
    each, over = divmod(height, fitting)
    heights = [min(each + (1 if at < over else 0), _MOST_HEIGHT) for at in range(fitting)]
    # A lone chart gets half of the window: over all of it most would be empty, since there are not that many points.
    return [
        line
        for band, lines in zip(every, heights, strict=False)
        for line in band_lines(band, width, lines, max(len(band), min(_across(width), 2)))
    ]


def _across(width: int) -> int:
    """How many charts fit side by side."""
    return max((width - 1) // _LEAST_WIDTH, 1)


def _side_by_side(every: Sequence[Band], most: int) -> list[Band]:
    """A lone chart moves up beside the band before it, where the window is wide enough: it would leave most of its lines empty."""
    packed: list[Band] = []
    for band in every:
        if packed and len(band) == 1 and len(packed[-1]) < most:
            packed[-1] = (*packed[-1], *band)
        else:
            packed.append(band)
    return packed


def gpu_band(row: GpuRow) -> Band:
    gpu = row.gpu
    of_power = _up_to(gpu.power_limit_watts)
    name = f"{'simulated ' if gpu.simulated else ''}GPU {gpu.index}"
    every = (
        Chart(f"{name} util", gpu.utilization_history, fmt.percent, _whole),
        Chart("memory", gpu.memory_used_history, fmt.size, charts.around),
        Chart("power", gpu.power_history, fmt.watts, of_power),
    )
    return tuple(chart for chart in every if any(point is not None for point in chart.points))


def _up_to(most: float | None) -> Callable[[Points], charts.Scale]:
    return (lambda _points: charts.Scale(0.0, most)) if most else charts.from_zero


def engine_band(row: EngineRow, memory: Sequence[MemoryRow]) -> Band:
    held = [one.memory for one in memory if (one.agent, one.memory.engine) == row.key]
    every = (
        Chart(f"{row.engine.name} tok/s", row.engine.generation_tokens_history, fmt.rate),
        *(Chart(_memory_title(one.device, len(held)), one.physical_history, fmt.size, charts.around) for one in held),
        Chart("running", row.engine.running_history, fmt.count),
    )
    return tuple(chart for chart in every if any(point is not None for point in chart.points))


def band_lines(band: Band, width: int, height: int, across: int) -> list[Line]:
    """The charts of a band side by side: a title line with the latest value and the range, then the blocks.

    `across` is how many the window is divided among.
    """
    number = max(min(_across(width), across), 1)
    each = max((width - 1 - 2 * (number - 1)) // number, 0)
    shown = [_one(chart, each, height) for chart in band[:number]]
    return [crop(_beside([chart[row] for chart in shown], "title" if row == 0 else ""), width) for row in range(height)]


def _host_band(hosts: Sequence[HostRow]) -> Band:
    every = [(row.name, row.host.cpu_busy_history) for row in hosts if row.host is not None]
    return tuple(
        Chart(f"{name} CPU", points, fmt.percent, _whole) for name, points in every if any(point is not None for point in points)
    )


def _whole(_points: Points) -> charts.Scale:
    return charts.Scale(0.0, 1.0)


def _memory_title(device: str, devices: int) -> str:
    return f"physical {device}" if devices > 1 else "physical"


def _one(chart: Chart, width: int, height: int) -> list[tuple[Span, ...]]:
    visible = chart.points[-width:]
    latest = f" {chart.text(visible[-1] if visible else None)}"
    scope = f" {_scope(chart, visible)}"
    spare = max(width - len(latest) - len(scope), 0)
    head = (Span(fit(chart.title, min(spare, cell_width(chart.title)), middle=True), "strong"), Span(latest, "accent"))
    used = sum(cell_width(span.text) for span in head)
    title = (*head, Span(fit(scope, width - used, right=True), "dim"))
    rows = charts.chart(visible, width, height - 1, chart.scale(visible))
    return [title, *((Span(row, "chart"),) for row in rows)]


def _scope(chart: Chart, visible: Points) -> str:
    known = [point for point in visible if point is not None]
    if chart.scale is charts.around:
        return f"moved {chart.text(max(known) - min(known) if known else None)}"
    return f"peak {chart.text(max(known, default=None))}"


def _beside(parts: Sequence[tuple[Span, ...]], fill: str) -> Line:
    spans: list[Span] = [Span(" ")]
    for at, part in enumerate(parts):
        spans += [Span("  "), *part] if at else part
    return Line(tuple(spans), "title" if fill == "title" else "")
