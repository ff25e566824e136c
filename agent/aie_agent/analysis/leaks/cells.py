"""Cells of five minutes, out of which a line's bins are made; and their floors where samples are few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from aie_agent.analysis.leaks.block_floors import Adjust, Low

FEW: Final = 5
"""Samples of a cell. Of fewer the first comes a fifth of the cell late or more, now early and now late: no straight line is one."""


class Cell(NamedTuple):
    """Five minutes: its number, least size, mean size, load and size of caches; how long after its start the least size came
    (seconds), where samples are few, else 0."""

    number: int
    low: Low
    mean: Low
    late_s: float = 0.0


def floors_at_starts(cells: Sequence[Cell], by: Adjust, cell_s: float) -> list[float]:
    """The floors of successive cells, adjusted, in bytes, as they were when each began: on the line from the one before (for the
    first: to the one after). A straight line stays one, whichever part of a cell its samples fall into."""
    lows = [each.low.adjusted(by) for each in cells]
    if len(cells) < 2 or not any(each.late_s for each in cells):
        return lows
    times = [each.number * cell_s + each.late_s for each in cells]
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(zip(times, lows, strict=True))]
    return [low - each.late_s * slope for low, each, slope in zip(lows, cells, [slopes[0], *slopes], strict=True)]


def restored_cell(values: Sequence[Any]) -> Cell:
    """What `dump_cell` gave, or a state of before `late_s`. Raises ValueError or TypeError for anything else."""
    number, *lows = numbers(values, 7 if len(values) == 7 else 8)
    return Cell(int(number), Low(*lows[:3]), Low(*lows[3:6]), *lows[6:])


def dump_cell(cell: Cell) -> list[float]:
    """As plain numbers."""
    return rounded(cell.number, *cell.low, *cell.mean, cell.late_s)


def rounded(*values: float) -> list[float]:
    """To thousandths, whole where they are: the state is text on disk."""
    return [int(value) if value == int(value) else round(value, 3) for value in values]


def numbers(values: Sequence[Any], count: int) -> list[float]:
    """So many finite numbers. Raises ValueError or TypeError for anything else."""
    found = [float(value) for value in values]
    if len(found) != count or not all(math.isfinite(number) for number in found):
        raise ValueError(f"expected {count} finite numbers")
    return found
