"""All about one GPU: what each number means, why it is slow, and what to do. And the page of all processes on GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aie_telemetry.api import Gpu
from aie_top import format as fmt
from aie_top import gpu_words
from aie_top.gpu_processes import process_rows
from aie_top.gpu_state import times_seen, when
from aie_top.rows import Frame, GpuRow
from aie_top.text import Line, Span, crop, line, wrap
from aie_top.views.facts import facts, sentences, title
from aie_top.views.gpu_facts import errors, measured, mig
from aie_top.views.gpus import process_table
from aie_top.views.history import band_lines, gpu_band
from aie_top.views.problems import MARKS
from aie_top.views.tables import Place

_CHART_HEIGHT: Final = 6


def gpu_page(frame: Frame, key: tuple[str, str], width: int) -> list[Line]:
    row = next((row for row in frame.gpus if row.key == key), None)
    if row is None:
        return [crop(one, width) for one in (line(Span(" That GPU is gone.", "warn")), line(Span(" esc goes back.", "dim")))]
    gpu = row.gpu
    lines = [
        title(f"GPU {gpu.index}: {gpu.name}{', simulated' if gpu.simulated else ''}"),
        *facts(_about(row), width),
        *_wrong(row, width),
        *(measured(gpu, frame.window_s, width) if gpu.up else ()),  # of one that does not answer nothing is known
        title("ERRORS"),
        *facts(errors(gpu), width),
        *_xids(gpu, width),
        *mig(gpu, width),
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
    word = gpu_words.not_up(gpu.reason)
    down = " ".join(
        filter(None, (MARKS[word.severity or "info"][0], word.short, when(row.found[0], row.time_s) if row.found else ""))
    )
    state = "up" if gpu.up else down
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
        about = ", ".join(filter(None, (one.detail, when(one, row.time_s))))
        text = f"{one.words} ({about})" if about else one.words
        for at, part in enumerate(wrap(text, max(width - 5, 8))):
            lines.append(line(Span(f" {mark if at == 0 else ' '} ", tone), Span(part, "strong")))
        lines += sentences([one.do] if one.do else [], width, "dim", 3)
    return lines


def _xids(gpu: Gpu, width: int) -> list[Line]:
    pairs = []
    for number, times in sorted(gpu.xids.items(), key=lambda pair: -pair[1]):
        word = gpu_words.xid(number)
        mark = MARKS[word.severity or "info"][0]
        pairs.append((f"{mark} {word.short}", f"{times_seen(times)}: {word.words}. {word.do}"))
    return facts(pairs, width)


def _processes(row: GpuRow, width: int) -> list[Line]:
    """Only what they hold of this GPU."""
    rows = process_rows([row])
    if not rows:
        return [title("PROCESSES"), line("  ", Span("none holds a context, or the driver does not tell", "dim"))]
    return process_table(rows, Place(width, len(rows) + 1), several_hosts=False)
