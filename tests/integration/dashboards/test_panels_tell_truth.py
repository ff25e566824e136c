"""What panels say, evaluated by promtool on series whose answer is known: each row is a case in which a query could lie.

That panels have data at all is `test_panels_have_data`'s; here small histories decide what the number must be.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from dashboards.boards import BOARDS
from dashboards.variables import VARIABLES
from tests.fakes.board_files import CHOSEN, concrete
from tests.integration.dashboards.joining_cases import JOINING_CASES
from tests.integration.dashboards.truth_cases import CASES, Case

_AT: Final = {**CHOSEN, "__rate_interval": "5m"}
"""A rate over five of the samples, which come once a minute."""


def _expression(case: Case) -> str:
    board = next(board for board in BOARDS if board.name == case.board)
    panels = (panel for row in board.rows if case.row in ("", row.title) for panel in row.panels)
    panel = next(panel for panel in panels if panel.title == case.panel and case.kind in (None, panel.kind))
    expr = concrete(panel.queries[case.query].expr, {**_AT, "instance": case.instance})
    return f"round({expr}, 0.001)"


def _samples(case: Case) -> list[dict[str, Any]]:
    return [{"labels": f'{{job="aie"{", " if labels else ""}{labels}}}', "value": value} for labels, value in case.expected.items()]


@pytest.mark.parametrize("case", [*CASES, *JOINING_CASES], ids=lambda case: f"{case.board}: {case.name}")
def test_panels_tell_the_truth(case: Case, promtool: str, tmp_path: Path) -> None:
    _hold(promtool, case.series, {"expr": _expression(case), "eval_time": case.at, "exp_samples": _samples(case)}, tmp_path)


@pytest.mark.parametrize("hours", [3, 40])
def test_a_job_can_be_chosen_when_its_agents_are_long_dead(hours: int, promtool: str, tmp_path: Path) -> None:
    """Before the hour that is shown; and none that Prometheus asks no more, or that never had anything of ours."""
    end = 60 * hours + 10
    series = {
        **{f'up{{job="{job}", instance="h"}}': f"0x{end}" for job in ("dead", "others")},
        **{f'aie_agent_info{{job="{job}", instance="h"}}': "1x19 stale" for job in ("dead", "removed")},
        'aie_agent_info{job="lives", instance="h"}': f"1x{end}",
        'aie_engine_requests_running{job="an engine", instance="h", engine="e"}': f"_x{end - 40} 0x9 stale",
    }
    expr = concrete(VARIABLES["job"].query, _AT).removeprefix("query_result(").removesuffix(")")
    told = [{"labels": f'{{job="{job}"}}', "value": 1} for job in ("an engine", "dead", "lives")]
    _hold(promtool, series, {"expr": expr, "eval_time": f"{end}m", "exp_samples": told}, tmp_path)


def _hold(promtool: str, series: Mapping[str, str], asked: dict[str, Any], tmp_path: Path) -> None:
    """One sample a minute, and what is said of them."""
    written = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": written, "promql_expr_test": [asked]}
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
