"""Every query of every panel, asked of a real Prometheus as Grafana asks it: it gives data in the situation that the panel is for.

One Prometheus scrapes an agent for each situation; a panel is asked with that agent chosen as its instance. Numbers and tables are
asked for once, pictures for a range, at two steps. A real engine serves SmolLM2; GPUs are simulated, and so are faults.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from aie_telemetry.exposition import PageParser
from dashboards.boards import BOARDS
from dashboards.boards.overview import FINDINGS, HISTORY
from dashboards.links import says_which_agent
from dashboards.table import Board, Kind, Situation
from dashboards.variables import VARIABLES
from tests.e2e.programs import eventually, get
from tests.fakes.board_files import CHOSEN, concrete
from tests.fakes.cuda_stand_in import needs_gcc
from tests.integration.dashboards.grafana import HOUR, ZOOMED, named, placeholders
from tests.integration.dashboards.monitored import FILLED, OF, PACE, PICTURES, Ask, Monitored, asks
from tests.integration.dashboards.situations import GIB, OTHERS

pytestmark = [pytest.mark.model, needs_gcc, pytest.mark.timeout(600)]

DEADLINE_S: Final = 240.0
"""Far beyond what any machine needs: what is there is seen within a minute."""


@pytest.mark.parametrize("situation", FILLED, ids=str)
def test_every_panel_has_data_in_its_situation(situation: Situation, monitored: Monitored, request: pytest.FixtureRequest) -> None:
    if situation in (Situation.PROBES, Situation.CUDA):
        request.getfixturevalue("bpf")
    if OF[situation] not in monitored.agents:
        pytest.skip(f"{situation}: no control group with limits can be made here")
    wanted = asks(situation)
    assert wanted
    until = time.monotonic() + DEADLINE_S
    while (missing := monitored.look(wanted)) and time.monotonic() < until:
        if situation is Situation.FAULTS:
            monitored.broken.babble()
        if situation is Situation.HOOKS:
            monitored.hooked.damage()
        time.sleep(1.0)
    assert not missing, "no data:\n" + "\n".join(map(str, missing))
    for ask in wanted:
        for shown in ask.pictures or (None,):
            _assert_labels(ask, monitored.seen[ask, shown])


def _assert_labels(ask: Ask, found: list[dict[str, Any]]) -> None:
    """What legends, columns and links name is there, of every series."""
    labels = set.intersection(*(set(each["metric"]) for each in found))
    assert placeholders(ask.query.legend) <= labels, (str(ask), labels)
    if ask.panel.kind is Kind.TABLE and ask.query is ask.panel.queries[0]:
        columns = {column.field for column in ask.panel.columns if not column.field.startswith("Value")}
        assert columns <= labels | {"reason"}, (str(ask), labels)  # of what is well there is none
    if ask.panel.link or (ask.panel.runbooks and says_which_agent(ask.panel)):
        assert "instance" in labels, str(ask)
    if ask.panel.kind is Kind.STAT and "__" not in ask.query.legend and ask.board.name != "slo":
        assert len(found) == 1, f"{ask}: one number for one job and agent: {found}"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_with_all_chosen_every_series_has_a_name_of_its_own(board: Board, monitored: Monitored) -> None:
    """All agents at once, as a board opens: nothing that Prometheus cannot match, and no two series that are called the same."""
    chosen = {**CHOSEN, **PACE, **({"gpu": "1"} if board.name == "gpu" else {})}
    for panel in board.panels:
        names: Counter[str] = Counter()
        for query in panel.queries:
            ask = Ask(board, panel, query)
            if panel.kind is Kind.HEATMAP:
                chosen = {**chosen, "engine": "smollm2"}  # a picture for each
            found = monitored.picture(ask, ZOOMED, chosen) if panel.kind in PICTURES else monitored.now(query.expr, chosen)
            if panel.kind is Kind.TABLE:
                fields = [column.field for column in panel.columns if not column.field.startswith("Value")]
                found_names = [" ".join(each["metric"].get(name, "") for name in fields) for each in found]
                assert len(found_names) == len(set(found_names)), f"{ask}: rows that cannot be told apart"
            else:
                names.update(named(query.legend or "{{le}}", each["metric"]) for each in found)
        assert not [name for name, number in names.items() if number > 1], (board.name, panel.title, names)


def test_steps_are_those_of_grafana() -> None:
    """A third of a screen of 1920 pixels, for an hour: 5.6 s, which is 5; and never below the pace of scrapes."""
    assert [HOUR.step_s(width) for width in (8, 12, 24)] == [5.0, 5.0, 2.0]
    assert HOUR.variables(8) == {"__rate_interval": "6s", "__range": "3600s", "__range_s": "3600"}
    assert (ZOOMED.step_s(8), ZOOMED.variables(8)["__rate_interval"]) == (1.0, "4s")


def test_panels_of_troubles_are_empty_where_nothing_is_wrong(monitored: Monitored) -> None:
    """The null test: eight GPUs that are well. What the agent finds of a busy host is the next test's."""
    for ask in asks(*FILLED):
        if ask.panel.trouble and ask.query.expr not in (FINDINGS, HISTORY):
            late = ask.panel.title == "Which sources fail"  # a page that did not come in time, until it is asked for again
            empty = eventually if late else _at_once
            assert empty(lambda ask=ask: monitored.answer(ask.query.expr, "gpus") == []), str(ask)


