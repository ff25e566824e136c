"""What panels show is what they mean: their queries, evaluated by promtool, against an oracle that knows no PromQL.

`meanings.py` and its neighbours say what each query means; the cases of `test_panels_tell_truth.py` hold what is more than
a level, a pace or a percentile. Together they are all of them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from dashboards.boards import BOARDS
from dashboards.table import Board, Panel
from tests.fakes.board_files import CHOSEN, concrete
from tests.integration.dashboards.joining_cases import JOINING_CASES
from tests.integration.dashboards.meanings import OF_ENGINES
from tests.integration.dashboards.meanings_of_hosts import OF_HOSTS
from tests.integration.dashboards.meanings_of_objectives import OF_OBJECTIVES
from tests.integration.dashboards.oracle import RANGE_S, Meaning, written, written_labels
from tests.integration.dashboards.truth_cases import CASES

MEANINGS: Final = {**OF_ENGINES, **OF_HOSTS, **OF_OBJECTIVES}
_NAME: Final = re.compile(r"\b(aie_\w+)(?=\{)")
_AT: Final = {**CHOSEN, "__rate_interval": "5m", "__range": f"{RANGE_S:g}s", "__range_s": f"{RANGE_S:g}"}


def held(board: Board) -> Iterator[tuple[Panel, Sequence[Meaning]]]:
    """The panels of which a meaning is known."""
    meanings = MEANINGS[board.name]
    for row in board.rows:
        for panel in row.panels:
            meaning = meanings.get(panel.title) or meanings.get(f"{row.title}: {panel.title}")
            if meaning is not None:
                yield panel, meaning


def promtool_test(board: Board) -> dict[str, Any]:
    """A test of promtool's: the history of all metrics that those panels look at, and what each query is to say."""
    panels = list(held(board))
    names = {name for panel, _ in panels for query in panel.queries for name in _NAME.findall(query.expr)}
    series = [{"series": each, "values": values} for name in sorted(names) for each, values in written(name).items()]
    asked = [
        {
            "expr": f"round({concrete(query.expr, _AT)}, 1e-6)",
            "eval_time": "30m",
            "exp_samples": [
                {"labels": f"{{{written_labels(labels)}}}", "value": round(value, 6)} for labels, value in meaning().items()
            ],
        }
        for panel, meanings in panels
        for query, meaning in zip(panel.queries, meanings, strict=True)
    ]
    return {"evaluation_interval": "1m", "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_panels_show_what_they_mean(board: Board, promtool: str, tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    path.write_text(json.dumps(promtool_test(board)))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_is_held() -> None:
    held_here = {id(panel) for board in BOARDS for panel, _ in held(board)}
    in_cases = {(case.board, case.panel, case.query) for case in (*CASES, *JOINING_CASES)}
    missing = [
        (board.name, panel.title, number)
        for board in BOARDS
        for panel in board.panels
        for number, _ in enumerate(panel.queries)
        if id(panel) not in held_here and (board.name, panel.title, number) not in in_cases
    ]
    assert missing == [("slo", "Time with a live replica", 0)], "which test_objectives_tell_truth holds"
    titles = {
        board.name: {each for row in board.rows for panel in row.panels for each in (panel.title, f"{row.title}: {panel.title}")}
        for board in BOARDS
    }
    assert all(title in titles[name] for name, meanings in MEANINGS.items() for title in meanings), "a meaning of no panel"
