"""docs/dashboards.md: every board and panel with the question that it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboards.table import Board, Panel

_HEAD: Final = """# Dashboards
Generated from `dashboards/boards/` by `python dashboards/build.py`; a test compares.

```
aie-agent dashboards --export DIR     # the boards as JSON, and a file for Grafana's provisioning
```

The boards ask for metrics as they are scraped, and need no recording rules. They show something with any engine that an agent
reads; what needs hooks, eBPF or a GPU says so where it is empty. The last column is the situation in which a test has seen each
panel's queries return data, from a real Prometheus: `plain` is an agent that reads an engine's page, and nothing else.
"""


def markdown(boards: Sequence[Board]) -> str:
    """The document."""
    parts = [_HEAD]
    for board in boards:
        chosen = ", ".join(f"`{name.removeprefix('one_')}`" for name in board.variables)
        parts.append(f"\n## {board.title}\n\n{board.question} Chosen by {chosen}.\n")
        parts.append("\n| panel | question | seen |\n| --- | --- | --- |\n")
        parts.extend(_row(panel) for panel in board.panels)
    return "".join(parts)


def _row(panel: Panel) -> str:
    seen = f"{panel.situation}: {panel.why}" if panel.why else str(panel.situation)
    return f"| {panel.title} | {panel.question} | {seen if panel.queries else '-'} |\n"
