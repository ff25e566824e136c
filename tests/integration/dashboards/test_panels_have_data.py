"""Every query of every panel, asked of a real Prometheus: it gives data in the situation that the panel is for.

One Prometheus scrapes an agent for each situation; a panel is asked with that agent chosen as its instance. A real engine serves
SmolLM2; GPUs are simulated, and so are faults.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pytest

from aie_ebpf import prerequisites
from aie_telemetry.exposition import PageParser
from dashboards.boards import BOARDS
from dashboards.boards.overview import FINDINGS, HISTORY
from dashboards.table import Board, Kind, Panel, Query, Situation
from dashboards.variables import VARIABLES
from demo.monitoring import Job, MonitoringError, Prometheus, executable, prometheus
from tests.e2e.programs import engine_view, eventually, get
from tests.fakes.board_files import CHOSEN, concrete
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.faultlab.clients import Clients
from tests.faultlab.programs import Program, free_port
from tests.integration.dashboards.situations import GIB, Broken, Hooked, Place, Probed, gpus, limits, others, plain

pytestmark = [pytest.mark.model, needs_gcc, pytest.mark.timeout(600)]

DEADLINE_S: Final = 240.0
"""Far beyond what any machine needs: what is there is seen within a minute."""
LOAD: Final = 1.0
"""Requests a second."""
PACE: Final = {"__rate_interval": "20s", "__range": "1h", "__range_s": "3600"}
_LOOKS: Final = re.compile(r"(?<=:)\d+m\]")
"""How far the looks of a subquery are apart; here five seconds, or a test would wait for the next whole minutes."""

_OTHERS: Final = {"vllm": "vllm-0.33-dp2", "sglang": "sglang-0.5.23-dp2-tp2", "tgi": "tgi-2", "llamacpp": "llama.cpp-2026-10"}
_OF: Final = {
    Situation.PLAIN: "plain",
    Situation.NO_GPU: "plain",
    Situation.OTHERS: "others",
    Situation.GPUS: "gpus",
    Situation.FAULTS: "faults",
    Situation.HOOKS: "hooks",
    Situation.PROBES: "probes",
    Situation.CUDA: "probes",
    Situation.LIMITS: "limits",
}
"""Whose agent a situation is."""
_GPUS_IN_ALL: Final = 17
"""Eight that are well, eight of which some are not, and that of the engine with hooks."""
_GPUS: Final = {"gpu": ("1", "7")}
"""Which are chosen on the board of one: one that had an XID, or one that is divided."""
_FILLED: Final = tuple(situation for situation in Situation if situation is not Situation.NOT_HERE)


class Ask(NamedTuple):
    """A query of a panel of a board."""

    board: Board
    panel: Panel
    query: Query

    def __str__(self) -> str:
        return f"{self.board.name}: {self.panel.title}: {self.query.legend or self.query.expr}"


def asks(*situations: Situation) -> list[Ask]:
    """All queries of panels for these situations."""
    return [
        Ask(board, panel, query)
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        if panel.situation in situations
    ]


@dataclass
class Monitored:
    """What runs: Prometheus, and the agents that it scrapes, by situation."""

    prometheus: Prometheus
    agents: dict[str, Program]
    broken: Broken
    seen: dict[Ask, list[dict[str, Any]]] = field(default_factory=dict)

    def chosen(self, agent: str, **more: str) -> dict[str, str]:
        """Variables with one agent chosen."""
        address = self.agents[agent].url().removeprefix("http://")
        return {**CHOSEN, **PACE, "instance": re.escape(address).replace("\\", "\\\\"), **more}

    def answer(self, expr: str, agent: str, **more: str) -> list[dict[str, Any]]:
        """What a query gives, without what is no number."""
        found = self.prometheus.query(_LOOKS.sub("5s]", concrete(expr, self.chosen(agent, **more))))
        return [each for each in found if not math.isnan(float(each["value"][1]))]

    def look(self, wanted: list[Ask]) -> list[Ask]:
        """Asks what was not seen yet; returns what is still missing."""
        missing = [ask for ask in wanted if ask not in self.seen]
        for ask in missing:
            answers = (self.answer(ask.query.expr, _OF[ask.panel.situation], gpu=gpu) for gpu in _GPUS.get(ask.board.name, (".*",)))
            found = next(filter(None, answers), None)
            if found:
                self.seen[ask] = found
        return [ask for ask in missing if ask not in self.seen]


@pytest.fixture(scope="session")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    """Everything, with the faults already there. What takes longest begins first."""
    try:
        executable("prometheus")
    except MonitoringError as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as stack:
        place = Place(tmp_path_factory.mktemp("agents"), stack)
        hooked, engine = Hooked(place), place.engine()
        can_probe = not prerequisites.unmet(prerequisites.check())
        probed = Probed(place, StandIn(tmp_path_factory.mktemp("cuda"))) if can_probe else None
        broken, limited = Broken(place), limits(place)
        stack.enter_context(hooked.telling())
        url = engine.url()
        stack.enter_context(Clients(url)).send(LOAD)
        agents = {
            "plain": plain(place, url),
            "gpus": gpus(place, url, engine.pid),
            "faults": broken.agent,
            "hooks": hooked.agent,
            "others": others(place, _OTHERS),
            **({"probes": probed.agent} if probed is not None else {}),
            **({"limits": limited} if limited is not None else {}),
        }
        targets = tuple(agent.url().removeprefix("http://") for agent in agents.values())
        alone = (url.removeprefix("http://"), f"127.0.0.1:{free_port()}")
        server = stack.enter_context(prometheus(place.directory / "prometheus", [Job("aie", targets), Job("alone", alone)]))
        made = Monitored(server, agents, broken)
        eventually(lambda: len(server.query("aie_gpu_xid_errors_total{xid='79'}")) == _GPUS_IN_ALL)
        broken.break_it()
        if probed is not None:
            eventually(lambda: _sees_cuda(probed.agent.url()), timeout_s=120.0)
            probed.cuda.begin()
        yield made


def _sees_cuda(url: str) -> bool:
    view = engine_view(url, "cuda")
    states = {each.set: each.state for each in view.coverage} if view is not None else {}
    return all(states.get(name) == "on" for name in ("cuda_memory", "cuda_sync", "cuda_copy"))


@pytest.mark.parametrize("situation", _FILLED, ids=str)
def test_every_panel_has_data_in_its_situation(situation: Situation, monitored: Monitored, request: pytest.FixtureRequest) -> None:
    if situation in (Situation.PROBES, Situation.CUDA):
        request.getfixturevalue("bpf")
    if _OF[situation] not in monitored.agents:
        pytest.skip(f"{situation}: no control group with limits can be made here")
    wanted = asks(situation)
    assert wanted
    until = time.monotonic() + DEADLINE_S
    while (missing := monitored.look(wanted)) and time.monotonic() < until:
        if situation is Situation.FAULTS:
            monitored.broken.babble()
        time.sleep(1.0)
    assert not missing, "no data:\n" + "\n".join(map(str, missing))
    for ask in wanted:
        _assert_labels(ask, monitored.seen[ask])


def _assert_labels(ask: Ask, found: list[dict[str, Any]]) -> None:
    """What legends, columns and links name is there."""
    labels = set().union(*(each["metric"] for each in found))
    assert set(re.findall(r"\{\{(\w+)\}\}", ask.query.legend)) <= labels, (str(ask), labels)
    if ask.panel.kind is Kind.TABLE and ask.query is ask.panel.queries[0]:
        columns = {column.field for column in ask.panel.columns if not column.field.startswith("Value")}
        assert columns <= labels | {"reason"}, (str(ask), labels)  # of what is well there is none
    if ask.panel.runbooks or ask.panel.link:
        assert "instance" in labels, str(ask)
    if ask.panel.kind is Kind.STAT and "__" not in ask.query.legend and ask.board.name != "slo":
        assert len(found) == 1, f"{ask}: one number for one job and agent: {found}"


def test_panels_of_troubles_are_empty_where_nothing_is_wrong(monitored: Monitored) -> None:
    """The null test: eight GPUs that are well. What the agent finds of a busy host is the next test's."""
    for ask in asks(*_FILLED):
        if ask.panel.trouble and ask.query.expr not in (FINDINGS, HISTORY):
            assert monitored.answer(ask.query.expr, "gpus") == [], str(ask)


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

    eventually(lambda: told() == shown())
    assert agent == "plain" or ("gpu_lost", "gpu4") in shown()


