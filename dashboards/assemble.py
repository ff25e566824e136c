"""From a board's table to its JSON: a grid without gaps, ids in order, variables and links. Pure: the same table, the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards import links, panels, variables
from dashboards import promql as p
from dashboards.table import Board, Panel, Row

COLUMNS: Final = 24
"""Of Grafana's grid."""


_FOUND: Final = p.by("instance, cause, subject", p.of("aie_finding", extra='severity=~"warning|critical"'), "max")


def _latest(metric: str, over: str) -> str:
    return p.by("instance, engine", f"max_over_time({p.of(metric)}{over})", "max")


def _started(metric: str) -> str:
    """Engines whose latest start is later than all that were told in the half hour before: so neither two processes that answer in
    turn nor an older one that comes are a restart, and one that is back within that time is, with whatever model."""
    return f"{_latest(metric, '[2m]')} > {_latest(metric, '[30m] offset 2m')}"


_PROCESS: Final = "aie_process_start_time_seconds"
_SEEN: Final = f"{_latest(_PROCESS, '[30m]')} > {p.by('instance, engine', f'min_over_time({p.of(_PROCESS)}[30m])', 'min')}"
_RESTARTED: Final = (
    f"{_started(_PROCESS)} or ({_started('aie_engine_start_time_seconds')} unless on (job, instance, engine) {_SEEN})"
)
"""Of engines of any kind by their processes, and of those on other hosts by their pages. A page is later by as long as a model
takes to load: it adds no second mark."""


def positions(row: Sequence[Panel], top: int) -> list[models.GridPos]:
    """Panels from left to right; one that does not fit begins a new line below the highest of the line before."""
    found: list[models.GridPos] = []
    left = height = 0
    for panel in row:
        if left + panel.width > COLUMNS:
            top, left, height = top + height, 0, 0
        found.append(models.GridPos(x=left, y=top, w=panel.width, h=panel.height))
        left, height = left + panel.width, max(height, panel.height)
    return found


def bottom(row: Sequence[models.GridPos], top: int) -> int:
    """The line below all of them."""
    return max((each.y + each.h for each in row), default=top)


def board_json(board: Board) -> str:
    """A board as Grafana reads it, with a line break at its end."""
    made = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.question)
        .tags([links.TAG])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh(board.refresh)
        .time(board.range, "now")
        .timezone("browser")
        .variables([variables.datasource(), *(variables.query_variable(variables.VARIABLES[name]) for name in board.variables)])
        .annotation(_mark("Findings", "orange", _FOUND, "{{cause}}: {{subject}}"))
        .annotation(_mark("Restarts", "blue", _RESTARTED, "{{engine}} started"))
        .link(links.to_boards())
    )
    made.build().panels = list(_panels(board.rows))
    return (
        json.dumps(_placed_above(json.loads(JSONEncoder().encode(made.build()))), indent=2, sort_keys=True, ensure_ascii=False)
        + "\n"
    )


def _mark(name: str, colour: str, expr: str, title: str) -> builders.AnnotationQuery:
    """When something happened, on every picture; which host, in the mark's text."""
    return (
        builders.AnnotationQuery()
        .name(name)
        .datasource(variables.DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color(colour)
        .expr(expr)
        .title_format(title)
        .text_format("{{instance}}")
        .step("30s")
    )


def _placed_above(board: dict[str, Any]) -> dict[str, Any]:
    """Links belong above the panels; the SDK puts each into a menu that Grafana before 12.3 does not have."""
    for link in (*board["links"], *board["annotations"]["list"]):
        link.pop("placement", None)
    for panel in board["panels"]:
        for each in (panel, *panel.get("panels", ())):
            for link in each.get("fieldConfig", {}).get("defaults", {}).get("links", ()):
                link.pop("placement", None)
    return board


def _panels(rows: tuple[Row, ...]) -> Iterator[Any]:
    """Headings and panels, with ids in the order in which they are read. The panels of a folded row are inside it."""
    identity, top = 0, 0
    for row in rows:
        heading = None
        if row.title:
            identity += 1
            heading = builders.Row(row.title).id(identity).grid_pos(models.GridPos(x=0, y=top, w=COLUMNS, h=1)).build()
            heading.collapsed = row.folded
            top += 1
            yield heading
        places = positions(row.panels, top)
        made = []
        for panel, place in zip(row.panels, places, strict=True):
            identity += 1
            made.append(panels.build(panel, identity, place).build())
        if heading is not None and row.folded:
            heading.panels = made
        else:
            yield from made
            top = bottom(places, top)
