"""What panels say, evaluated by promtool on series whose answer is known: each row is a case in which a query could lie.

That panels have data at all is `test_panels_have_data`'s; here small histories decide what the number must be.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from dashboards.boards import BOARDS
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
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [{"expr": _expression(case), "eval_time": case.at, "exp_samples": _samples(case)}],
    }
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
