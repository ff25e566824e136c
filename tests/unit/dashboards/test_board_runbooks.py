"""From a picture to what helps: the runbooks of panels are there, and for every alert a panel leads to its runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

import aie_alerts
from dashboards.assemble import board_json
from dashboards.boards import BOARDS
from dashboards.links import TITLES, says_which_agent
from dashboards.table import Board, Panel, Query, Row, lines, stat
from tests.fakes.alert_files import ALERT_RULES, NAMES
from tests.fakes.board_files import JSON_FILES, board, panels

ROOT: Final = Path(__file__).parents[3]
TABLES: Final = pytest.mark.parametrize("table", BOARDS, ids=lambda table: table.name)
WITHOUT_PANEL: Final = {
    "AieWatchdog": "it always fires, and tells that alerts arrive: no metric of it could be drawn",
    "AieFindingCritical": "its runbook is that of the cause, to which the cells of `What is wrong now` lead",
    "AieFindingWarning": "its runbook is that of the cause, to which the cells of `What is wrong now` lead",
}
"""Alerts that no panel names, and why."""
_CAUSES: Final = re.compile(r'cause=~?"([^"]+)"')
_PATH: Final = re.compile(r"`([\w/]+/runbooks/(\w+)\.md)`")
_URL: Final = re.compile(r"http://\$\{__field\.labels\.instance\}/runbooks/(\w+)")


def described(panel: dict[str, Any]) -> set[str]:
    """The runbooks that the description names."""
    return {name for _, name in _PATH.findall(panel.get("description", ""))}


def linked(panel: dict[str, Any]) -> set[str]:
    """Those to which a click on a series leads."""
    links = panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())
    return {found[1] for link in links if (found := _URL.fullmatch(link["url"]))}


ALL: Final = [panel for path in JSON_FILES for panel in panels(board(path))]
LED_TO: Final = {name for panel in ALL for name in described(panel) | linked(panel)}


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_PANEL.keys()))
def test_for_every_alert_there_is_a_panel_that_leads_to_its_runbook(name: str) -> None:
    """To the page of the alert; of one about what agents find, to those of its causes, all of which its own page is about."""
    for rule in (rule for rule in ALERT_RULES if rule.name == name):
        causes = {cause for group in _CAUSES.findall(rule.table["expr"]) for cause in group.split("|")}
        assert name in LED_TO or (causes and causes <= LED_TO), f"no panel leads to the runbook of {name}: {causes - LED_TO}"


def test_what_is_without_a_panel_is_an_alert_that_no_panel_names() -> None:
    assert WITHOUT_PANEL.keys() <= set(NAMES)
    assert not WITHOUT_PANEL.keys() & LED_TO
    table = next(panel for panel in ALL if panel["title"] == "What is wrong now")
    urls = [link["url"] for rule in table["fieldConfig"]["overrides"] for each in rule["properties"] if each["id"] == "links"
            for link in each["value"]]  # fmt: skip
    assert "http://${__data.fields.instance}/runbooks/${__data.fields.cause}" in urls


@TABLES
def test_runbooks_are_there(table: Board) -> None:
    pages = aie_alerts.pages()
    for panel in table.panels:
        assert set(panel.runbooks) <= pages.keys(), panel.title
        assert len(set(panel.runbooks)) == len(panel.runbooks), panel.title
        assert not panel.link or panel.link in TITLES


@pytest.mark.parametrize("panel", [panel for panel in ALL if described(panel)], ids=lambda panel: panel["title"])
def test_a_description_names_files_and_a_click_leads_to_the_same(panel: dict[str, Any]) -> None:
    for path, _ in _PATH.findall(panel["description"]):
        assert (ROOT / path).is_file()
    assert linked(panel) in (set(), described(panel))
    assert ("a click on a series" in panel["description"]) == bool(linked(panel))


def _drawn(panel: Panel) -> dict[str, Any]:
    (found,) = json.loads(board_json(Board("x", "X", "?", (), (Row("", (panel,)),))))["panels"]
    return dict(found)


def test_series_lead_there_only_where_they_say_which_agent_they_are_of() -> None:
    of_host = lines(
        "a", "?", "none", Query("sum by (job, instance) (x)"), Query('y{instance="h"}'), runbooks=("engine_down", "AieEngineDown")
    )
    assert says_which_agent(of_host)
    assert linked(_drawn(of_host)) == described(_drawn(of_host)) == {"engine_down", "AieEngineDown"}
    of_job = stat("a", "?", "none", Query('sum by (job) (x{instance="h"})'), runbooks=("AieEngineDown",))
    assert not says_which_agent(of_job)
    assert (linked(_drawn(of_job)), described(_drawn(of_job))) == (set(), {"AieEngineDown"})
