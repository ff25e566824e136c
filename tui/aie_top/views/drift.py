"""Whether answers look as they did: the panel of the main screen, the page of all engines, and the part of an engine's own page."""

from __future__ import annotations

from typing import Final

from aie_telemetry import drift_words
from aie_telemetry.api import Drift, DriftStatistic
from aie_top import charts
from aie_top import format as fmt
from aie_top.columns.cells import tone_for
from aie_top.columns.drift import DRIFT_COLUMNS
from aie_top.rows import DriftRow, EngineRow, Frame, View
from aie_top.table import Column
from aie_top.text import Line, Span, crop, fit, line
from aie_top.views.facts import facts, sentences, title
from aie_top.views.tables import Place, table_lines

_NAME_WIDTH: Final = 22
_BAR_WIDTH: Final = 12
_FAR: Final = (1.0, 1.5)


def drift_lines(frame: Frame, _view: View, place: Place) -> list[Line]:
    """A line for each engine and model, where any is compared, or would be but for a reference."""
    rows = frame.compared
    if not rows or not place.height:
        return []
    return table_lines(_columns(frame), rows, place, "")


def _columns(frame: Frame) -> list[Column[DriftRow]]:
    return [column for column in DRIFT_COLUMNS if column.key != "host" or frame.several_hosts]


def drift_page(frame: Frame, width: int) -> list[Line]:
    """All engines, whether or not they are compared: why one is not is said."""
    if not frame.drift:
        return [crop(line(Span(" No agent here says anything of drift (an older one, or drift.enabled = false).", "dim")), width)]
    lines = table_lines(_columns(frame), frame.drift, Place(width, len(frame.drift) + 1), "")
    for row in frame.drift:
        lines += [line(), *_of(row.drift, width)]
    return [crop(one, width) for one in lines]


def of_engine(frame: Frame, row: EngineRow, width: int) -> list[Line]:
    """What stands on an engine's page. Nothing from an agent that knows nothing of drift."""
    return [one for each in frame.drift if (each.agent, each.drift.engine) == row.key for one in _of(each.drift, width)]


def _of(drift: Drift, width: int) -> list[Line]:
    """A title, a line a statistic, and the rest in a sentence."""
    who = f"DRIFT {drift.engine}" + (f", {drift.model}" if drift.model else "")
    lines = [title(who), *(_statistic(each, drift.windows_to_alarm) for each in drift.statistics)]
    lines += sentences([drift_words.told(drift).partition(": ")[2]], width, "dim")
    return lines + facts(_about(drift), width)


def _about(drift: Drift) -> list[tuple[str, str | None]]:
    recorded = fmt.age(drift.recorded_s) if drift.recorded_s is not None else None
    rate = drift.requests_per_second
    return [
        ("traffic class", drift.traffic_class or None),
        ("recorded for", recorded),
        ("looked at", f"{fmt.rate(rate)} requests/s" if rate is not None else None),
    ]


def _statistic(statistic: DriftStatistic, needed: int) -> Line:
    name = Span(fit(statistic.name, _NAME_WIDTH), "dim")
    alarm = Span("  ALARM", "bad") if statistic.alarm_since_s is not None else Span("")
    if statistic.untested:  # it may have left its range all the same
        return line("  ", name, Span(f"not compared: {statistic.untested}", "dim"), alarm)
    share = drift_words.share(statistic)
    filled, empty = charts.bar(share, _BAR_WIDTH)
    tone = "bad" if statistic.alarm_since_s is not None else tone_for(share, _FAR)
    far = fit(fmt.percent(share), fmt.PERCENT_WIDTH, right=True)
    row = f"  {statistic.consecutive}/{needed} in a row, {statistic.windows_beyond} of {statistic.windows} windows"
    return line(
        "  ",
        name,
        Span(filled, "bar" if tone == "normal" else tone),
        Span(empty, "track"),
        Span(f" {far}", tone),
        Span(row, "dim"),
        alarm,
    )
