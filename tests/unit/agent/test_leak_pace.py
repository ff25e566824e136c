"""A straight line live, at any pace: suspect and a leak when the document says so, and nothing below the limit."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from aie_agent.analysis.leaks.analyser import LeakAnalyser
from aie_agent.analysis.leaks.block_floors import NO_ADJUST, Low
from aie_agent.analysis.leaks.cells import Cell, dump_cell, floors_at_starts, restored_cell
from aie_agent.analysis.leaks.settings import LeakSettings
from tests.fakes.leak_world import GB, World

WARM_UP_TICKS = 20
"""Hundred requests, at five a tick."""


class Pace(NamedTuple):
    """How fast time runs, and seconds between samples."""

    time_scale: float
    step_s: float


PACES = [Pace(240.0, 1.0), Pace(60.0, 1.0), Pace(1.0, 30.0)]


def _first_told(pace: Pace, of_limit: float, hours: float) -> dict[float, float]:
    """When `aie_leak_state` of a perfect line first had each value, in hours of the scaled time since its warm-up ended; the line
    rises by so many times the limit."""
    settings = LeakSettings().scaled(pace.time_scale)
    world = World("cpu")
    world.analyser = LeakAnalyser(settings)
    warm_s = max(settings.warm_up_s, WARM_UP_TICKS * pace.step_s)
    begin_s, first = world.now_s, dict[float, float]()
    while (passed_s := world.now_s - begin_s) < warm_s + hours * 3600 / pace.time_scale:
        world.now_s += pace.step_s - 1.0
        world.tick(physical=10 * GB + of_limit * settings.limit_bytes_per_s * passed_s)
        state = world.states().get("physical", 0.0)
        first.setdefault(state, (world.now_s - begin_s - warm_s) * pace.time_scale / 3600)
    return first


@pytest.mark.parametrize("of_limit", [1.05, 30.0])
@pytest.mark.parametrize("pace", PACES, ids=str)
def test_a_straight_line_is_suspect_and_a_leak_in_the_time_that_is_promised(pace: Pace, of_limit: float) -> None:
    """After 40 minutes and after a day, and a bin at most: two samples later where those are far apart."""
    first = _first_told(pace, of_limit, 25)
    late_h = 2 * pace.step_s * pace.time_scale / 3600
    assert 40 / 60 <= first[1.0] <= 45 / 60 + late_h
    assert 24 - 1 / 60 <= first[2.0] <= 24.1 + late_h


@pytest.mark.parametrize("pace", PACES, ids=str)
def test_a_straight_line_below_the_limit_is_nothing(pace: Pace) -> None:
    """The limit is one of a rate, so it is as many times as high as time runs fast: 2 MB a second at 240."""
    assert set(_first_told(pace, 0.75, 25)) == {0.0}
    assert LeakSettings().scaled(240.0).limit_bytes_per_s == pytest.approx(2e6)


def test_floors_of_cells_with_few_samples_lie_on_their_line() -> None:
    """Samples a second apart in cells of 1.25 s: the first of each comes 0, 0.75, 0.5 and 0.25 s late, and so on."""
    late_s = [-number * 1.25 % 1.0 for number in range(8)]
    cells = [Cell(n, Low(7.0 + 3 * (n * 1.25 + late)), Low(0.0), late) for n, late in enumerate(late_s)]
    assert floors_at_starts(cells, NO_ADJUST, 1.25) == pytest.approx([7.0 + 3.75 * n for n in range(8)])
    whole = [each._replace(late_s=0.0) for each in cells]
    assert floors_at_starts(whole, NO_ADJUST, 1.25) == [each.low.size_bytes for each in cells]


def test_a_cell_through_the_saved_state() -> None:
    cell = Cell(7, Low(1e9, 2.0, 3.0), Low(1.5e9, 2.5, 3.5), 0.75)
    assert restored_cell(dump_cell(cell)) == cell
    assert restored_cell(dump_cell(cell)[:7]) == cell._replace(late_s=0.0), "as it was saved before"
    with pytest.raises(ValueError, match="finite"):
        restored_cell([1.0, 2.0])
