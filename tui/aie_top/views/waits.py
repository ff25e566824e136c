"""What each engine waits for: the panel of the main screen, the page of all engines, and the part of an engine's own page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from aie_telemetry.api import Engine, Waits
from aie_top import format as fmt
from aie_top.columns.locks import lock_columns
from aie_top.columns.waits import wait_columns
from aie_top.coverage import can_be_opened, not_seen, notes, sees
from aie_top.rows import EngineRow, Frame, LockRow, View
from aie_top.text import Line, Span, crop, fit, line
from aie_top.views.facts import facts, sentences, with_unit
from aie_top.views.tables import Place, table_lines
from aie_top.waits import PARTS, Part, bar, level, top_of, total

_NONE_FOUGHT_FOR: Final = "no lock is fought for"
_UNSEEN: Final = "not seen"
_LABEL_WIDTH: Final = 14
_ENTRY_WIDTH: Final = 2 + 1 + _LABEL_WIDTH + fmt.RATE_WIDTH + 1 + fmt.PERCENT_WIDTH + 2


def wait_lines(frame: Frame, _view: View, place: Place) -> list[Line]:
    """A line for each engine, where probes see any of them."""
    rows = frame.waiting
    if not rows or not place.height:
        return []
    return table_lines(wait_columns(rows, several_hosts=frame.several_hosts), rows, place, "")


def locks_of(rows: Iterable[EngineRow]) -> tuple[LockRow, ...]:
    """Those that most threads wait for come first."""
    found = [
        LockRow(host=row.host, engine=row.engine.name, lock=lock, stale_s=row.stale_s) for row in rows for lock in row.engine.locks
    ]
    return tuple(sorted(found, key=lambda row: -row.lock.waiting_threads))


def all_locks(frame: Frame, width: int, most: int) -> list[Line]:
    """The table of the locks of all engines, at most so many rows; what is not there is told apart from what is not seen."""
    rows = locks_of(frame.engines)
    seen = [_sees_locks(row.engine) for row in frame.engines]
    empty = _NONE_FOUGHT_FOR if all(seen) else f"{_NONE_FOUGHT_FOR}, as far as is seen" if any(seen) else _UNSEEN
    columns = lock_columns(of_one_engine=False, several_hosts=frame.several_hosts)
    return table_lines(columns, rows, Place(width, 1 + max(min(len(rows), most), 1)), empty)


def blind_spots(rows: Iterable[EngineRow], width: int) -> list[Line]:
    """What is not seen of engines, for those of which something is not; engines of which the same is said stand together."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if text := not_seen(row.engine):
            names.setdefault(text, []).append(row.engine.name)
    told = sentences((f"{', '.join(same)}: {text}" for text, same in names.items()), width, "dim", 4)
    return [line("  ", Span("not seen", "dim")), *told] if told else []


def waits_page(frame: Frame, width: int) -> list[Line]:
    """All engines, whether or not probes see them: what is missing is said."""
    if not frame.engines:
        return [crop(line(Span(" No engine is seen, or none matches the filter.", "dim")), width)]
    rows = frame.engines
    columns = wait_columns(rows, several_hosts=frame.several_hosts)
    lines = table_lines(columns, rows, Place(width, len(rows) + 1), "")
    lines += [_legend(), line(), *all_locks(frame, width, most=len(rows) * 8)]
    lines += [line(), *blind_spots(rows, width)]
    return [crop(one, width) for one in lines]


def of_engine(row: EngineRow, window_s: float | None, width: int) -> list[Line]:
    """What stands on an engine's page. Nothing from an agent that knows nothing of waits."""
    engine = row.engine
    if engine.waits is None and not engine.coverage and not engine.locks:
        return []
    over = f", threads on average over {fmt.age(window_s)}" if window_s is not None else ""
    lines = [line(" ", Span("WAITS", "strong"), Span(over, "dim"), fill="title")]
    if engine.waits is not None:
        lines += [_bar_line(engine.waits, width), *_numbers(engine.waits, width)]
    lines += facts(_beside_the_bar(engine), width)
    locks = locks_of([row])
    empty = _NONE_FOUGHT_FOR if _sees_locks(engine) else _UNSEEN
    return [
        *lines,
        *table_lines(lock_columns(of_one_engine=True, several_hosts=False), locks, Place(width, 1 + max(len(locks), 1)), empty),
    ]


def _sees_locks(engine: Engine) -> bool:
    return sees(engine, "locks") or (engine.waits is not None and engine.waits.lock is not None)


def _bar_line(waits: Waits, width: int) -> Line:
    top = top_of([total(waits)])
    scale = f" of {fmt.count(top)}"
    return line("  ", *bar(waits, top, max(width - 3 - len(scale), 1)), Span(scale, "dim"))


def _numbers(waits: Waits, width: int) -> list[Line]:
    """Each part in words, with its share of the bar; as many beside one another as fit."""
    across = max((width - 2) // _ENTRY_WIDTH, 1)
    whole = total(waits)
    entries = [_entry(part, level(waits, part), whole) for part in PARTS]
    # Read downwards, in the order of the bar.
    height = -(-len(entries) // across)
    return [line("  ", *(span for entry in entries[at::height] for span in entry)) for at in range(height)]


def _entry(part: Part, value: float | None, whole: float) -> tuple[Span, ...]:
    share = fmt.percent(value / whole) if value is not None and whole > 0 else ""
    return (
        Span(f"{part.letter}█ ", part.tone if value else "dim"),
        Span(fit(part.words, _LABEL_WIDTH), "dim"),
        Span(fit(fmt.rate(value), fmt.RATE_WIDTH, right=True), "normal" if value else "dim"),
        Span(" " + fit(share, fmt.PERCENT_WIDTH, right=True) + "  ", "dim"),
    )


def _beside_the_bar(engine: Engine) -> Iterable[tuple[str, str | None]]:
    waits = engine.waits or Waits()
    yield "idle", f"{fmt.rate(waits.idle)} wait for work" if waits.idle is not None else None
    yield "asleep", f"{fmt.rate(waits.sleep)} (socket, timer)" if waits.sleep is not None else None
    took = engine.probe_overhead_ratio
    yield "probes took", with_unit(fmt.percent(took), "of a CPU") if took is not None else None
    yield "for a window", can_be_opened(engine.coverage) or None
    yield "note", "; ".join(notes(engine.coverage)) or None
    yield "not seen", not_seen(engine) or None


def _legend() -> Line:
    spans = [span for part in PARTS for span in (Span(f"  {part.letter}█ ", part.tone), Span(part.words, "dim"))]
    return line(*spans)


def report_waits(frame: Frame, view: View, width: int, most_locks: int) -> Sequence[list[Line]]:
    """For the plain report: the bars, the locks and what is not seen; nothing where no agent sees waits."""
    if not frame.waiting:
        return ()
    return (
        [*wait_lines(frame, view, Place(width, len(frame.waiting) + 1)), *blind_spots(frame.engines, width)],
        all_locks(frame, width, most_locks),
    )
