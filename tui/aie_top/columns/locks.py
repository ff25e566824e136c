"""The table of locks that threads wait for: one row a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aie_telemetry.api import Lock
from aie_top import format as fmt
from aie_top.columns.cells import NAME_MOST, host_column, name_spans, number_spans
from aie_top.rows import LockRow
from aie_top.table import Column
from aie_top.text import Span, Tone, fit


def _number(
    key: str,
    title: str,
    width: int,
    priority: int,
    value: Callable[[Lock], float | None],
    text: Callable[[float | None], str],
    about: str,
) -> Column[LockRow]:
    return Column(
        key=key,
        title=title,
        width=width,
        priority=priority,
        spans=lambda row, room: number_spans(value(row.lock), text, row, room),
        about=about,
    )


def _text(
    key: str, title: str, width: int, most: int, priority: int, value: Callable[[Lock], str | None], about: str
) -> Column[LockRow]:
    def spans(row: LockRow, room: int) -> tuple[Span, ...]:
        known = value(row.lock)
        tone: Tone = "dim" if row.stale_s is not None or not known else "normal"
        return (Span(fit(known or fmt.UNKNOWN, room, middle=True), tone),)

    return Column(
        key=key, title=title, width=width, most=most, priority=priority, left=True, grow="content", spans=spans, about=about
    )


def _whole(number: float | None) -> str:
    """A process id, which no unit may shorten."""
    return fmt.UNKNOWN if number is None else f"{number:.0f}"


def _where(lock: Lock) -> str | None:
    """Native code that waits is told in a sentence that begins with how many threads do; there is a column for them."""
    return lock.line or (lock.native[0].partition(" in ")[2] or lock.native[0] if lock.native else None)


def _kind(row: LockRow, width: int) -> tuple[Span, ...]:
    kind = row.lock.kind
    return (Span(fit("GIL" if kind == "gil" else "lock", width), "dim" if row.stale_s is not None else kind),)


def lock_columns(*, of_one_engine: bool, several_hosts: bool) -> list[Column[LockRow]]:
    """No engine on its own page, no host where there is one."""
    left_out = {"engine"} if of_one_engine else set()
    left_out |= set() if several_hosts and not of_one_engine else {"host"}
    return [column for column in LOCK_COLUMNS if column.key not in left_out]


LOCK_COLUMNS: Final[tuple[Column[LockRow], ...]] = (
    Column(
        key="kind",
        title="LOCKS",
        width=5,
        priority=1,
        left=True,
        spans=_kind,
        about="lock: of any library or program; GIL: Python's interpreter lock",
    ),
    Column(
        key="engine",
        title="ENGINE",
        width=10,
        most=NAME_MOST,
        priority=2,
        left=True,
        grow="content",
        spans=lambda row, width: name_spans(row.engine, row, width),
        about="engine whose threads wait",
    ),
    host_column(lambda row: row.host, 9),
    _number("threads", "THREADS", 7, 3, lambda lock: lock.waiting_threads, fmt.rate, "threads that waited for it, on average"),
    _number("now", "NOW", 4, 7, lambda lock: lock.waiters, fmt.count, "threads that wait for it now"),
    _number("waits", "WAITS/S", 7, 6, lambda lock: lock.waits_per_second, fmt.rate, "waits for it that began, per second"),
    _number("longest", "LONGEST", 7, 5, lambda lock: lock.longest_seconds, fmt.duration, "longest single wait that ended"),
    _text(
        "line", "WAITS AT", 28, 60, 4, _where, "line of code where they wait, if it is known without doubt; else the native code"
    ),
    _number("process", "PROCESS", 7, 8, lambda lock: lock.tgid, _whole, "process whose memory has it"),
    _text("address", "ADDRESS", 10, 20, 9, lambda lock: lock.address, "its address in the memory of that process"),
)
