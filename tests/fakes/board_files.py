"""The committed boards as a Grafana without a screen reads them: their panels, and their queries with the variables chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aie_dashboards

JSON_FILES: Final = tuple(sorted((Path(aie_dashboards.__file__).parent / aie_dashboards.BOARDS).glob("*.json")))
CHOSEN: Final[Mapping[str, str]] = {
    "job": "aie",
    "instance": ".+",
    "engine": ".*",
    "model": ".*",
    "gpu": ".*",
    "__rate_interval": "1m",
    "__range": "1h",
    "__range_s": "3600",
}
"""What stands where a variable is: All, and a pace of fifteen seconds."""


class Asked(NamedTuple):
    """One query of one panel, as it stands in the file."""

    board: str
    panel: str
    ref_id: str
    expr: str

    def __str__(self) -> str:
        return f"{self.board}: {self.panel}: {self.ref_id}"


def board(path: Path) -> dict[str, Any]:
    """A board."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def panels(board_: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Its panels, those in folded rows too; not the rows."""
    for panel in board_["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or ()
        else:
            yield panel


def queries() -> list[Asked]:
    """All queries of all panels."""
    return [
        Asked(found["uid"], panel["title"], target["refId"], target["expr"])
        for found in map(board, JSON_FILES)
        for panel in panels(found)
        for target in panel.get("targets", ())
    ]


def concrete(expr: str, chosen: Mapping[str, str] = CHOSEN) -> str:
    """A query as Grafana sends it. Longer names first: `$__range` is the beginning of no other, `$job` may be."""
    for name in sorted(chosen, key=len, reverse=True):
        expr = expr.replace(f"${name}", chosen[name])
    return expr
