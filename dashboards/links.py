"""Where panels lead: to other boards, with what is chosen and the time kept, and to the runbooks that the agents serve.

No public address of the runbooks is known, and none is needed: each agent has them at /runbooks/NAME, where it is scraped. An agent
that listens on loopback shows them to who is on its host; the description of each panel names the page in the repository too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from dashboards.table import Kind, Panel

TAG: Final = "aie"
_KEPT: Final = "${datasource:queryparam}&${job:queryparam}&${__url_time_range}"
_BOARDS: Final = {
    "engine": ("instance", "engine"),
    "memory": ("instance", "engine"),
    "drift": ("instance", "engine"),
    "host": ("instance",),
    "agent": ("instance",),
    "gpu": ("instance", "gpu"),
}
"""A board that one can be led to, and the labels of a series, or columns of a row, that choose there."""
_BY: Final = re.compile(r"\bby \(([^)]*)\)")
TITLES: Final = {
    "engine": "Its engine",
    "memory": "Its memory",
    "drift": "Its drift",
    "host": "Its host",
    "agent": "Its agent",
    "gpu": "This GPU",
    "runbook": "The runbook of this cause",
}


def of_row(target: str) -> str:
    """The URL behind a cell of a table; the row has the columns that it needs."""
    if target == "runbook":
        return "http://${__data.fields.instance}/runbooks/${__data.fields.cause}"
    return _board(target, "__data.fields")


def of_series(panel: Panel) -> Iterator[builders.DashboardLink]:
    """Where a series of a panel leads."""
    if panel.link:
        yield builders.DashboardLink(TITLES[panel.link]).url(_board(panel.link, "__field.labels"))
    for name in panel.runbooks if says_which_agent(panel) else ():
        title = f"Runbook: {name.replace('_', ' ')}"
        yield builders.DashboardLink(title).url(f"http://${{__field.labels.instance}}/runbooks/{name}").target_blank(True)


def says_which_agent(panel: Panel) -> bool:
    """Whether its series keep the label by which an agent is found. The cells of a table have columns instead."""
    return panel.kind not in (Kind.TABLE, Kind.TEXT) and all("instance" in _kept(query.expr) for query in panel.queries)


def _kept(expr: str) -> list[str]:
    """The labels of what a query returns: in each of our forms the outermost aggregation stands first; without any all are kept."""
    found = _BY.search(expr)
    return found[1].split(", ") if found else ["instance"]


def page(name: str) -> str:
    """Where the runbook of a cause or an alert stands in the source tree."""
    return f"alerts/aie_alerts/runbooks/{name}.md" if name.startswith("Aie") else f"docs/runbooks/{name}.md"


def to_boards() -> builders.DashboardLink:
    """The list of all boards of ours, with what is chosen and the time kept."""
    return (
        builders.DashboardLink("aie")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
        .icon("external link")
    )


def _board(name: str, labels: str) -> str:
    chosen = "&".join(f"var-{label}=${{{labels}.{label}}}" for label in _BOARDS[name])
    return f"/d/aie-{name}/aie-{name}?{chosen}&{_KEPT}"
