"""The table of drift: how far each engine's answers are from its reference, and what its canary says."""

from __future__ import annotations

from typing import Final

from aie_telemetry import drift_words
from aie_telemetry.api import Drift
from aie_top import format as fmt
from aie_top.columns.cells import NAME_MOST, bar_column, host_column, name_spans, number_spans
from aie_top.rows import DriftRow
from aie_top.table import Column
from aie_top.text import Span, Tone, fit

# Of what is too far: beyond it a window counts, and five in a row are an alarm.
_FAR: Final = (1.0, 1.5)


def state(drift: Drift) -> tuple[str, Tone]:
    """In a word or two."""
    if drift_words.is_alarm(drift):
        return "ALARM", "bad"
    if drift_words.is_compared(drift):
        return ("compared", "good") if drift_words.nearest(drift) is not None else ("beginning", "normal")
    return ("canary", "good") if drift.canaries else ("not compared", "warn")


def _share(row: DriftRow) -> float | None:
    closest = drift_words.nearest(row.drift)
    return None if closest is None else drift_words.share(closest)


def _nearest(row: DriftRow) -> str:
    closest = drift_words.nearest(row.drift)
    return fmt.UNKNOWN if closest is None else closest.name


def _in_a_row(row: DriftRow) -> str:
    closest = drift_words.nearest(row.drift)
    return fmt.UNKNOWN if closest is None else f"{closest.consecutive}/{row.drift.windows_to_alarm}"


def _canary(row: DriftRow) -> tuple[str, Tone]:
    canaries = row.drift.canaries
    if not canaries:
        return fmt.UNKNOWN, "dim"
    worst = next((each for each in canaries if each.alarm_since_s is not None), canaries[0])
    if worst.alarm_since_s is not None:
        return "CHANGED", "bad"
    if worst.level_nats is None and worst.too_noisy:
        return "too noisy", "warn"
    if worst.level_nats is None:
        how = "anew" if worst.learnt_anew else "learning"
        return f"{how} {min(worst.runs, worst.runs_to_learn)}/{worst.runs_to_learn}", "normal"
    anew = any(each.learnt_anew for each in canaries)
    return ("same (anew)", "normal") if anew else ("same", "good")


def _text(row: DriftRow, text: str, tone: Tone, width: int, *, right: bool = False) -> tuple[Span, ...]:
    return (Span(fit(text, width, right=right), "dim" if row.stale_s is not None or text == fmt.UNKNOWN else tone),)


def _run_length_spans(row: DriftRow, width: int) -> tuple[Span, ...]:
    tone: Tone = "warn" if drift_words.is_shorter(row.drift) else "normal"
    return _text(row, fmt.age(row.drift.run_length_s), tone, width, right=True)


def _requests(row: DriftRow) -> float | None:
    return float(drift_words.requests(row.drift)) if row.drift.statistics else None


DRIFT_COLUMNS: Final[tuple[Column[DriftRow], ...]] = (
    Column(
        key="engine",
        title="DRIFT",
        width=12,
        most=NAME_MOST,
        priority=1,
        left=True,
        grow="content",
        spans=lambda row, width: name_spans(row.drift.engine, row, width),
        about="engine, and whether its answers look as they did",
    ),
    host_column(lambda row: row.host, 8),
    Column(
        key="state",
        title="STATE",
        width=12,
        priority=2,
        left=True,
        spans=lambda row, width: _text(row, *state(row.drift), width),
        about="compared with a reference, not compared, ALARM",
    ),
    Column(
        key="requests",
        title="REQUESTS",
        width=8,
        priority=6,
        spans=lambda row, width: number_spans(_requests(row), fmt.count, row, width),
        about="requests that were looked at so far",
    ),
    Column(
        key="nearest",
        title="NEAREST",
        width=20,
        priority=7,
        left=True,
        grow="content",
        most=24,
        spans=lambda row, width: _text(row, _nearest(row), "normal", width),
        about="the statistic that is nearest to an alarm",
    ),
    bar_column("far_bar", 9, _share, _FAR),
    Column(
        key="far",
        title="FAR",
        width=fmt.PERCENT_WIDTH,
        priority=3,
        spans=lambda row, width: number_spans(_share(row), fmt.percent, row, width, _FAR),
        about="its distance, as a share of what is too far for chance",
    ),
    Column(
        key="row",
        title="ROW",
        width=4,
        priority=4,
        spans=lambda row, width: _text(row, _in_a_row(row), "normal", width, right=True),
        about="windows in a row that were too far or had too many values outside, of how many it takes",
    ),
    Column(
        key="every",
        title="FALSE IN",
        width=8,
        priority=10,
        spans=_run_length_spans,
        about="how long it is to a false alarm at the present rate, at least",
    ),
    Column(
        key="canary",
        title="CANARY",
        width=14,
        priority=5,
        left=True,
        spans=lambda row, width: _text(row, *_canary(row), width),
        about="whether one fixed prompt still gives what it gave; anew: learnt again within the last day",
    ),
    Column(
        key="with",
        title="WITH",
        width=12,
        most=60,
        priority=11,
        left=True,
        grow="room",
        spans=lambda row, width: _text(row, row.drift.reference or row.drift.reason, "dim", width),
        about="the reference, or why there is none",
    ),
)
