"""The rows that boards are tables of: a panel is a question, the queries that answer it, and how the answer is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """How a panel draws: by the name of Grafana's plugin."""

    LINES = "timeseries"
    STAT = "stat"
    TABLE = "table"
    BARS = "bargauge"
    TIMELINE = "state-timeline"
    HEATMAP = "heatmap"
    TEXT = "text"


class Situation(StrEnum):
    """In which situation a panel has something to show. A test brings each about, and asks every query."""

    PLAIN = "plain"
    OTHERS = "others"
    HOOKS = "hooks"
    GPUS = "gpus"
    NO_GPU = "no-gpu"
    FAULTS = "faults"
    PROBES = "probes"
    CUDA = "cuda"
    LIMITS = "limits"
    NOT_HERE = "not-here"


MEANING: Final[dict[Situation, str]] = {
    Situation.PLAIN: "an agent that reads the page of aie-engine with SmolLM2: no hooks, no probes, no GPU",
    Situation.OTHERS: "the same of vLLM, SGLang, TGI and llama.cpp, by recorded and rendered pages",
    Situation.HOOKS: "engines with hooks: one whose model is damaged, and a collector takes its spans; one that keeps tensors",
    Situation.GPUS: "a healthy host with eight simulated H100s",
    Situation.NO_GPU: "as plain: what tells of hosts without GPUs",
    Situation.FAULTS: "GPUs that are lost, hot or slow, pages that are gone or wrong, senders that send nonsense",
    Situation.PROBES: "a host that allows eBPF, and threads that fight for locks",
    Situation.CUDA: "the same, with a program that calls CUDA (a stand-in of the driver)",
    Situation.LIMITS: "an engine whose control group limits its memory and CPU",
    Situation.NOT_HERE: "cannot be brought about in a test; the reason stands beside it",
}


class Query(NamedTuple):
    """PromQL with the board's variables, and how its series are called; `situation` where it is not that of its panel."""

    expr: str
    legend: str = ""
    situation: Situation | None = None


class Step(NamedTuple):
    """From `at` on a value has this colour; None is from the beginning."""

    at: float | None
    colour: str


class Word(NamedTuple):
    """What a value is called, and its colour."""

    text: str
    colour: str


class Column(NamedTuple):
    """A column of a table: the field, by its label or as `Value` (`Value #B` of the second query), what it is called, its unit, and
    where it leads."""

    field: str
    title: str
    unit: str = ""
    width: int = 0
    link: str = ""
    words: tuple[tuple[str, Word], ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `question` is what it answers, in a sentence; `empty` is what it means, and what to do, when it shows nothing.

    `runbooks` are causes and alerts whose pages help: the description names them, and series that say which agent they are of lead
    there. `trouble`: shows something only where something is wrong. `why` is the reason of a panel that no test can fill. `colours`
    are those of the queries.
    """

    title: str
    question: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    situation: Situation = Situation.PLAIN
    width: int = 8
    height: int = 8
    empty: str = ""
    runbooks: tuple[str, ...] = ()
    link: str = ""
    steps: tuple[Step, ...] = ()
    words: tuple[tuple[str, Word], ...] = ()
    columns: tuple[Column, ...] = ()
    sort: str = ""
    ascending: bool = False
    colours: tuple[str, ...] = ()
    stacked: bool = False
    signed: bool = False
    most: float | None = None
    trouble: bool = False
    why: str = ""
    text: str = ""

    def situation_of(self, query: Query) -> Situation:
        """In which this query has something to show."""
        return query.situation or self.situation

    @property
    def situations(self) -> tuple[Situation, ...]:
        """Those of all its queries, each once."""
        return tuple(dict.fromkeys(map(self.situation_of, self.queries))) or (self.situation,)


class Row(NamedTuple):
    """Panels under a heading. A folded one is opened by who needs it, and asks Prometheus for nothing before."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. `name` is its file, and `aie-` before it its uid; `variables` are names of `variables.VARIABLES`, in order.
    After each `refresh` it asks anew."""

    name: str
    title: str
    question: str
    variables: tuple[str, ...]
    rows: tuple[Row, ...]
    range: str = "now-1h"
    refresh: str = "30s"

    @property
    def uid(self) -> str:
        """By which other boards lead to it; it never changes."""
        return f"aie-{self.name}"

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All of them, folded ones too."""
        return tuple(panel for row in self.rows for panel in row.panels)


HEALTHY: Final = (Step(None, "green"), Step(1, "red"))
"""Of a number of things that are wrong: none is well."""
NOTABLE: Final = (Step(None, "green"), Step(1, "orange"))
"""The same, of what can wait."""


def lines(title: str, question: str, unit: str, *queries: Query, **more: object) -> Panel:
    """Values over time."""
    return Panel(title, question, unit, queries, **more)  # type: ignore[arg-type]  # what dataclasses take is checked as they are made


def stat(title: str, question: str, unit: str, *queries: Query, **more: object) -> Panel:
    """One number, large."""
    size: dict[str, object] = {"width": 4, "height": 4, **more}
    return Panel(title, question, unit, queries, kind=Kind.STAT, **size)  # type: ignore[arg-type]


def table(title: str, question: str, *queries: Query, columns: tuple[Column, ...], sort: str, **more: object) -> Panel:
    """Rows of what is now, the worst first: sorted by the column titled `sort`."""
    size: dict[str, object] = {"width": 24, "height": 8, **more}
    return Panel(title, question, "none", queries, kind=Kind.TABLE, columns=columns, sort=sort, **size)  # type: ignore[arg-type]


def bars(title: str, question: str, unit: str, query: Query, **more: object) -> Panel:
    """The largest of what is now, as bars."""
    return Panel(title, question, unit, (query,), kind=Kind.BARS, **{"width": 12, "height": 9, **more})  # type: ignore[arg-type]


def timeline(title: str, question: str, query: Query, words: tuple[tuple[str, Word], ...], **more: object) -> Panel:
    """States over time, each with its word."""
    size: dict[str, object] = {"width": 24, "height": 8, **more}
    return Panel(title, question, "none", (query,), kind=Kind.TIMELINE, words=words, **size)  # type: ignore[arg-type]


def nothing_here(*reasons: str) -> Row:
    """At the end of a board that needs more than an engine's page: why it may be empty, and what to do."""
    markdown = "\n".join(f"* {reason}" for reason in reasons)
    panel = Panel("Why something is not seen", "What does it take?", "none", (), Kind.TEXT, width=24, height=5, text=markdown)
    return Row("Nothing to see?", (panel,), folded=True)
