"""The variables that boards share. Each depends on those before it; a board has only those that its queries use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from dashboards.promql import ENGINE, INSTANCE, JOB, had_agents

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Of every panel and variable: which Prometheus is asked is chosen at the top of the board."""

TYPES: Final = {"label_values": 1, "query_result": 3}
"""The type of a query `label_values(series, label)` or `query_result(expression)`, as Grafana's data source numbers it. Without
one, its editor opens empty."""
_REF_ID: Final = "PrometheusVariableQueryEditor-VariableQuery"
"""As that editor has it."""

_KNOWN: Final = '__name__=~"aie_agent_info|aie_engine_info|aie_engine_requests_running"'
"""Of an agent, or of an engine that is scraped directly where no agent is."""
_KNOWN_ENGINES: Final = '__name__=~"aie_engine_up|aie_engine_info|aie_engine_requests_running"'
"""Engines that were seen as a process, and those of which only a page is known."""
_TOLD: Final = f"group by (job) (last_over_time({{{_KNOWN}}}[$__range]))"
_SILENT: Final = f"group by (job) (up and on (job) {had_agents('aie_agent_info')})"
"""A job whose agents died before the time shown, and that Prometheus still asks: left out of All, nobody would be told of it."""


@dataclass(frozen=True, slots=True)
class Variable:
    """`query` is label_values of Grafana's data source, or query_result, of whose lines `regex` takes the values. `all_value` is
    the regular expression of All: without one Grafana lists each value, which is right where other jobs have the same labels."""

    name: str
    label: str
    query: str
    all_value: str | None
    multi: bool = True
    regex: str = ""


_ROWS: Final = (
    Variable("job", "Job", f"query_result({_TOLD} or {_SILENT})", None, regex='/job="([^"]*)"/'),
    Variable("instance", "Instance", f"label_values({{{_KNOWN}, {JOB}}}, instance)", ".+"),
    Variable("engine", "Engine", f"label_values({{{_KNOWN_ENGINES}, {INSTANCE}}}, engine)", ".*"),
    Variable("model", "Model", f"label_values({{{_KNOWN_ENGINES}, {ENGINE}}}, model)", ".*"),
    Variable("gpu", "GPU", f"label_values(aie_gpu_up{{{INSTANCE}}}, gpu)", ".*"),
    Variable("one_gpu", "GPU", f"label_values(aie_gpu_up{{{INSTANCE}}}, gpu)", None, multi=False),
)
VARIABLES: Final = {row.name: row for row in _ROWS}


def datasource() -> builders.DatasourceVariable:
    """Which Prometheus is asked."""
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def query_variable(row: Variable) -> builders.QueryVariable:
    """A variable whose values Prometheus tells; `one_gpu` is called `gpu` too, so that links lead from one board to the other."""
    made = (
        builders.QueryVariable(row.name.removeprefix("one_"))
        .label(row.label)
        .datasource(DATASOURCE)
        .query({"qryType": TYPES[row.query.partition("(")[0]], "query": row.query, "refId": _REF_ID})
        .definition(row.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(row.multi)
        .include_all(row.multi)
    )
    if row.all_value is not None:
        made = made.all_value(row.all_value)
    if row.regex:
        made = made.regex(row.regex)
    if row.multi:
        made = made.current(models.VariableOption(selected=True, text="All", value="$__all"))
    return made
