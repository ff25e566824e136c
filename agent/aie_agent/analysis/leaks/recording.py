"""Recordings of memory as CSV: read row by row, in constant memory, and refused where they cannot mean what they say."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.plausible import Plausible
from aie_agent.csv_lines import lines

REQUIRED: Final = ("time_s", "physical_bytes")
OPTIONAL: Final = ("allocated_bytes", "reserved_bytes", "load", "cache_bytes", "evictable_bytes", "event")
_SIZES: Final[tuple[str, ...]] = ("physical_bytes", "allocated_bytes", "reserved_bytes")
_NUMBERS: Final[tuple[str, ...]] = (*_SIZES, "load", "cache_bytes", "evictable_bytes")
COLUMNS: Final = REQUIRED + OPTIONAL

_MOST_BACK_STEPS: Final = 3
_MILLISECONDS: Final = 1e11
"""The year 5138 in seconds, 1973 in milliseconds."""
_LARGEST: Final = 1e18


class RecordingError(Exception):
    """A file that is no recording: one line that says where and why."""


class Seen:
    """What a file turned out to have, besides its samples."""

    def __init__(self) -> None:
        self.rows = 0
        self.missing = 0
        self.back_steps = 0
        self.longest_gap_s = 0.0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.columns: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.shares_times = False
        """Whether so many rows share a time that they may be of several processes, of which one alone is followed."""

    @property
    def length_s(self) -> float:
        """From the first row to the last."""
        return 0.0 if self.first_s is None or self.last_s is None else self.last_s - self.first_s


def read(path: Path, seen: Seen, sample_s: float = 10.0) -> Iterator[Sample]:
    """The rows of a file, times ascending: where the clock was set back, they count on. Raises RecordingError, at the end for what
    all rows say together. Of rows within `sample_s` only one is used."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _rows(file, path.name, seen, Plausible(sample_s))
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordingError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except csv.Error as error:
        raise RecordingError(f"{path}: not CSV, in what follows row {seen.rows}: {error}") from error


def _rows(file: TextIO, name: str, seen: Seen, plausible: Plausible) -> Iterator[Sample]:
    reader = csv.reader(lines(file), strict=True)
    header = next(reader, None)
    if header is None:
        raise RecordingError(f"{name}: empty: expected the header {','.join(REQUIRED)}[,...]")
    make = _maker(header, name, seen)
    offset_s = 0.0
    before_s = -math.inf
    for row in reader:
        if not row:
            continue
        try:
            sample = make(row)
        except ValueError as error:
            raise RecordingError(f"{name}: line {reader.line_num}: {error}") from error
        sample = plausible.taken(sample)
        time_s = sample.time_s + offset_s
        if time_s < before_s:
            seen.back_steps += 1
            if seen.back_steps > _MOST_BACK_STEPS:
                raise RecordingError(
                    f"{name}: line {reader.line_num}: time_s goes back for the {seen.back_steps}th time: not in order"
                )
            offset_s += before_s - time_s
            time_s = before_s
        elif seen.rows:
            seen.longest_gap_s = max(seen.longest_gap_s, time_s - before_s)
        before_s = seen.last_s = time_s
        seen.first_s = time_s if seen.first_s is None else seen.first_s
        seen.rows += 1
        yield sample if offset_s == 0 else sample._replace(time_s=time_s)
    refused = plausible.refused()
    if refused is not None:
        raise RecordingError(f"{name}: {refused}")
    seen.notes, seen.shares_times = tuple(plausible.notes()), plausible.shares_times


def _maker(header: list[str], name: str, seen: Seen) -> Callable[[list[str]], Sample]:
    """From the cells of a row to a sample. The function it returns raises ValueError."""
    names = [cell.strip() for cell in header]
    _check_header(names, name)
    seen.columns = tuple(names)
    at = {column: names.index(column) for column in names}
    width, absent = len(names), sum(column not in at for column in _SIZES)
    time_at, event_at = at["time_s"], at.get("event")
    readers = [_reader(at.get(column), column) for column in _NUMBERS]

    def make(row: list[str]) -> Sample:
        if len(row) != width:
            raise ValueError(f"expected {width} cells, got {len(row)}")
        physical, allocated, reserved, load, cache, evictable = [read(row) for read in readers]
        seen.missing += (physical, allocated, reserved).count(None) - absent
        event = "" if event_at is None else row[event_at].strip()
        return Sample(_time(row[time_at]), physical, allocated, reserved, None, load, cache, None, event, evictable)

    return make


def _reader(index: int | None, column: str) -> Callable[[list[str]], float | None]:
    """From the cells of a row to the number of a column; None where the file does not have it. Raises ValueError."""
    if index is None:
        return lambda row: None
    return lambda row: _number(row[index], column)


def _check_header(names: list[str], name: str) -> None:
    for column in names:
        if column not in COLUMNS:
            close = difflib.get_close_matches(column, COLUMNS, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise RecordingError(f"{name}: unknown column {column!r}: {hint}accepted: {','.join(COLUMNS)}")
    for column in REQUIRED:
        if column not in names:
            raise RecordingError(f"{name}: column {column} is missing: accepted: {','.join(COLUMNS)}")
    twice = next((column for column in names if names.count(column) > 1), None)
    if twice is not None:
        raise RecordingError(f"{name}: column {twice} stands there twice")


def _time(cell: str) -> float:
    try:
        time_s = float(cell)
    except ValueError:
        raise ValueError(f"time_s: expected seconds, got {cell!r}") from None
    if not math.isfinite(time_s) or "_" in cell:
        raise ValueError(f"time_s: expected seconds, got {cell!r}")
    if abs(time_s) > _MILLISECONDS:
        raise ValueError(f"time_s: {cell} is no number of seconds; milliseconds?")
    return time_s


def _number(cell: str, column: str) -> float | None:
    """None for an empty cell and for NaN: nothing is known then."""
    try:
        value = float(cell)
    except ValueError:
        if not cell.strip():
            return None
        raise ValueError(f"{column}: expected a number, got {cell!r}") from None
    if "_" in cell:
        raise ValueError(f"{column}: expected a number, got {cell!r}")
    if 0 <= value <= _LARGEST:
        return value
    if value != value:
        return None
    raise ValueError(f"{column}: expected 0 to {_LARGEST:g}, got {cell}")