def test_the_numbers_of_a_healthy_host_are_zero(monitored: Monitored) -> None:
    """What is green at 0 is 0 there, and not absent."""
    for title in ("Engines down", "Sources that fail"):
        ask = next(ask for ask in asks(Situation.PLAIN) if (ask.board.name, ask.panel.title) == ("overview", title))
        (found,) = eventually(lambda ask=ask: monitored.answer(ask.query.expr, "plain"))
        assert float(found["value"][1]) == 0.0, title


# By board, panel and agent: what the label says of the only label that tells its rows apart, and the number.
_NUMBERS: Final = {
    ("hot", "GPU memory by model", "gpus"): ("model", {"smollm2": 8 * 40 * GIB}),
    ("gpus", "GPUs that answer", "gpus"): ("job", {"aie": 8.0}),
    ("gpus", "GPUs that answer", "faults"): ("job", {"aie": 7.0}),
    ("gpus", "GPUs that do not answer", "faults"): ("job", {"aie": 1.0}),
    ("gpus", "Held back now", "faults"): ("job", {"aie": 1.0}),
    ("gpus", "XIDs in the time shown", "gpus"): ("job", {"aie": 0.0}),
    ("gpus", "XIDs in the time shown", "faults"): ("job", {"aie": 3.0}),
    ("slo", "Time with a live replica", "hooks"): ("engine", {"chat": 1.0}),
    ("gpus", "PCIe lanes missing", "faults"): ("gpu", {"2": 8.0}),
    ("gpus", "PCIe generations missing, while busy", "faults"): ("gpu", {"3": 2.0}),
    ("agent", "Agents", "plain"): ("job", {"aie": 1.0}),
}


