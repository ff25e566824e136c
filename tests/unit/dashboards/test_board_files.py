"""The boards as files: what Grafana needs and the SDK does not see to, and that they are what the tables make."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import units

from dashboards import build
from dashboards.assemble import board_json, positions
from dashboards.boards import BOARDS
from dashboards.table import Board, Kind, Panel, Row, Situation
from dashboards.variables import VARIABLES
from tests.fakes.board_files import JSON_FILES, board, panels

ROOT: Final = Path(__file__).parents[3]
GRAFANAS_UNITS: Final = {value for name, value in vars(units).items() if not name.startswith("_") and isinstance(value, str)}
"""By the SDK, which takes them from Grafana's packages/grafana-data/src/valueFormats/categories.ts."""
OURS: Final = frozenset(
    {"none", "short", "s", "percentunit", "reqps", "bytes", "binBps", "celsius", "watt"},
)
"""Those that boards use: another one is a decision, and stands here."""
_NO_COLOURS: Final = frozenset({"text", "transparent"})
_COLOURS: Final = frozenset({"red", "orange", "yellow", "green", "blue", "purple"}) | _NO_COLOURS

_KEPT: Final = re.compile(r"by \(([^)]*)\)")
"""What the outermost aggregation keeps: in each of our forms it stands first."""

_LABEL_VALUES: Final = re.compile(r"label_values\((?:(.+),\s*)?([a-zA-Z_$][a-zA-Z0-9_]*)\)\s*")
_QUERY_RESULT: Final = re.compile(r"query_result\((.+)\)\s*")
"""By which Grafana's data source tells the series and the label, or the expression, of queries of these types, of which 1 and 3 are
the numbers: its packages/grafana-prometheus/src/types.ts (PromVariableQueryType) and migrations/variableMigration.ts."""

FILES: Final = pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)
TABLES: Final = pytest.mark.parametrize("table", BOARDS, ids=lambda table: table.name)


def test_what_is_committed_is_what_the_tables_make() -> None:
    assert build.stale(build.generated()) == [], "run: python dashboards/build.py"


def test_building_twice_makes_the_same() -> None:
    assert [board_json(each) for each in BOARDS] == [board_json(each) for each in BOARDS]


def test_boards_that_no_table_makes_and_changed_ones_are_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "JSON_DIRECTORY", tmp_path)
    (tmp_path / "left.json").write_text("{}")
    (tmp_path / "kept.json").write_text("a")
    wanted = {tmp_path / "kept.json": "a", tmp_path / "new.json": "b"}
    assert build.stale(wanted) == [tmp_path / "new.json", tmp_path / "left.json"]


@FILES
def test_the_sdk_reads_what_it_wrote(path: Path) -> None:
    """A loose check of the schema: every field is one that the SDK knows, of the type that it knows."""
    plugins.register_default_plugins()
    found = board(path)
    again = json.loads(JSONEncoder().encode(models.Dashboard.from_json(found)))
    assert _without_placement(again) == _without_placement(found)


def _without_placement(value: Any) -> Any:
    """The SDK's constant, which `assemble` leaves out on purpose; and what is nothing, said in two ways."""
    if isinstance(value, dict):
        return {key: _without_placement(each) for key, each in value.items() if key != "placement" or each == "bottom"}
    return [_without_placement(each) for each in value] if isinstance(value, list) else value


def test_uids_and_titles_are_there_once() -> None:
    found = [board(path) for path in JSON_FILES]
    for key in ("uid", "title"):
        assert max(Counter(each[key] for each in found).values()) == 1
    assert all(each["uid"] == path.stem for each, path in zip(found, JSON_FILES, strict=True))
    assert all(re.fullmatch(r"aie-[a-z-]{1,36}", each["uid"]) for each in found), "Grafana takes 40 letters"


