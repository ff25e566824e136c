"""docs/dashboards.md: every board and panel with the question that it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboards.table import MEANING, Board, Panel, Row

_HEAD: Final = """# Dashboards
Generated from `dashboards/boards/` by `python dashboards/build.py`; a test compares.

```
aie-agent dashboards --export DIR     # the boards as JSON, and a file for Grafana's provisioning
```

The boards ask for metrics as they are scraped, and need no recording rules. They show something with any engine that an agent
reads; what needs hooks, eBPF or a GPU says so where it is empty. The last column is the situation in which a test has seen each
query of the panel return data, from a real Prometheus:

"""


def markdown(boards: Sequence[Board]) -> str:
    """The document."""
    parts = [_HEAD, *(f"* `{situation}`: {meaning}\n" for situation, meaning in MEANING.items())]
    for board in boards:
        chosen = ", ".join(f"`{name.removeprefix('one_')}`" for name in board.variables)
        parts.append(f"\n## {board.title}\n\n{board.question} Chosen by {chosen}.\n")
        parts.append("\n| row | panel | question | seen |\n| --- | --- | --- | --- |\n")
        parts.extend(_row(row, panel) for row in board.rows for panel in row.panels)
    return "".join(parts)


def _row(row: Row, panel: Panel) -> str:
    seen = f"`{panel.situation}`: {panel.why}" if panel.why else f"`{panel.situation}`"
    return f"| {row.title or '(top)'} | {panel.title} | {panel.question} | {seen if panel.queries else '-'} |\n"
