"""Reads recorded statistics: a CSV file whose header names them, one row a request, in the order in which they came."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.csv_lines import lines

MODEL: Final = "model"
TIME: Final = "time_s"
PASSED_OVER: Final = (TIME, "request")
"""Columns that a recording may have beside its statistics."""

_MOST_COLUMNS: Final = 64
_CHUNK_ROWS: Final = 4096
_MILLISECONDS: Final = 1e11
"""The year 5138 in seconds, 1973 in milliseconds."""


class TableError(ValueError):
    """A file that cannot be used: one line with its name and, where there is one, the line."""


class Table(NamedTuple):
    """Columns of one length, by name; the model that a column `model` names, or None; and how many hours lie between the first and
    the last of a column `time_s`, None where there is none, or it holds no times."""

    columns: dict[str, array[float]]
    model: str | None
    hours: float | None = None


def read_table(path: Path) -> Table:
    """Reads a file. NaN and infinity are numbers here: what they mean is the reader's to say. Raises TableError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(path, csv.reader(lines(file), strict=True))
    except OSError as error:  # of one that fails in the middle Python gives no name
        raise TableError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except csv.Error as error:
        raise TableError(f"{path}: no CSV: {error}") from error


def _read(path: Path, rows: Iterator[list[str]]) -> Table:
    header = [name.strip() for name in next(rows, [])]
    _check(path, header)
    columns = {name: array("d") for name in header if name not in (*PASSED_OVER, MODEL)}
    models: set[str] = set()
    times: set[str] = set()  # the first and the last of each chunk
    first_row = 2
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        whole = [row for row in chunk if row]  # csv gives nothing for an empty line
        if any(len(row) != len(header) for row in whole):
            wrong = next(index for index, row in enumerate(chunk) if row and len(row) != len(header))
            raise TableError(f"{path}, line {first_row + wrong}: {len(chunk[wrong])} fields, the header has {len(header)}")
        for name, cells in zip(header, zip(*whole, strict=True), strict=False):
            if name == TIME:
                times.update((cells[0], cells[-1]))
            elif name == MODEL:
                models.update(cell.strip() for cell in cells)
            elif name in columns:
                _extend(path, first_row, name, columns[name], cells)
        if len(models) > 1:
            raise TableError(f"{path}: of several models ({', '.join(sorted(models)[:3])}): one file a model")
        first_row += len(chunk)
    return Table(columns, next(iter(models), None), _hours(path, times))


def _hours(path: Path, times: set[str]) -> float | None:
    if not all(map(_is_number, times)):
        return None
    seconds = [second for second in map(float, times) if math.isfinite(second)]
    wrong = next((second for second in seconds if abs(second) > _MILLISECONDS), None)
    if wrong is not None:
        raise TableError(f"{path}: {TIME}: {wrong:g} is no number of seconds; milliseconds?")
    return (max(seconds) - min(seconds)) / 3600.0 or None if seconds else None


def _check(path: Path, header: Sequence[str]) -> None:
    names = [name for name in header if name not in (*PASSED_OVER, MODEL)]
    if not names:
        raise TableError(f"{path}: empty: expected a header that names the statistics, and a row a request")
    if len(header) > _MOST_COLUMNS:
        raise TableError(f"{path}: {len(header)} columns, at most {_MOST_COLUMNS}")
    duplicate = next((name for name in header if header.count(name) > 1), None)
    if duplicate is not None:
        raise TableError(f"{path}: the column {duplicate!r} stands twice in the header")
    unnamed = next((name for name in header if not name or not name.isprintable() or _is_number(name)), None)
    if unnamed is not None:
        raise TableError(f"{path}: {unnamed!r} in the header names no statistic: the first line must be a header")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_000, nobody writes it


def _extend(path: Path, first_row: int, name: str, column: array[float], cells: Sequence[str]) -> None:
    try:
        column.extend(map(float, cells))
        if any("_" in cell for cell in cells):
            raise ValueError("a digit separator")
    except ValueError as error:
        index = next(index for index, cell in enumerate(cells) if not _is_number(cell))
        raise TableError(f"{path}, line {first_row + index}: {name}: not a number: {cells[index][:40]!r}") from error