@FILES
def test_schema_and_what_every_board_has(path: Path) -> None:
    found = board(path)
    assert found["schemaVersion"] == 42
    assert found["description"].endswith("?")
    assert found["tags"] == ["aie"]
    (link,) = found["links"]
    assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == ("dashboards", ["aie"], True, True)
    assert "id" not in found, "Grafana gives it; a number would take another board's place"


def test_only_what_is_dear_and_hardly_moves_is_asked_seldom() -> None:
    """Thirty days of thousands of looks, and shares of hours: each half minute would be more than a Prometheus has to spare."""
    assert {found["uid"] for found in map(board, JSON_FILES) if "[30d:5m]" in json.dumps(found)} == {"aie-slo"}
    assert {found["uid"]: found["refresh"] for found in map(board, JSON_FILES) if found["refresh"] != "30s"} == {"aie-slo": "5m"}


@FILES
def test_ids_and_ref_ids_are_there_once(path: Path) -> None:
    found = board(path)
    rows = [panel for panel in found["panels"] if panel["type"] == "row"]
    ids = [panel["id"] for panel in (*rows, *panels(found))]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    for panel in panels(found):
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert refs == [chr(ord("A") + number) for number in range(len(refs))], panel["title"]


@FILES
def test_nothing_overlaps_and_everything_is_on_the_grid(path: Path) -> None:
    found = board(path)
    open_ = [panel["gridPos"] for panel in found["panels"]]
    folded = [[panel["gridPos"] for panel in row.get("panels") or ()] for row in found["panels"] if row["type"] == "row"]
    for places in (open_, *folded):
        assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0 for place in places)
        for one, other in itertools.combinations(places, 2):
            assert not _overlap(one, other), (one, other)
    headings = [panel["gridPos"]["y"] for panel in found["panels"] if panel["type"] == "row"]
    assert headings == sorted(headings)


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[length] and other[start] < one[start] + one[length]
        for start, length in (("x", "w"), ("y", "h"))
    )


@TABLES
def test_rows_are_filled_to_the_right_edge(table: Board) -> None:
    """Each line of panels is full, or the last of its row; and panels beside each other are equally high."""
    for row in table.rows:
        places = positions(row.panels, 0)
        lines = [list(group) for _, group in itertools.groupby(places, key=lambda place: place.y)]
        assert all(sum(place.w for place in line) == 24 for line in lines[:-1]), row.title
        assert all(len({place.h for place in line}) == 1 for line in lines), row.title


def test_panels_that_do_not_fit_go_below_the_highest() -> None:
    row = [Panel("a", "?", "none", (), width=12, height=3), Panel("b", "?", "none", (), width=8, height=5)]
    places = positions([*row, Panel("c", "?", "none", (), width=6, height=2)], 7)
    assert [(place.x, place.y) for place in places] == [(0, 7), (12, 7), (0, 12)]


@FILES
def test_every_panel_says_what_it_answers_and_in_which_unit(path: Path) -> None:
    for panel in panels(board(path)):
        title = panel["title"]
        assert panel["description"].split("\n")[0].strip(), title
        assert len(title) <= 48, title
        if panel["type"] == "text":
            continue
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in OURS, (title, unit)
        overridden = [
            each["value"] for rule in panel["fieldConfig"]["overrides"] for each in rule["properties"] if each["id"] == "unit"
        ]
        assert set(overridden) <= OURS, title


def test_units_are_grafanas() -> None:
    assert OURS <= GRAFANAS_UNITS


@TABLES
def test_every_question_is_one(table: Board) -> None:
    for panel in table.panels:
        assert "?" in panel.question, panel.title
        assert not panel.empty.endswith("."), panel.title
    titles = Counter((row.title, panel.title) for row in table.rows for panel in row.panels)
    assert max(titles.values()) == 1


def test_heatmaps_are_of_one_engine_each() -> None:
    """Grafana draws the buckets of one histogram, and each kind of engine has bounds of its own: a picture for each."""
    found = [panel for path in JSON_FILES for panel in panels(board(path)) if panel["type"] == "heatmap"]
    assert found
    for panel in found:
        assert panel["repeat"] == "engine"
        assert all("sum by (job, engine, le)" in target["expr"] for target in panel["targets"]), panel["title"]


