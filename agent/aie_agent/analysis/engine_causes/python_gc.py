"""Python's garbage collector stops the engine: every thread stands still while it runs.

The rule, while requests run: collections took at least `SHARE` of the last `WINDOW_S` seconds; or `LONG_LEAST` of the last
`LONG_WINDOW_S` seconds took `LONG_S` or longer each. Times are taken at the lower bound of their bucket, so that they are never
overstated. It goes on while half of the share is reached over `LONG_WINDOW_S`, and half of that over `WINDOW_S`, or one of
them was long; and any request ran in the last `LONG_WINDOW_S` seconds. So what stays near a limit is one finding.

When it is wrong: never in what it says. An engine that collects that much in its normal work is reported for as long as it does.
Collections of the youngest generation, thousands a minute, take well below a millisecond each and stay far below the share. A
single collection is reported only where it alone takes that share. What a new process collected while it loaded is not: before its
page's histograms began anew, and before it told how many requests run, if that took longer than `MOST_APART_S` and was not
collecting for `STANDS_STILL` of it. Who collects for longer than that at a time tells nothing meanwhile, either, and is reported
when it does again. The false-alarm rate is 0. It needs the engine's own page or hooks, or the probe set `gc` (off by default).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from aie_agent.analysis.engine_causes.readings import RUNNING, Observed, began_anew_s, highest, observed, seconds, told_since_s
from aie_agent.analysis.findings import View
from aie_agent.analysis.sustained import ENDS_AT, ease, limit_of
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "python_gc"
PAUSES: Final = ("aie_engine_gc_pause_seconds", "aie_process_gc_seconds")

WINDOW_S: Final = 10.0
SHARE: Final = 0.05
LONG_WINDOW_S: Final = 60.0
LONG_S: Final = 0.25
LONG_LEAST: Final = 2
STANDS_STILL: Final = 0.5
"""Of a time in which nothing is told: a process that loads collects for a small part of it, one that is stopped for all of it."""
_PROBES_ARE_LATE_S: Final = 3.0

_ADVICE: Final = (
    "Call gc.freeze() after the model is loaded, so that what stays is not looked through again, and raise gc.set_threshold();"
    " collect when no request runs. See who makes so much garbage in cycles (`aie-agent stacks --engine {engine}`, as root), or who"
    " calls gc.collect()."
)


def python_gc(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `python_gc` at `now_s`, or None."""
    eased = ease(view, CAUSE, engine)
    if not highest(view, engine, RUNNING, now_s - (WINDOW_S if eased == 1.0 else LONG_WINDOW_S), now_s):
        return None
    found = [evidence for metric in PAUSES for evidence in _evidence(view, engine, metric, eased, now_s)]
    if not found:
        return None
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=now_s - WINDOW_S,
        summary=f"engine {engine}: Python's garbage collector stops it again and again",
        evidence=tuple(found),
        advice=_ADVICE.format(engine=engine),
    )


def _evidence(view: View, engine: str, metric: str, eased: float, now_s: float) -> list[Evidence]:
    if not view.store.histograms(metric, engine=engine):
        return []
    found, least_s, start_s = [], SHARE * WINDOW_S, now_s - LONG_WINDOW_S
    is_load = partial(_is_load, view, engine, metric, now_s)
    since_s = max(began_anew_s(view, engine, metric, start_s, now_s), told_since_s(view, engine, RUNNING, is_load, start_s, now_s))
    lately = observed(view, engine, metric, max(now_s - WINDOW_S, since_s), now_s)
    longer = observed(view, engine, metric, since_s, now_s)
    if lately is None or longer is None:
        return []
    if lately.total_at_least >= least_s:
        found.append(_stopped(lately, WINDOW_S, f"limit {seconds(least_s)}"))
    elif eased < 1.0 and _goes_on(lately, longer):
        found.append(_stopped(longer, LONG_WINDOW_S, limit_of(False, f"{seconds(least_s)} in {WINDOW_S:g} s")))
    count = longer.count_above(LONG_S)
    if count >= eased * LONG_LEAST:
        text = f"{count:.0f} collections of the last {LONG_WINDOW_S:g} s took {seconds(LONG_S)} or longer"
        found.append(f"{text} ({limit_of(count >= LONG_LEAST, f'{LONG_LEAST}')})")
    return [Evidence(text=text, metric=metric) for text in found]


def _is_load(view: View, engine: str, metric: str, now_s: float, begin_s: float, end_s: float) -> bool:
    """Whether a time in which nothing was told is one in which a process loaded, and not one in which its collector stopped it."""
    whole, after = (observed(view, engine, metric, at_s, now_s) for at_s in (begin_s, end_s + _PROBES_ARE_LATE_S))
    took_s = 0.0 if whole is None or after is None else whole.total - after.total
    return took_s < STANDS_STILL * (end_s - begin_s)


def _stopped(seen: Observed, window_s: float, limit: str) -> str:
    text = f"{seen.count:.0f} collections stopped it for at least {seconds(seen.total_at_least)} of the last {window_s:g} s"
    return f"{text} ({limit}), the longest for {seconds(seen.largest_at_least)} or more"


def _goes_on(lately: Observed, longer: Observed) -> bool:
    """Of what was found before: over the longer time half of its share is left, and lately half of that."""
    is_over = lately.total_at_least < ENDS_AT**2 * SHARE * WINDOW_S
    return not is_over and longer.total_at_least >= ENDS_AT * SHARE * LONG_WINDOW_S