def _at_once(condition: Callable[[], bool]) -> bool:
    return condition()


@pytest.mark.parametrize("agent", ["plain", "faults"])
def test_what_is_wrong_is_what_the_agent_says(agent: str, monitored: Monitored) -> None:
    """Neither more, nor less, nor more or less grave."""
    ranks = {"critical": 3.0, "warning": 2.0, "info": 1.0}

    def told() -> dict[tuple[str, str], float]:
        page = PageParser().parse(get(f"{monitored.agents[agent].url()}/metrics")[1].decode())
        rows = [dict(sample.tags) for sample in page.samples if sample.name == "aie_finding"]
        return {(row["cause"], row["subject"]): ranks[row["severity"]] for row in rows}

    def shown() -> dict[tuple[str, str], float]:
        return {
            (each["metric"]["cause"], each["metric"]["subject"]): float(each["value"][1])
            for each in monitored.answer(FINDINGS, agent)
        }

    def is_told() -> bool:
        found = shown()
        return found == told() and (agent == "plain" or ("gpu_lost", "gpu4") in found)

    eventually(is_told)


def test_the_numbers_of_a_healthy_host_are_zero(monitored: Monitored) -> None:
    """What is green at 0 is 0 there, and not absent."""
    for title in ("Engines down", "Sources that fail"):
        ask = next(ask for ask in asks(Situation.PLAIN) if (ask.board.name, ask.panel.title) == ("overview", title))
        answer = partial(monitored.answer, ask.query.expr, "plain")
        eventually(lambda answer=answer: [float(each["value"][1]) for each in answer()] == [0.0])


# By board, panel and agent: what the label says of the only label that tells its rows apart, and the number.
_NUMBERS: Final = {
    ("hot", "GPU memory by model", "gpus"): ("model", {"smollm2": 8 * 40 * GIB}),
    ("gpus", "GPUs that answer", "gpus"): ("job", {"aie": 8.0}),
    ("gpus", "GPUs that answer", "faults"): ("job", {"aie": 7.0}),
    ("gpus", "GPUs that do not answer", "faults"): ("job", {"aie": 1.0}),
    ("gpus", "Held back now", "faults"): ("job", {"aie": 1.0}),
    ("gpus", "XIDs in the time shown", "gpus"): ("job", {"aie": 0.0}),
    ("gpus", "XIDs in the time shown", "faults"): ("job", {"aie": 3.0}),
    ("slo", "Time with a live replica", "hooks"): ("engine", {"chat": 1.0, "net": 1.0}),
    ("gpus", "PCIe lanes missing", "faults"): ("gpu", {"3": 8.0}),
    ("gpus", "PCIe generations missing, while busy", "faults"): ("gpu", {"2": 2.0}),
    ("agent", "Agents", "plain"): ("job", {"aie": 1.0}),
}


