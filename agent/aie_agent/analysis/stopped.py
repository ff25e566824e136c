"""A process of an engine is stopped, by a signal or a debugger: early, before it counts as a hang.

No statistics: it holds while each look in the last `STOPPED_S` found the process stopped. A debugger that is attached for a second
is not reported. A profiler that stops its process for every sample is found at it by chance: with a fifth of the time stopped and
one look a second, four looks in a row are one false warning in some ten minutes of profiling; without a profiler there is none.
"""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.findings import View
from aie_agent.analysis.hung import advice, engine_hung, sentence
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "engine_stopped"
STOPPED_S: Final = 3.0
_STATES: Final = "Tt"


def engine_stopped(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `engine_stopped` at `now_s`, or None: also as soon as `engine_hung` holds, which says more."""
    stopped = [each for each in view.processes(engine) if each.state in _STATES and now_s - each.state_since_s >= STOPPED_S]
    if not stopped or view.state(engine) == "down" or engine_hung(view, engine, now_s) is not None:
        return None
    first = min(stopped, key=lambda each: each.state_since_s)
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=first.state_since_s,
        summary=f"process {first.tgid} of engine {engine} {sentence(first)}",
        evidence=tuple(
            Evidence(
                text=f"process {each.tgid} {sentence(each)} for {now_s - each.state_since_s:.0f} s (limit {STOPPED_S:g} s)",
                metric="aie_engine_up",
            )
            for each in stopped
        ),
        advice=advice(stopped),
    )
