"""What the board of objectives says of each objective over each of its windows, evaluated by promtool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from dashboards.boards.slo import SLO
from dashboards.objectives import OBJECTIVES, Objective
from dashboards.table import Panel
from tests.fakes.board_files import CHOSEN, concrete
from tests.integration.dashboards.objective_histories import (
    MINUTES,
    QUARTERS_OF_DAYS,
    Pace,
    Rows,
    histogram,
    outcomes,
    share_well,
    share_within,
)

_DAY_MIN: Final = 24 * 60
_BOUNDS: Final = {
    "ttft": {"first": "1", "second": "1.0", "third": "1"},
    "inter_token": {"first": "0.1", "second": "0.1", "third": "0.1"},
    "duration": {"first": "20.48", "second": "20", "third": "20.0"},
}
"""How pages write the bounds of each objective."""


class Asked(NamedTuple):
    """A query of a panel, which window it looks at, and what is made of the share that was well."""

    panel: str
    query: int
    window_min: int
    pace: Pace = MINUTES


KEPT: Final = Asked("Kept", 0, 60)
BURNS: Final = tuple(Asked("How fast the budget goes", number, window_min) for number, window_min in enumerate((5, 60, 360)))
_OF_REQUESTS: Final = [each for each in OBJECTIVES if not each.of_time]


def asked_of(objective: Objective) -> list[Asked]:
    """All that is asked of an objective of requests."""
    return [KEPT, *BURNS, Asked(objective.title, 0, 30 * _DAY_MIN, QUARTERS_OF_DAYS)]


def panel_of(objective: Objective, title: str) -> Panel:
    """The panel of an objective that is called so."""
    row = SLO.rows[0] if title == objective.title else SLO.rows[1 + OBJECTIVES.index(objective)]
    return next(panel for panel in row.panels if panel.title == title)


def said(objective: Objective, panel: str, share: float) -> float:
    """What a panel makes of the share that was well."""
    burn = (1 - share) / (1 - objective.target)
    return {"Kept": share, objective.title: 1 - burn}.get(panel, burn)


def _series(objective: Objective, pace: Pace) -> Iterator[tuple[str, str]]:
    if objective.bounds_s:
        return histogram(objective.metric, _BOUNDS[objective.name], pace)
    return outcomes(objective.metric, pace)


def _shares(objective: Objective, asked: Asked) -> Rows:
    return (share_within if objective.bounds_s else share_well)(asked.pace, asked.window_min)


def promtool_test(objective: Objective, pace: Pace, queries: Mapping[Asked, str]) -> dict[str, Any]:
    """A test of promtool's: the history of a pace, the queries, and what each is to say."""
    asked = [
        {
            "expr": f"round({concrete(expr, CHOSEN)}, 1e-6)",
            "eval_time": f"{pace.at_s}s",
            "exp_samples": [
                {
                    "labels": f'{{job="aie", engine="{engine}", model="{model}"}}',
                    "value": round(said(objective, each.panel, share), 6),
                }
                for (engine, model), share in _shares(objective, each).items()
            ],
        }
        for each, expr in queries.items()
    ]
    series = [{"series": name, "values": values} for name, values in _series(objective, pace) if not set(values) <= {"_", " "}]
    return {"interval": f"{pace.step_min}m", "input_series": series, "promql_expr_test": asked}


def test_all_of_the_board_is_asked() -> None:
    objectives = {objective.title: objective for objective in OBJECTIVES}
    assert [panel.title for panel in SLO.rows[0].panels] == list(objectives)
    assert [row.title.partition(": ")[0] for row in SLO.rows[1:]] == list(objectives)


@pytest.mark.parametrize("objective", _OF_REQUESTS, ids=lambda objective: objective.name)
def test_what_is_said_of_requests(objective: Objective, promtool: str, tmp_path: Path) -> None:
    asked = {each: panel_of(objective, each.panel).queries[each.query].expr for each in asked_of(objective)}
    tests = [
        promtool_test(objective, pace, {each: expr for each, expr in asked.items() if each.pace is pace})
        for pace in (MINUTES, QUARTERS_OF_DAYS)
    ]
    path = tmp_path / "objective.json"
    path.write_text(json.dumps({"tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
