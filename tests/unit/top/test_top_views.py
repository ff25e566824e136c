"""Every panel at every size: within its width and height, and nothing hidden without a trace."""

from __future__ import annotations

import datetime

import agent_api as fake
import agent_gpus
import agent_waits
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_telemetry.api import Gpu, Snapshot
from aie_top.columns.engines import ENGINE_COLUMNS
from aie_top.layout import plan
from aie_top.model import arrange, build_frame
from aie_top.panels import PANELS
from aie_top.report import render, report_lines
from aie_top.rows import AgentState, EngineRow, Frame, View
from aie_top.table import choose
from aie_top.text import cell_width
from aie_top.views.chrome import footer_line, header_line
from aie_top.views.gpu_page import gpu_page, gpu_processes_page
from aie_top.views.history import Selected, history_lines
from aie_top.views.pages import engine_page, help_lines, host_page, problem_page
from aie_top.views.tables import Place
from aie_top.views.waits import waits_page


def frame_of(*snapshots: Snapshot | None, phase: str = "live") -> Frame:
    states = [
        AgentState(label=f"http://host-{at}:9465", phase=phase, snapshot=one, received_s=0.0 if one else None)  # type: ignore[arg-type]
        for at, one in enumerate(snapshots)
    ]
    return build_frame(states, 0.0, datetime.UTC)


def with_gpus(base: Snapshot, gpus: tuple[Gpu, ...]) -> Snapshot:
    return msgspec.structs.replace(base, gpus=gpus)


MANY = fake.snapshot(
    engines=tuple(fake.engine(f"engine-with-a-long-name-{at:03}-日本語") for at in range(64)),
    memory=tuple(fake.memory(f"engine-with-a-long-name-{at:03}-日本語") for at in range(64)),
)
FRAMES = {
    "healthy": frame_of(fake.healthy()),
    "troubled": frame_of(fake.troubled()),
    "empty": frame_of(fake.snapshot()),
    "nobody": frame_of(None, phase="away"),
    "two hosts": frame_of(fake.troubled(), fake.healthy(9)),
    "many": frame_of(MANY),
    "one gpu": frame_of(with_gpus(fake.healthy(), agent_gpus.healthy(1))),
    "eight gpus": frame_of(with_gpus(fake.healthy(), agent_gpus.troubled(8, simulated=True))),
    "sixteen gpus": frame_of(with_gpus(fake.troubled(), agent_gpus.troubled(16)), fake.healthy(9)),
    "waits": frame_of(agent_waits.fights()),
    "waits of two": frame_of(agent_waits.fights(3), with_gpus(agent_waits.fights(9), agent_gpus.troubled(8))),
    "unknown gpus": frame_of(with_gpus(fake.snapshot(), tuple(map(agent_gpus.unknown, range(3))))),
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FRAMES)), st.integers(1, 220), st.integers(1, 70), st.integers(0, 70))
def test_every_panel_keeps_to_its_place(name: str, width: int, height: int, cursor: int) -> None:
    frame, view = arrange(FRAMES[name], View()), View()
    planned = plan(frame, width, height)
    used = 1 + planned.footer + planned.history + sum(planned.panels.values()) + planned.gaps
    assert used <= max(height, 1)
    for panel in PANELS:
        lines = planned.panels[panel.name]
        at = min(cursor, max(len(panel.rows(frame)) - 1, 0))
        shown = panel.lines(frame, view, Place(width, lines, at))
        assert len(shown) <= lines
        assert all(cell_width(one.plain()) <= width for one in shown)
        if panel.rows(frame) and lines > 1:
            assert sum(one.fill == "cursor" for one in shown) == 1, "the cursor is always in sight"
        on_line = panel.on_line(frame, Place(width, lines, at))
        if on_line and lines:
            where = [y for y, row in enumerate(on_line[:lines]) if row == at]
            assert where == [y for y, one in enumerate(shown) if one.fill == "cursor"], "the mouse hits what it points at"
    charts = history_lines(frame, Selected(), width, planned.history)
    assert len(charts) <= planned.history
    assert all(
        cell_width(one.plain()) <= width for one in [*charts, header_line(frame, view, width), footer_line(width, in_detail=False)]
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FRAMES)), st.integers(10, 220))
def test_every_page_keeps_to_its_width(name: str, width: int) -> None:
    frame = FRAMES[name]
    pages = [help_lines(width), *(engine_page(frame, row.key, width) for row in frame.engines[:4])]
    pages += [
        waits_page(frame, width),
        gpu_processes_page(frame, width),
        *(gpu_page(frame, row.key, width) for row in frame.gpus[:8]),
    ]
    pages += [problem_page(row, width) for row in frame.problems] + [host_page(row, width) for row in frame.hosts]
    assert all(cell_width(one.plain()) <= width for page in pages for one in page)