@pytest.mark.parametrize("key", _NUMBERS, ids=lambda key: " ".join(key))
def test_numbers_are_those_of_the_host(key: tuple[str, str, str], monitored: Monitored) -> None:
    name, title, agent = key
    label, expected = _NUMBERS[key]
    panel = next(panel for board in BOARDS if board.name == name for panel in board.panels if panel.title == title)

    def shown() -> dict[str, float]:
        return {each["metric"][label]: float(each["value"][1]) for each in monitored.answer(panel.queries[0].expr, agent)}

    eventually(lambda: shown() == expected, shown=shown)


def test_spans_are_told_by_what_became_of_them(monitored: Monitored) -> None:
    """The collector refuses one of each batch, and takes all batches."""
    (ask,) = (ask for ask in asks(Situation.HOOKS) if ask.panel.title == "Spans of engines")

    def shown() -> dict[str, float]:
        return {each["metric"]["result"]: float(each["value"][1]) for each in monitored.answer(ask.query.expr, "hooks")}

    # The collector is a thread of this process: where that is late, a batch fails, for as long as the rate's window.
    found = eventually(lambda: (now := shown()).get("refused", 0.0) > 0 and now["failed"] == now["dropped"] == 0.0 and now)
    assert found["ok"] > found["refused"]


@pytest.mark.parametrize("name", [row.name for row in VARIABLES.values() if not row.regex])
def test_variables_have_values(name: str, monitored: Monitored) -> None:
    row = VARIABLES[name]
    inner, _, label = concrete(row.query, monitored.chosen("gpus")).removeprefix("label_values(").removesuffix(")").rpartition(", ")
    answer = monitored.prometheus.get("/api/v1/series", **{"match[]": inner})
    assert {series[label] for series in answer["data"] if label in series}


def test_engines_without_an_agent_can_be_chosen(monitored: Monitored) -> None:
    """Job `alone` is the engine, scraped directly, and a target that is not there: none of them an agent."""
    jobs = concrete(VARIABLES["job"].query).removeprefix("query_result(").removesuffix(")")
    assert {each["metric"]["job"] for each in monitored.prometheus.query(jobs)} == {"aie", "alone"}
    panels = {panel.title: panel for board in BOARDS if board.name in ("engine", "agent") for panel in board.panels}

    def shown(title: str, job: str) -> dict[str, float]:
        expr = concrete(panels[title].queries[0].expr, {**CHOSEN, **PACE, "job": job})
        return {each["metric"]["job"]: float(each["value"][1]) for each in monitored.prometheus.query(expr)}

    assert eventually(lambda: shown("Requests a second", "alone"))["alone"] > 0
    # One that did not answer in time is not there until it is asked again.
    eventually(lambda: shown("Agents that do not answer", "aie|alone") == {"aie": 0.0})


_LEAST: Final = {"vllm": 30, "sglang": 30, "tgi": 18, "llamacpp": 6}
"""How many queries of the engine's board each answers."""


@pytest.mark.parametrize("engine_name", OTHERS)
def test_day_one_shows_something_of_any_engine(engine_name: str, monitored: Monitored) -> None:
    board = next(board for board in BOARDS if board.name == "engine")

    def shown() -> list[str]:
        return [
            f"{panel.title}: {query.legend}"
            for panel in board.panels
            for query in panel.queries
            if monitored.answer(query.expr, "others", engine=engine_name)
        ]

    most = eventually(lambda: len(found := shown()) >= _LEAST[engine_name] and found)
    assert any(title.startswith("Waiting requests") for title in most)


def test_a_page_is_risen_where_it_counts() -> None:
    from tests.integration.dashboards.served_page import risen

    page = '# TYPE a_total counter\na_total 2\nb_count 3\n# TYPE c histogram\nc_bucket{le="1"} 4\nc_count 4\n# HELP a_total 5\n'
    assert risen(page, 1.5) == page.replace("total 2", "total 3.000000").replace(" 4", " 6.000000")
