"""What runs while panels are asked: a Prometheus that scrapes an agent for each situation, and how it is asked their queries."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dashboards.boards import BOARDS
from dashboards.table import Board, Kind, Panel, Query, Situation
from demo.monitoring import Prometheus
from tests.fakes.board_files import CHOSEN, concrete
from tests.faultlab.programs import Program
from tests.integration.dashboards.grafana import HOUR, ZOOMED, Shown
from tests.integration.dashboards.situations import Broken, Hooked

PACE: Final = {"__rate_interval": "20s", "__range": "1h", "__range_s": "3600"}
PICTURES: Final = frozenset({Kind.LINES, Kind.TIMELINE, Kind.HEATMAP})
"""Kinds that show a time, for which Grafana asks for a range."""
OF: Final = {
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
FILLED: Final = tuple(situation for situation in Situation if situation is not Situation.NOT_HERE)

_LOOKS: Final = re.compile(r"\[(\w+):\d+m\]")
"""A subquery: for how long it looks, and how often."""
_LONGEST: Final = "6h"
_GPUS: Final = {"gpu": ("1", "7")}
"""Which are chosen on the board of one: one that had an XID, or one that is divided."""


def sooner(expr: str) -> str:
    """With looks five seconds apart, or a test would wait for whole minutes; and none at days of which there is nothing."""
    return _LOOKS.sub(lambda found: f"[{_LONGEST if found[1].endswith('d') else found[1]}:5s]", expr)


class Ask(NamedTuple):
    """A query of a panel of a board."""

    board: Board
    panel: Panel
    query: Query

    def __str__(self) -> str:
        return f"{self.board.name}: {self.panel.title}: {self.query.legend or self.query.expr}"

    @property
    def agent(self) -> str:
        """Whose agent has what it asks for."""
        return OF[self.panel.situation_of(self.query)]

    @property
    def pictures(self) -> tuple[Shown, ...]:
        """The times for which it is asked; none where Grafana asks only for what is now."""
        return (HOUR, ZOOMED) if self.panel.kind in PICTURES else ()


def asks(*situations: Situation) -> list[Ask]:
    """All queries of panels for these situations."""
    return [
        Ask(board, panel, query)
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        if panel.situation_of(query) in situations
    ]


@dataclass
class Monitored:
    """What runs: Prometheus, and the agents that it scrapes, by situation."""

    prometheus: Prometheus
    agents: dict[str, Program]
    broken: Broken
    hooked: Hooked
    seen: dict[tuple[Ask, Shown | None], list[dict[str, Any]]] = field(default_factory=dict)

    def chosen(self, agent: str, **more: str) -> dict[str, str]:
        """Variables with one agent chosen."""
        address = self.agents[agent].url().removeprefix("http://")
        return {**CHOSEN, **PACE, "instance": re.escape(address).replace("\\", "\\\\"), **more}

    def answer(self, expr: str, agent: str, **more: str) -> list[dict[str, Any]]:
        """What a query gives now, without what is no number."""
        return self.now(expr, self.chosen(agent, **more))

    def now(self, expr: str, chosen: dict[str, str]) -> list[dict[str, Any]]:
        """The same, with these variables."""
        found = self.prometheus.query(sooner(concrete(expr, chosen)))
        return [each for each in found if not math.isnan(float(each["value"][1]))]

    def picture(self, ask: Ask, shown: Shown, chosen: dict[str, str]) -> list[dict[str, Any]]:
        """The series that Grafana draws of it."""
        expr = concrete(ask.query.expr, {**chosen, **shown.variables(ask.panel.width)})
        return shown.ask(self.prometheus, sooner(expr), ask.panel.width)

    def look(self, wanted: list[Ask]) -> list[tuple[Ask, Shown | None]]:
        """Asks what was not seen yet, as Grafana does; returns what is still missing."""
        every: list[tuple[Ask, Shown | None]] = [(ask, shown) for ask in wanted for shown in ask.pictures or (None,)]
        for ask, shown in [each for each in every if each not in self.seen]:
            for gpu in _GPUS.get(ask.board.name, (".*",)):
                chosen = self.chosen(ask.agent, gpu=gpu)
                found = self.now(ask.query.expr, chosen) if shown is None else self.picture(ask, shown, chosen)
                if found:
                    self.seen[ask, shown] = found
                    break
        return [each for each in every if each not in self.seen]
