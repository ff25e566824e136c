"""The GPUs: a line each while there is room, else one for all of them and the worst; and who holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from aie_telemetry.api import Gpu
from aie_top import format as fmt
from aie_top import gpu_words
from aie_top.columns.gpu_processes import process_columns
from aie_top.columns.gpus import gpu_columns, short_name
from aie_top.gpu_state import badness, is_wrong, when
from aie_top.rows import Frame, GpuProcessRow, GpuRow, View
from aie_top.table import body, choose, header
from aie_top.text import Line, Span, crop, line
from aie_top.views.problems import MARKS
from aie_top.views.tables import Place, rows_by_line, table_lines

# From so many on, a line for all of them says more than the eye can add up.
_SUMMED_FROM: Final = 4
_WORDS_FROM: Final = 100


def gpu_heights(frame: Frame) -> tuple[int, int]:
    """Lines that the panel needs at least, and those it can use."""
    count = len(frame.gpus)
    return (0, 0) if not count else (2, 1 + count + (1 if count >= _SUMMED_FROM else 0))


def gpu_lines(frame: Frame, _view: View, place: Place) -> list[Line]:
    rows = frame.gpus
    if not rows or not place.height:
        return []
    columns = gpu_columns(rows, several_hosts=frame.several_hosts)
    layout = choose(columns, rows, place.width)
    lines = [header(layout, focused=place.cursor is not None)]
    for index in gpu_rows_by_line(frame, place)[1:]:
        if index is None:
            lines.append(_summary(rows, place.width))
        elif rows[index].gpu.up:
            lines.append(body(layout, rows[index], selected=index == place.cursor))
        else:
            lines.append(_not_up(rows[index], layout.placed[0].width if layout.placed else 0, selected=index == place.cursor))
    return [crop(one, place.width) for one in lines[: place.height]]


def gpu_rows_by_line(frame: Frame, place: Place) -> list[int | None]:
    """Which GPU stands on which line of the panel; None: the title, and the line for all of them.

    Where not all fit they are the worst and the one under the cursor, in the order of their numbers.
    """
    count = len(frame.gpus)
    room = place.height - 1
    if room >= count and (count < _SUMMED_FROM or room == count):
        return [None, *range(count)]
    worst = sorted(range(count), key=lambda at: (at != place.cursor, badness(frame.gpus[at].found), at))
    chosen = sorted(worst[: max(room - 1, 0)])
    if not chosen and place.cursor is not None and room > 0:
        return [None, place.cursor]
    return [None, None, *chosen][: max(place.height, 0)]


def process_lines(frame: Frame, _view: View, place: Place) -> list[Line]:
    if not frame.gpu_processes:
        return []
    return process_table(frame.gpu_processes, place, several_hosts=frame.several_hosts)


def process_table(rows: Sequence[GpuProcessRow], place: Place, *, several_hosts: bool) -> list[Line]:
    return table_lines(process_columns(rows, several_hosts=several_hosts), rows, place, "")


def process_rows_by_line(frame: Frame, place: Place) -> list[int | None]:
    return rows_by_line(len(frame.gpu_processes), place)


def _not_up(row: GpuRow, width: int, *, selected: bool) -> Line:
    """No number of it is known, so its line has room to say why."""
    word = gpu_words.not_up(row.gpu.reason)
    mark, tone = MARKS[word.severity or "info"]
    xids = ", ".join(gpu_words.xid(number).short for number in sorted(row.gpu.xids))
    since = when(row.found[0], row.time_s) if row.found else ""
    known = ", ".join(filter(None, (since, xids)))
    parts = (
        Span("▸" if selected else " ", "accent"),
        Span(short_name(row.gpu, width), "strong"),
        Span(f" {mark} {word.short} ", tone),
        Span(f"{known}: {word.words}" if known else word.words),
    )
    return Line(parts, "cursor" if selected else "")


def _summary(rows: Sequence[GpuRow], width: int) -> Line:
    """Sums and the extreme of those that answer; what is not known of all of them is left out."""
    gpus = [row.gpu for row in rows]
    simulated = sum(gpu.simulated for gpu in gpus)
    short = width < _WORDS_FROM
    label = (" (sim)" if short else " (simulated)") if simulated == len(gpus) else ""
    troubled = sum(any(map(is_wrong, row.found)) for row in rows if row.gpu.up)
    up = [gpu for gpu in gpus if gpu.up]
    busy = [gpu.utilization_ratio for gpu in up if gpu.utilization_ratio is not None]
    heat = [gpu.temperature_celsius for gpu in up if gpu.temperature_celsius is not None]
    power = [gpu.power_watts for gpu in up if gpu.power_watts is not None]
    held = [
        (g.memory_used_bytes, g.memory_total_bytes)
        for g in up
        if g.memory_used_bytes is not None and g.memory_total_bytes is not None
    ]
    facts = (
        f"util {fmt.percent(sum(busy) / len(busy))}" if busy else "",
        f"{fmt.size_of(sum(used for used, _ in held), sum(total for _, total in held))}" if held else "",
        f"{fmt.watts(sum(power))}" if power else "",
        f"{'max' if short else 'hottest'} {fmt.celsius(max(heat))}" if heat else "",
    )
    spans = [Span(f" all {len(gpus)}{label}", "strong")]
    spans += _counts_of_not_up(gpus)
    spans += [Span(f"  ▲ {troubled}{'' if short else ' in trouble'}", "warn")] if troubled else []
    spans += [Span(f"  {fact}", "normal") for fact in facts if fact]
    return line(*spans)


def _counts_of_not_up(gpus: Sequence[Gpu]) -> list[Span]:
    """How many do not answer, by why, the worst first: what was given back on request is no trouble."""
    words = Counter(gpu_words.not_up(gpu.reason)._replace(words="") for gpu in gpus if not gpu.up)
    severities = list(MARKS)
    spans = []
    for word, count in sorted(words.items(), key=lambda item: severities.index(item[0].severity or "info")):
        mark, tone = MARKS[word.severity or "info"]
        spans.append(Span(f"  {mark} {count} {word.short.lower()}", tone))
    return spans
