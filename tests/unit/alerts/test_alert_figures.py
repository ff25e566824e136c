"""How annotations write figures: a rate below one is not rounded to nothing, and a count has no fractions.

`humanize` writes half a request a second as "500m", and `increase` gives 3.1 restarts.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import promql_parser as promql
import pytest

from tests.fakes.alert_files import ALERT_RULES

OF_QUERY: Final = re.compile(
    r'(?:with|range) printf "((?:[^"\\]|\\.)+)"[^|}]*\| query(?: \| sortByLabel "\w+")? }}'
    r"(?:(?!\{\{ (?:with|range)).)*?\| value(?: \| ([^}]+?))? }}"
)
OF_RULE: Final = re.compile(r"\{\{ \$value(?: \| ([^}]+?))? }}")
ALLOWED: Final = {"rate": {'printf "%.1f"', 'printf "%.2f"'}, "increase": {'printf "%.0f"'}}
"""How what a function gives may be written."""


class Figure(NamedTuple):
    """One figure of an annotation: what it is of, and how it is written."""

    alert: str
    query: str
    written: str


def figures() -> list[Figure]:
    """All of all annotations."""
    found = []
    for rule in ALERT_RULES:
        for text in rule.table["annotations"].values():
            found += [Figure(rule.name, rule.table["expr"], written) for written in OF_RULE.findall(text)]
            for query, written in OF_QUERY.findall(text):
                found.append(Figure(rule.name, query.replace('\\"', '"').replace("%q", '"x"'), written))
    return found


def function_of(query: str) -> str | None:
    """Whose value a query gives, whatever is summed, compared or excluded: rate, increase; None of what is neither, as a ratio."""
    node: Any = promql.parse(query)
    while not isinstance(node, promql.Call):
        if isinstance(node, promql.BinaryExpr) and str(node.op) in ("/", "*", "-", "+"):
            return None
        inner = getattr(node, "lhs", None) or getattr(node, "expr", None)
        if inner is None or isinstance(node, promql.VectorSelector):
            return None
        node = inner
    name: str = node.func.name
    return name


@pytest.mark.parametrize(
    ("query", "function"),
    [
        ("sum by (job) (rate(aie_agent_probe_lost_total[5m])) > 1", "rate"),
        ("(increase(aie_gpu_xid_errors_total[10m]) > 0) or aie_gpu_up", "increase"),
        ("sum(rate(aie_engine_prefix_cache_hits_total[5m])) / sum(rate(aie_engine_prefix_cache_queries_total[5m]))", None),
        ("aie_agent_series > 0.9", None),
    ],
)
def test_whose_value_it_is(query: str, function: str | None) -> None:
    assert function_of(query) == function


def test_every_figure_is_found() -> None:
    texts = [text for rule in ALERT_RULES for text in rule.table["annotations"].values()]
    assert len(figures()) == sum(len(re.findall(r"\{\{ \$value\b|\| value\b", text)) for text in texts)
    assert {function_of(figure.query) for figure in figures()} >= ALLOWED.keys()


def test_rates_and_counts_are_written_as_such() -> None:
    of_functions = [(figure, ALLOWED.get(function_of(figure.query) or "")) for figure in figures()]
    assert [figure for figure, allowed in of_functions if allowed is not None and figure.written not in allowed] == []