def columns_at(width: int, rows: tuple[EngineRow, ...]) -> list[str]:
    return [placed.column.key for placed in choose(ENGINE_COLUMNS, rows, width).placed]


def test_a_wider_window_never_loses_a_column() -> None:
    rows = FRAMES["healthy"].engines
    previous: set[str] = set()
    for width in range(20, 260):
        now = set(columns_at(width, rows))
        assert previous <= now
        previous = now
    assert previous == {column.key for column in ENGINE_COLUMNS}


def test_forty_columns_say_whether_it_is_well_how_slow_and_how_full() -> None:
    assert {"name", "state", "ttft_p99", "kv", "waiting"} <= set(columns_at(40, FRAMES["healthy"].engines))


def test_columns_do_not_move_when_values_do() -> None:
    small = FRAMES["healthy"].engines
    large = tuple(
        msgspec.structs.replace(
            row, engine=fake.engine(row.engine.name, requests_per_second=98_765.0, waiting=9_999.0, kv_usage_ratio=1.0)
        )
        for row in small
    )
    for width in (40, 80, 120, 200):
        assert [p.width for p in choose(ENGINE_COLUMNS, small, width).placed] == [
            p.width for p in choose(ENGINE_COLUMNS, large, width).placed
        ]


def test_rows_that_do_not_fit_are_counted() -> None:
    frame = FRAMES["many"]
    engines = next(panel for panel in PANELS if panel.name == "engines")
    shown = engines.lines(frame, View(), Place(80, 5, 0))
    assert "4/64" in shown[0].plain()


def test_one_line_for_what_is_wrong_shows_the_worst() -> None:
    (only,) = PANELS[0].lines(FRAMES["troubled"], View(), Place(80, 1, None))
    assert "critical" in only.plain()


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_the_report_fits_eighty_columns_without_colour(name: str) -> None:
    text = render(report_lines(FRAMES[name], View()), colour=False)
    assert max(map(cell_width, text.splitlines())) <= 80
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["troubled", "eight gpus"])
def test_the_report_says_the_same_with_colour_and_in_ascii(name: str) -> None:
    import re

    frame = FRAMES[name]
    coloured = render(report_lines(frame, View()), colour=True)
    plain = render(report_lines(frame, View()), colour=False)
    assert [one.rstrip() for one in re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()] == plain.splitlines()
    ascii_only = render(report_lines(frame, View(), ascii_only=True), colour=False)
    assert ascii_only.isascii()


def test_every_character_of_the_gpus_own_has_a_stand_in_in_ascii() -> None:
    assert "?" not in render(report_lines(FRAMES["eight gpus"], View(), ascii_only=True), colour=False)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_page_of_an_engine_says_what_cannot_be_seen_of_it(width: int) -> None:
    note = "no process of it is known, so its memory and CPU are not seen (on another host, or another user's?)"
    frame = frame_of(fake.snapshot(engines=(fake.engine("llama", state="unknown", note=note),)))
    page = engine_page(frame, frame.engines[0].key, width)
    assert note in " ".join(" ".join(one.plain() for one in page).split())


def test_an_engine_that_is_gone_says_so() -> None:
    assert "is gone" in engine_page(FRAMES["empty"], ("http://host-0:9465", "llama"), 80)[0].plain()