@FILES
def test_every_query_asks_the_chosen_data_source(path: Path) -> None:
    found = board(path)
    reference = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(found):
        if panel["type"] != "text":
            assert panel["datasource"] == reference
            assert panel["targets"]
            assert all(target["datasource"] == reference for target in panel["targets"])
    variables = found["templating"]["list"]
    assert (variables[0]["type"], variables[0]["query"]) == ("datasource", "prometheus")
    assert all(variable["datasource"] == reference for variable in variables[1:])
    assert all(each["datasource"] == reference for each in found["annotations"]["list"])


@FILES
def test_every_variable_is_used_and_none_is_missing(path: Path) -> None:
    found = board(path)
    names = [variable["name"] for variable in found["templating"]["list"]]
    asked = [target["expr"] for panel in panels(found) for target in panel.get("targets", ())]
    used = set(re.findall(r"\$([a-z]+)", " ".join(asked)))
    assert set(names) - {"datasource"} == used
    for variable in found["templating"]["list"][1:]:
        before = names[: names.index(variable["name"])]
        assert set(re.findall(r"\$([a-z]+)", variable["query"]["query"])) <= set(before), "depends on those before it"


@FILES
def test_variables_are_as_grafanas_editor_writes_them(path: Path) -> None:
    """Of three keys, the type among them: without it the editor opens empty, and saves over the query what is in it."""
    for variable in board(path)["templating"]["list"][1:]:
        query = variable["query"]
        assert query.keys() == {"qryType", "query", "refId"}
        assert query["refId"] == "PrometheusVariableQueryEditor-VariableQuery"
        assert variable["definition"] == query["query"]
        told = _LABEL_VALUES.fullmatch(query["query"])
        if told is None:
            assert (query["qryType"], bool(_QUERY_RESULT.fullmatch(query["query"]))) == (3, True)
            assert variable["regex"] == f'/{variable["name"]}="([^"]*)"/', "of each line the label's value"
            continue
        assert query["qryType"] == 1
        assert told[2] == variable["name"]
        assert re.fullmatch(r"\w*\{.+\}", told[1]), "a series, by its name or its labels"


def test_variables_of_one_name_lead_to_each_other() -> None:
    """`gpu` is one of many on one board and the only one on the other; links carry it by its name."""
    assert VARIABLES["one_gpu"].query == VARIABLES["gpu"].query
    assert not VARIABLES["one_gpu"].multi


@FILES
def test_links_lead_to_boards_that_are_there_with_labels_that_are_there(path: Path) -> None:
    uids = {each.stem for each in JSON_FILES}
    variables = {each.stem: {variable["name"] for variable in board(each)["templating"]["list"]} for each in JSON_FILES}
    for panel in panels(board(path)):
        for link in _links(panel):
            url = link["url"]
            to_board = re.match(r"/d/([a-z-]+)/", url)
            if to_board is None:
                assert re.fullmatch(r"http://\$\{__(field\.labels|data\.fields)\.instance\}/runbooks/\S+", url), url
                continue
            assert to_board[1] in uids
            assert url.endswith("&${datasource:queryparam}&${job:queryparam}&${__url_time_range}")
            assert set(re.findall(r"var-(\w+)=", url)) <= variables[to_board[1]], url
            for label in re.findall(r"\$\{__field\.labels\.(\w+)\}", url):
                assert all(label in target["expr"] for target in panel["targets"]), (panel["title"], label)


def _links(panel: dict[str, Any]) -> list[dict[str, Any]]:
    config = panel["fieldConfig"] if panel["type"] != "text" else {"defaults": {}, "overrides": []}
    overridden = [each["value"] for rule in config["overrides"] for each in rule["properties"] if each["id"] == "links"]
    return [*config["defaults"].get("links", ()), *itertools.chain(*overridden)]


