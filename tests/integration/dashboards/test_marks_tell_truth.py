"""The marks on all pictures: what is a restart of an engine, and when, evaluated by promtool on small histories."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.fakes.board_files import JSON_FILES, board, concrete


class History(NamedTuple):
    """What Prometheus has of an engine, two samples a minute, and the minutes at which pictures bear a mark."""

    name: str
    marks: tuple[int, ...]
    process: str = ""
    page: str = ""
    page_of_another_model: str = ""


HISTORIES: Final = (
    History("only its page is known", (10, 11), page="1000x19 1600x100"),
    History("any kind, by its process", (10, 11), process="1000x19 1600x100"),
    History("back after five minutes", (15, 16), process="1000x19 _x10 1900x90"),
    History("on another host, and loads its model for ten minutes", (20, 21), page="1000x19 _x20 1600x80"),
    History("came back with another model", (15, 16), page="1000x19 stale", page_of_another_model="_x30 1900x90"),
    History("by both: one restart, one mark", (10, 11), process="1000x19 1600x100", page="1001x19 _x12 1601x90"),
    History("what began it stayed", (30, 31), process="1000x120", page="1001x59 2800x60"),
    History("two restarts", (10, 11, 30, 31), process="1000x19 1600x39 2800x60"),
    History("none", (), process="1000x120", page="1001x120"),
    History("never seen before", (), process="_x30 1900x90", page="_x35 1901x80"),
    History("gone", (), process="1000x60 stale", page="1001x60 stale"),
    History("two that answer in turn, since minute 5", (5, 6), page=f"1000x9 {'1003 1000 1000 1003 ' * 30}"),
    History("two that answered in turn", (5, 6), page=f"1000x9 {'1003 1000 1000 1003 ' * 2} 1000x100"),
    History("a worker that is older than what is left", (10, 11), process="1000x19 1100x19 1050x80"),
    History("scrapes failed", (), page="1000x19 _x4 1000x90"),
)
_LAST_MIN: Final = 50


def _series(history: History) -> Iterator[dict[str, str]]:
    of = f'job="aie", instance="h", engine="{history.name}"'
    for name, values in (
        (f"aie_process_start_time_seconds{{{of}}}", history.process),
        (f'aie_engine_start_time_seconds{{{of}, model="m"}}', history.page),
        (f'aie_engine_start_time_seconds{{{of}, model="n"}}', history.page_of_another_model),
    ):
        if values:
            yield {"series": name, "values": values.strip()}


def _query() -> str:
    found = (mark["expr"] for path in JSON_FILES for mark in board(path)["annotations"]["list"] if mark["name"] == "Restarts")
    (expr,) = set(found)  # the same on every board
    return concrete(expr)


def _asked(at_min: int) -> dict[str, Any]:
    marked = [each.name for each in HISTORIES if at_min in each.marks]
    samples = [{"labels": f'{{job="aie", instance="h", engine="{name}"}}', "value": 1} for name in marked]
    return {"expr": f"({_query()}) > bool 0", "eval_time": f"{at_min}m", "exp_samples": samples}


def test_a_restart_is_marked_when_it_was_and_nothing_else_is(promtool: str, tmp_path: Path) -> None:
    series = [each for history in HISTORIES for each in _series(history)]
    asked = [_asked(at_min) for at_min in range(_LAST_MIN)]
    path = tmp_path / "marks.json"
    path.write_text(json.dumps({"tests": [{"interval": "30s", "input_series": series, "promql_expr_test": asked}]}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
