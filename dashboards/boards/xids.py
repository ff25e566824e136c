"""XIDs in the time shown: which, when last, and how often.

Numbers that are not common have no series before their first error, and the increase of a series that begins at 1 is 0. So errors
are told by the moment in which each was last seen; and what a counter began with counts, where nothing of it is known from before.
"""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.table import NOTABLE, Column, Panel, Query, Situation, table

_G: Final = "instance, gpu"
_X: Final = f"{_G}, xid"
_COUNT: Final = p.of("aie_gpu_xid_errors_total", p.GPU)
_LAST: Final = p.of("aie_gpu_xid_last_timestamp_seconds", p.GPU)

AGO: Final = f"time() - {p.by(_X, f'max_over_time({_LAST}[$__range])', 'max')} < $__range_s"
"""Those that were seen, and how many seconds ago."""
_NEW: Final = f"time() - {p.by(_X, f'min_over_time({_LAST}[$__range])', 'min')} < $__range_s"
_BEGAN: Final = p.among(p.by(_X, f"min_over_time({_COUNT}[$__range])"), _X, _NEW)
_ROSE: Final = p.by(_X, p.increase("aie_gpu_xid_errors_total", p.GPU))
TIMES: Final = p.among(f"clamp_min(round(({_ROSE} or 0 * ({AGO})) + ({_BEGAN} or 0 * ({AGO}))), 1)", _X, AGO)
"""How often. Of what an agent found in the kernel's log from before its start only the moment is known: it is once."""


def total(labels: str) -> str:
    """How many there were; 0 of GPUs that had none."""
    return f"{p.by(labels, TIMES)} or 0 * {p.by(labels, p.of('aie_gpu_up', p.GPU), 'max')}"


_FAMILIES: Final = ("Application", "Memory", "Link", "Gpu", "Driver", "Report", "Unknown", "Unseen")
"""Of the alerts about XIDs: by what to do, and where none can be seen."""


def xid_table(question: str, *columns: Column, width: int) -> Panel:
    """A row for each number of each GPU."""
    return table(
        *("XIDs in the time shown", question),
        Query(TIMES),
        Query(AGO),
        columns=(
            Column("Value #A", "times", width=80, steps=NOTABLE),
            Column("xid", "xid", width=80),
            Column("Value #B", "seen ago", unit="s", width=110),
            *columns,
        ),
        sort="times",
        width=width,
        situation=Situation.FAULTS,
        empty="no XID",
        runbooks=tuple(f"AieGpuXid{family}" for family in _FAMILIES),
        trouble=True,
    )