@pytest.mark.parametrize("key", _NUMBERS, ids=lambda key: " ".join(key))
def test_numbers_are_those_of_the_host(key: tuple[str, str, str], monitored: Monitored) -> None:
    name, title, agent = key
    label, expected = _NUMBERS[key]
    panel = next(panel for board in BOARDS if board.name == name for panel in board.panels if panel.title == title)

    def shown() -> dict[str, float]:
        return {each["metric"][label]: float(each["value"][1]) for each in monitored.answer(panel.queries[0].expr, agent)}

    eventually(lambda: shown() == expected)


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_have_values(name: str, monitored: Monitored) -> None:
    row = VARIABLES[name]
    inner, _, label = concrete(row.query, monitored.chosen("gpus")).removeprefix("label_values(").removesuffix(")").rpartition(", ")
    answer = monitored.prometheus.get("/api/v1/series", **{"match[]": inner})
    assert {series[label] for series in answer["data"] if label in series}


def test_engines_without_an_agent_can_be_chosen(monitored: Monitored) -> None:
    """Job `alone` is the engine, scraped directly, and a target that is not there: none of them an agent."""
    inner, _, _ = VARIABLES["job"].query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    assert {each["job"] for each in monitored.prometheus.get("/api/v1/series", **{"match[]": inner})["data"]} == {"aie", "alone"}
    panels = {panel.title: panel for board in BOARDS if board.name in ("engine", "agent") for panel in board.panels}

    def shown(title: str, job: str) -> dict[str, float]:
        expr = concrete(panels[title].queries[0].expr, {**CHOSEN, **PACE, "job": job})
        return {each["metric"]["job"]: float(each["value"][1]) for each in monitored.prometheus.query(expr)}

    assert eventually(lambda: shown("Requests a second", "alone"))["alone"] > 0
    assert shown("Agents that do not answer", "aie|alone") == {"aie": 0.0}


_LEAST: Final = {"vllm": 30, "sglang": 30, "tgi": 18, "llamacpp": 6}
"""How many queries of the engine's board each answers."""


@pytest.mark.parametrize("engine_name", _OTHERS)
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
