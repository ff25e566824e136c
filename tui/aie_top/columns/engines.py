"""The engine table: one row a column, in the order of the screen and of `s`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aie_telemetry.api import Engine
from aie_top import charts
from aie_top import format as fmt
from aie_top.columns.cells import FULL, NAME_MOST, Levels, bar_column, history_spans, host_column, name_spans, number_spans
from aie_top.latency import writer
from aie_top.rows import EngineRow
from aie_top.table import Column
from aie_top.text import Span, Tone, fit


def by_key(key: str) -> Column[EngineRow]:
    """The column of that name; the first one if there is none."""
    return next((column for column in ENGINE_COLUMNS if column.key == key), ENGINE_COLUMNS[0])


def sort_keys() -> list[str]:
    return [column.key for column in ENGINE_COLUMNS if column.sort_value is not None]


def _state(row: EngineRow, width: int) -> tuple[Span, ...]:
    if row.stale_s is not None:
        return (Span(fit("stale", width), "warn"),)
    if row.hangs and row.engine.state != "down":
        return (Span(fit("HUNG", width), "bad"),)
    if row.engine.page_reason is not None and row.engine.state == "up":
        return (Span(fit("mute", width), "warn"),)
    text, tone = _STATES[row.engine.state]
    return (Span(fit(text, width), tone),)


_STATES: Final[dict[str, tuple[str, Tone]]] = {"up": ("up", "good"), "down": ("DOWN", "bad"), "unknown": (fmt.UNKNOWN, "dim")}


def _engine(
    key: str,
    title: str,
    width: int,
    priority: int,
    value: Callable[[Engine], float | None],
    text: Callable[[float | None], str],
    about: str,
    levels: Levels | None = None,
) -> Column[EngineRow]:
    """A number of an engine: how it is read, how it is written, and from where it is judged."""
    return Column(
        key=key,
        title=title,
        width=width,
        priority=priority,
        spans=lambda row, room: number_spans(value(row.engine), text, row, room, levels),
        sort_value=lambda row: value(row.engine),
        about=about,
    )


def _text(
    key: str, title: str, width: int, priority: int, most: int, value: Callable[[EngineRow], str | None], about: str
) -> Column[EngineRow]:
    return Column(
        key=key,
        title=title,
        width=width,
        most=most,
        priority=priority,
        left=True,
        grow="content",
        spans=lambda row, room: (Span(fit(value(row) or fmt.UNKNOWN, room, middle=True), "dim"),),
        about=about,
    )


def _history(
    key: str, title: str, priority: int, value: Callable[[Engine], Sequence[float | None]], about: str
) -> Column[EngineRow]:
    def spans(row: EngineRow, width: int) -> tuple[Span, ...]:
        points = value(row.engine)
        return history_spans(charts.sparkline(points, width, charts.from_zero(points[-width:])), row)

    return Column(key=key, title=title, width=12, most=40, priority=priority, grow="room", left=True, spans=spans, about=about)


ENGINE_COLUMNS: Final[tuple[Column[EngineRow], ...]] = (
    Column(
        key="name",
        title="ENGINES",
        width=12,
        most=NAME_MOST,
        priority=1,
        left=True,
        grow="content",
        spans=lambda row, width: name_spans(row.engine.name, row, width),
        sort_value=lambda row: row.engine.name.casefold(),
        largest_first=False,
        about="name of the engine",
    ),
    host_column(lambda row: row.host, 8),
    Column(
        key="state",
        title="STATE",
        width=5,
        priority=2,
        left=True,
        spans=_state,
        sort_value=lambda row: row.engine.state,
        largest_first=False,
        about="up, DOWN, HUNG, mute (lives, but its page cannot be read), - (not known), stale (old data: its agent is away)",
    ),
    _engine("requests", "REQ/S", fmt.RATE_WIDTH, 9, lambda e: e.requests_per_second, fmt.rate, "requests finished per second"),
    _engine(
        "errors",
        "ERR/S",
        fmt.RATE_WIDTH,
        14,
        lambda e: e.errors_per_second,
        fmt.rate,
        "requests that ended in an error, per second",
    ),
    _engine(
        "ttft_p50",
        "TTFT P50",
        8,
        11,
        lambda e: e.time_to_first_token.p50_seconds,
        writer("time_to_first_token"),
        "time to first token, median",
    ),
    _engine(
        "ttft_p99",
        "TTFT P99",
        8,
        3,
        lambda e: e.time_to_first_token.p99_seconds,
        writer("time_to_first_token"),
        "time to first token, 99th percentile",
    ),
    _engine("itl_p50", "ITL P50", 7, 12, lambda e: e.inter_token.p50_seconds, writer("inter_token"), "inter-token latency, median"),
    _engine(
        "itl_p99",
        "ITL P99",
        7,
        7,
        lambda e: e.inter_token.p99_seconds,
        writer("inter_token"),
        "inter-token latency, 99th percentile",
    ),
    _engine(
        "queue_p99",
        "QUEUE P99",
        9,
        15,
        lambda e: e.queue.p99_seconds,
        writer("queue"),
        "wait before the first step, 99th percentile",
    ),
    _engine(
        "duration_p99", "TOTAL P99", 9, 16, lambda e: e.duration.p99_seconds, writer("duration"), "whole request, 99th percentile"
    ),
    _engine("running", "RUN", fmt.COUNT_WIDTH, 10, lambda e: e.running, fmt.count, "requests running"),
    _engine("waiting", "WAIT", fmt.COUNT_WIDTH, 5, lambda e: e.waiting, fmt.count, "requests waiting"),
    bar_column("kv_bar", 13, lambda row: row.engine.kv_usage_ratio, FULL),
    _engine("kv", "KV", fmt.PERCENT_WIDTH, 4, lambda e: e.kv_usage_ratio, fmt.percent, "share of the KV cache in use", FULL),
    _engine(
        "tokens", "TOK/S", fmt.RATE_WIDTH, 6, lambda e: e.generation_tokens_per_second, fmt.rate, "tokens generated per second"
    ),
    _history("tokens_history", "HISTORY", 13, lambda e: e.generation_tokens_history, "tokens per second, one column a second"),
    _engine("prompt_tokens", "PROMPT/S", 8, 17, lambda e: e.prompt_tokens_per_second, fmt.rate, "prompt tokens read per second"),
    _engine("cpu", "CPU", 5, 18, lambda e: e.cpu_cores, fmt.count, "CPU cores in use"),
    _engine("throttled", "THROTL", 6, 20, lambda e: e.throttled_cores, fmt.count, "CPU cores taken from it by its cgroup's quota"),
    _history("running_history", "RUN HISTORY", 21, lambda e: e.running_history, "requests running, one column a second"),
    _text("model", "MODEL", 12, 19, 28, lambda row: row.engine.model, "model it serves"),
)
