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
reads; what needs hooks, eBPF or a GPU says so where it is empty. Pictures bear marks: orange while something is found, blue
where an engine was started again, by its processes or, of one on another host, by its page. Behind the i of a panel stand the
runbooks of its causes and alerts; there is a panel for every alert but three (`tests/unit/dashboards/test_board_runbooks.py`).

Who died before the time shown is not forgotten: a job whose agents told nothing in it can be chosen, and counts among those that
do not answer, for thirty days, where Prometheus still scrapes it; for a day where they lived for less than a quarter of an hour.
While a host is silent for more than two minutes, the engines that it had in the hour before are down; one that was removed or
renamed earlier is not. When an engine was there is looked up in quarters of an hour: of one that went about an hour before, it may
be either. An engine whose target has been gone for five minutes, as of a pod that was evicted, is down for the rest of an hour, as
`AieSloAvailability` has it; after that nothing is told of it. This needs a scrape each minute or more often.

Boards ask anew each half minute, and that of objectives each five minutes: shares of hours and of days hardly move, and what they
look at is much, most of all for the time with a live replica: over thirty days 8640 looks at `up` of every target that Prometheus
has, of whatever job. At its default limit of 50 million samples a query (`--query.max-samples`) that is some 5000 targets.

The last column is the situation in which a test has seen each query of the panel return data, from a real Prometheus:

"""

_REAL: Final = """
Real are the programs in all of these but `others`: aie-engine, its clients and the agents, the hooks, the kernel's probes and
control groups, Prometheus, and the collector of spans. The faults inside the engine and on its GPUs are those of the fault lab
(`docs/faultlab.md`). Simulated are the GPUs and CUDA: stand-ins for NVIDIA's libraries, loaded by the real bindings, and one for
`torch.cuda`, whose numbers the real hook sends. Recorded or rendered are the pages of `others`, and in `faults` one page of SGLang
in which a value was replaced by NaN; what they count is made to rise as they are served. Written by hand are only the two lines in
`faults` that no StatsD server could take.
"""


def markdown(boards: Sequence[Board]) -> str:
    """The document."""
    parts = [_HEAD, *(f"* `{situation}`: {meaning}\n" for situation, meaning in MEANING.items()), _REAL]
    for board in boards:
        chosen = ", ".join(f"`{name.removeprefix('one_')}`" for name in board.variables)
        parts.append(f"\n## {board.title}\n\n{board.question} Chosen by {chosen}.\n")
        parts.append("\n| row | panel | question | seen |\n| --- | --- | --- | --- |\n")
        parts.extend(_row(row, panel) for row in board.rows for panel in row.panels)
    return "".join(parts)


def _row(row: Row, panel: Panel) -> str:
    seen = ", ".join(f"`{situation}`" for situation in panel.situations) + (f": {panel.why}" if panel.why else "")
    return f"| {row.title or '(top)'} | {panel.title} | {panel.question} | {seen if panel.queries else '-'} |\n"
