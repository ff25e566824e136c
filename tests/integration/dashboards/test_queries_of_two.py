"""Every query of every board in a world that has two of everything: it is evaluated, and no join finds two where it wants one.

Two of each label: jobs, hosts, engines, models, versions, GPUs, processes. A query that matches many to many is no query that says
something wrong, but an error in place of the panel; so it only shows where there are many. `test_panel_values` holds what they say.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.fakes.board_files import CHOSEN, JSON_FILES, board, concrete, queries
from tests.integration.dashboards.oracle import metric_of, spread, written_labels

_NAME: Final = re.compile(r"\b(aie_\w+|up)(?=\{)")
_AT: Final = {**CHOSEN, "job": "a|b", "__rate_interval": "2m"}
_DAYS: Final = re.compile(r"\[30d:5m\]")
"""Promtool takes no query of so many samples."""
_NOTHING: Final = re.compile(r"got:\s*\{\} 0E\+00")
_CHOSEN_BY: Final = {
    "le": ("0.1", "1", "20.48", "+Inf"),
    "severity": ("warning", "critical"),
}


def _series(name: str) -> Iterator[tuple[str, str]]:
    """Its series: of what is up or not every other is, and all else rises, so that comparisons find something."""
    names = () if name == "up" else metric_of(name).labels
    given = {
        label: values for label, values in _CHOSEN_BY.items() if label in names or (label == "le" and name.endswith("_bucket"))
    }
    for number, labels in enumerate(spread(names, job=("a", "b"), instance=("h", "i"), **given)):
        level = f"{number % 2}x5" if name == "up" or name.endswith("_up") else f"{number % 3}+60x5"
        yield f"{name}{{{written_labels(labels)}}}", level


def _asked() -> dict[str, str]:
    """Queries of panels and marks, by where they stand."""
    marks = {f"{path.stem}: {each['name']}": each["expr"] for path in JSON_FILES for each in board(path)["annotations"]["list"]}
    every = {**{str(each): each.expr for each in queries()}, **marks}
    return {where: _DAYS.sub("[1h:5m]", concrete(expr, _AT)) for where, expr in every.items()}


class Said(NamedTuple):
    """What promtool says of queries: the errors, one a line, and how many find nothing."""

    errors: list[str]
    empty: int


def _said(promtool: str, exprs: set[str], directory: Path) -> Said:
    names = sorted({name for expr in exprs for name in _NAME.findall(expr)})
    asked = [
        {"expr": f"count({expr}) > bool 0 or vector(0)", "eval_time": "4m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for expr in sorted(exprs)
    ]
    series = [{"series": each, "values": values} for name in names for each, values in _series(name)]
    test: dict[str, Any] = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    path = directory / "two.json"
    path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    found = Said([line for line in said.splitlines() if " err: " in line], len(_NOTHING.findall(said)))
    assert (done.returncode == 0) == (found == ([], 0)), said
    return found


def test_every_query_is_evaluated_where_there_are_two_of_everything(promtool: str, tmp_path: Path) -> None:
    exprs = set(_asked().values())
    said = _said(promtool, exprs, tmp_path)
    assert said.errors == []
    assert said.empty < len(exprs) / 20, "what finds nothing joins nothing"


@pytest.mark.parametrize(
    "expr",
    [
        "sum by (job, engine) (aie_engine_memory_physical_bytes{}) * on (job, engine) group_left (model)"
        " max by (job, engine, model) (aie_engine_info{})",
        "aie_engine_up{} - on (job, instance) aie_engine_up{}",
        "label_replace(aie_gpu_up{}, 'gpu', '', '', '')",
    ],
)
def test_a_join_of_many_with_many_is_found(expr: str, promtool: str, tmp_path: Path) -> None:
    (error,) = _said(promtool, {expr}, tmp_path).errors
    assert "duplicate series" in error or "many-to-many" in error or "same labelset" in error
