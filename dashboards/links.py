"""Where panels lead: to other boards, with what is chosen and the time kept, and to the runbooks that the agents serve.

No public address of the runbooks is known, and none is needed: each agent has them at /runbooks/NAME, where it is scraped. An agent
that listens on loopback shows them to who is on its host; the description of each panel names the page in the repository too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from dashboards.table import Panel

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
    for cause in panel.runbooks:
        title = f"Runbook: {cause.replace('_', ' ')}"
        yield builders.DashboardLink(title).url(f"http://${{__field.labels.instance}}/runbooks/{cause}").target_blank(True)


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
