"""What the board of objectives says of each objective over each of its windows, evaluated by promtool.

Thirty days of looks, each five minutes, are more samples than promtool takes: a Prometheus evaluates them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from dashboards.boards.slo import SLO
from dashboards.objectives import OBJECTIVES, Objective
from dashboards.table import Panel
from demo.monitoring import prometheus
from tests.fakes.board_files import CHOSEN, concrete
from tests.integration.dashboards import live_histories
from tests.integration.dashboards.live_histories import LOOK_S, MONTH_S, WORLDS
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
OF_TIME: Final = next(each for each in OBJECTIVES if each.of_time)
END_S: Final = 1_700_000_100
"""A moment at which Prometheus looks every five minutes."""
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
    _evaluate(promtool, tests, tmp_path)


def _evaluate(promtool: str, tests: list[dict[str, Any]], directory: Path) -> None:
    path = directory / "objective.json"
    path.write_text(json.dumps({"tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _samples(shares: Mapping[str, float], panel: str) -> list[dict[str, Any]]:
    return [
        {"labels": f'{{job="aie", engine="{engine}"}}', "value": round(said(OF_TIME, panel, share), 6)}
        for engine, share in shares.items()
    ]


def promtool_tests_of_time(queries: Mapping[Asked, str]) -> list[dict[str, Any]]:
    """Of the hours before the end; and of a host that has been silent for most of a month."""
    found = []
    of_hours = [(30, live_histories.series(each), live_histories.AT_S, partial(live_histories.share, each)) for each in WORLDS]
    of_month = (LOOK_S, dict(live_histories.month()), MONTH_S + LOOK_S // 2, lambda _window_min: {"lost": 0.0})
    for step_s, series, at_s, shares in (*of_hours, of_month):
        asked = [
            {
                "expr": f"round({concrete(expr, CHOSEN)}, 1e-6)",
                "eval_time": f"{at_s}s",
                "exp_samples": _samples(shares(each.window_min), each.panel),
            }
            for each, expr in queries.items()
        ]
        series_ = [{"series": name, "values": values} for name, values in series.items()]
        found.append({"interval": f"{step_s}s", "input_series": series_, "promql_expr_test": asked})
    return found


def test_what_is_said_of_time(promtool: str, tmp_path: Path) -> None:
    queries = {each: panel_of(OF_TIME, each.panel).queries[each.query].expr for each in (KEPT, *BURNS)}
    _evaluate(promtool, promtool_tests_of_time(queries), tmp_path)


def test_what_is_left_of_thirty_days_of_time(promtool: str, tmp_path: Path) -> None:
    (query,) = panel_of(OF_TIME, OF_TIME.title).queries
    text = tmp_path / "month.txt"
    text.write_text(live_histories.open_metrics(END_S))
    arguments = ("tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=40000h")  # one block: all of it is kept
    subprocess.run([promtool, *arguments, str(text), str(tmp_path / "data")], check=True, capture_output=True, timeout=300)
    with prometheus(tmp_path, []) as server:
        answer = server.get("/api/v1/query", query=concrete(query.expr), time=str(END_S + LOOK_S // 2))
    left = {row["metric"].pop("engine"): float(row["value"][1]) for row in answer["data"]["result"]}
    shares = live_histories.share_of_month()
    assert left == {engine: pytest.approx(said(OF_TIME, OF_TIME.title, share)) for engine, share in shares.items()}
