"""The first and the last line of the screen."""

from __future__ import annotations

from collections.abc import Sequence

from aie_top import commands
from aie_top import format as fmt
from aie_top.rows import Frame, View
from aie_top.text import Line, Span, cell_width, crop, fit, line


def header_line(frame: Frame, view: View, width: int) -> Line:
    """Which hosts, from when, and how fresh. The state is never cut; the hosts are."""
    state = _state(frame, view)
    clock = f"{frame.clock}  " if frame.clock else ""
    window = f"last {fmt.age(frame.window_s)}  " if frame.window_s is not None and width >= 70 else ""
    wanted = f"filter: {view.filter}  " if view.filter else ""
    right = [Span(wanted, "accent"), Span(window, "dim"), Span(clock, "normal"), state, Span(" ")]
    right_width = sum(cell_width(span.text) for span in right)
    name = " aie-top  "
    room = width - right_width - len(name)
    if room < 6:
        return crop(line(Span(" "), state, "  ", Span(f"{wanted}{clock}"), fill="title"), width)
    return Line((Span(name, "accent"), Span(fit(_hosts(frame), room), "strong"), *right), "title")


def footer_line(width: int, *, in_detail: bool, below: int = 0, gpus: bool = False) -> Line:
    """As many keys as fit whole, the most important ones first. `below` is how many lines of a page are further down.

    `gpus` is whether there are any.
    """
    more = f"▾ {below} more " if below else ""
    spans: list[Span] = [Span(" ")]
    room = width - 2 - len(more)
    for shown, label in commands.hints(in_detail=in_detail, gpus=gpus):
        needed = cell_width(shown) + 1 + len(label) + 2
        if needed - 2 > room:
            break
        spans += [Span(shown, "key"), Span(f" {label}  ", "dim")]
        room -= needed
    used = sum(cell_width(span.text) for span in spans)
    spans.append(Span(fit(more, max(width - used, 0), right=True), "accent"))
    return crop(Line(tuple(spans), "title"), width)


def _state(frame: Frame, view: View) -> Span:
    if view.paused:
        return Span("‖ PAUSED", "warn")
    away = [row for row in frame.hosts if row.phase == "away"]
    stale = [row.stale_s for row in frame.hosts if row.stale_s is not None]
    if away:
        which = f"{len(away)} of {len(frame.hosts)} away" if frame.several_hosts else "away"
        return Span(f"✖ {which}" + (f" {fmt.age(max(stale))}" if stale else ""), "bad")
    if any(row.phase == "connecting" for row in frame.hosts):
        return Span("○ connecting", "warn")
    if stale:
        return Span(f"▲ stale {fmt.age(max(stale))}", "warn")
    return Span("● live", "good")


def _hosts(frame: Frame) -> str:
    names: Sequence[str] = [row.name for row in frame.hosts]
    return names[0] if len(names) == 1 else f"{len(names)} hosts: {', '.join(names)}"