@TABLES
def test_tables_are_sorted_by_a_column_and_name_fields_that_their_queries_give(table: Board) -> None:
    for panel in table.panels:
        if panel.kind is not Kind.TABLE:
            continue
        assert panel.sort in {column.title for column in panel.columns}, panel.title
        values = ["Value"] if len(panel.queries) == 1 else [f"Value #{chr(65 + each)}" for each in range(len(panel.queries))]
        labels = {column.field for column in panel.columns if not column.field.startswith("Value")}
        assert {column.field for column in panel.columns} - labels <= set(values), panel.title
        for label in labels:
            assert re.search(rf"\b{label}\b", panel.queries[0].expr), (panel.title, label)


@TABLES
def test_legends_name_labels_that_the_query_keeps(table: Board) -> None:
    for panel in table.panels:
        for query in panel.queries:
            for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
                assert re.search(rf"\b{label}\b", query.expr), (panel.title, label)


@TABLES
def test_legends_tell_series_apart(table: Board) -> None:
    """What a query keeps apart has a name of its own. Jobs do not: an engine that is read twice is the same."""
    chosen = {variable for variable in table.variables if not VARIABLES[variable].multi}
    known = {"job", "le", *(variable.removeprefix("one_") for variable in chosen)}
    for panel in table.panels:
        if panel.kind not in (Kind.LINES, Kind.TIMELINE, Kind.BARS):
            continue
        for query in panel.queries:
            kept = set(_KEPT.findall(query.expr)[0].split(", ")) if _KEPT.search(query.expr) else {"instance"}
            assert kept - known <= set(re.findall(r"\{\{(\w+)\}\}", query.legend)), (panel.title, query.legend)


@TABLES
def test_colours_mean_something(table: Board) -> None:
    """Few colours, each query at most one; what is red is wrong."""
    for panel in table.panels:
        assert len(panel.colours) <= len(panel.queries)
        named = {*panel.colours, *(step.colour for step in panel.steps), *(word.colour for _, word in panel.words)}
        assert named <= _COLOURS, panel.title
        assert [step.at for step in panel.steps if step.at is not None] == sorted(
            step.at for step in panel.steps if step.at is not None
        )
        assert len(panel.queries) <= 6, panel.title


@TABLES
def test_few_panels_beside_each_other(table: Board) -> None:
    for row in table.rows:
        for _, group in itertools.groupby(positions(row.panels, 0), key=lambda place: place.y):
            assert len(list(group)) <= 6, row.title


@TABLES
def test_what_needs_more_than_a_page_says_so_where_it_is_empty(table: Board) -> None:
    for panel in table.panels:
        assert panel.situation is Situation.PLAIN or panel.empty or panel.kind is Kind.TEXT, panel.title


def test_what_no_test_can_fill_is_little_and_has_a_reason() -> None:
    every = [panel for each in BOARDS for panel in each.panels]
    hidden = [panel for panel in every if panel.situation is Situation.NOT_HERE]
    assert all(panel.why for panel in hidden)
    assert not any(panel.why for panel in every if panel not in hidden)
    assert len(hidden) <= 3, [panel.title for panel in hidden]


def test_a_board_starts_with_its_answer() -> None:
    """Numbers that say whether anything is wrong, before any picture; and nothing folded before what is open."""
    for table in BOARDS:
        assert table.rows[0].panels[0].kind in (Kind.STAT, Kind.BARS), table.name
        folded = [row.folded for row in table.rows]
        assert folded == sorted(folded), table.name


def test_a_folded_row_holds_its_panels() -> None:
    made = json.loads(board_json(Board("x", "X", "?", (), (Row("r", BOARDS[0].panels[:2], folded=True),))))
    (row,) = made["panels"]
    assert row["collapsed"] is True
    assert [panel["id"] for panel in row["panels"]] == [2, 3]
