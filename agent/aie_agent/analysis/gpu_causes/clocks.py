"""Clocks that are held down: by heat, by the supply, by the hardware, by the power limit.

The driver says why (`aie_gpu_clock_event_active`); a reason that comes and goes within seconds is one (`outputs/gpu_since.py`), and
counts once it holds for `HELD_S`. What people have set, and what is a board's way of doing its work, is not wrong: a GPU at its
power limit is at work, so that is told, as information, only where it costs much of the clock for longer.

A GPU near its heat limit (`sw_thermal`) gives up its clock step by step, a percent of it on any warm day. So that is information,
and as such explains nothing that is graver, unless the clock of a busy GPU is below `WARM_SHARE` of its highest; below
`CAPPED_SHARE` where its power limit holds it as well, which alone may cost what is between: at half of the looks, since that comes
and goes with each batch (`_is_capped`). Where the clock is not known, neither is what it costs.

False alarms: none by hardware or brake, since the driver says them; they may cost nothing where little is asked of the GPU. None
by heat that costs less than that, but for a minute where heat began before the power limit held the clock, or for four where that
comes and goes, and now and then where it holds it at about half of the looks (of looks by chance, at 0.55 a third of the time, at
0.6 a twentieth, from 0.7 on none); more may be lost on work that does not need the clock (decoding of few requests). The power cap
is told of a GPU whose work (prefill, large batches) draws more than its board allows by so much that the clock falls below
`CAPPED_SHARE` of the highest: that is what the board is made for, and why it is information.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import subject, title
from aie_agent.analysis.sustained import mean_of
from aie_telemetry.api import Evidence, Finding, Gpu
from aie_telemetry.clock_events import (
    CAP,
    CAPPED_SHARE,
    CLOCK_EVENTS,
    FINDINGS,
    WARM,
    WARM_SHARE,
    ClockEvent,
    heat_severity,
    is_held_below,
)

EVENT: Final = "aie_gpu_clock_event_active"

HELD_S: Final = 5.0
CAPPED_FOR_S: Final = 10.0
MEAN_S: Final = 10.0
"""The clock by which heat is judged is the mean of so long: it goes up and down from second to second."""
CAP_SHARE: Final = 0.5
CAP_S: Final = 240.0
"""At so many of the looks the power limit must hold the clock as well: of the last `MEAN_S`, or of all since heat does, for so long
at most (the store remembers little more). Within seconds it may be fewer by chance; within minutes, because it has just begun."""

_WARM_LIMITS: Final = (f"limit {WARM_SHARE:.0%}", f"limit {WARM_SHARE:.0%}, {CAPPED_SHARE:.0%} while its power limit holds it")
"""Without and with a power cap. A finding keeps its severity for a while: what it was held against may be the first then."""

_CLOCK: Final = "aie_gpu_clock_hertz"
_NAMED: Final = frozenset({"hw_thermal", "hw_power_brake"})
"""The hardware's reasons come in pairs: these explain the general one, hw_slowdown."""


def gpu_clocks(view: View, now_s: float) -> list[Finding]:
    """The findings `gpu_thermal`, `gpu_power_brake` and `gpu_slowed`, at most one of each a GPU: that of its worst reason."""
    found: dict[tuple[str, str], Finding] = {}
    for gpu in view.gpus():
        for reason, cause in FINDINGS.items():
            since_s = _held_since(gpu, reason, HELD_S, now_s)
            word = CLOCK_EVENTS[reason]
            if since_s is None or word.severity is None or (reason == "hw_slowdown" and _NAMED & set(gpu.clock_events)):
                continue
            told, limit = gpu, ""
            if reason == WARM:
                is_capped, clock = _is_capped(view, gpu, since_s, now_s), _mean_clock(view, gpu, now_s)
                told = msgspec.structs.replace(gpu, sm_clock_hertz=clock)
                severity = heat_severity(clock, gpu.sm_clock_max_hertz, gpu.utilization_ratio, is_capped=is_capped)
                word, limit = word._replace(severity=severity), _WARM_LIMITS[is_capped]
            key = cause, subject(gpu)
            found.setdefault(key, _finding(told, cause, reason, word, since_s, now_s, limit))
    return list(found.values())


def _is_capped(view: View, gpu: Gpu, since_s: float, now_s: float) -> bool:
    """Whether its power limit holds its clock as well; as it is now where no more is known."""
    looks = view.store.scalars(EVENT, gpu=str(gpu.index), reason=CAP)
    shares = [mean_of(looks, start_s, now_s, least=2) for start_s in (now_s - MEAN_S, max(since_s, now_s - CAP_S))]
    known = [share for share in shares if share is not None]
    return max(known) >= CAP_SHARE if known else CAP in gpu.clock_events


def _mean_clock(view: View, gpu: Gpu, now_s: float) -> float | None:
    """The SM clock of the last seconds; as it is now where no more is known."""
    known = view.store.scalars(_CLOCK, gpu=str(gpu.index), clock="sm")
    mean = mean_of(known, now_s - MEAN_S, now_s, least=2)
    return gpu.sm_clock_hertz if mean is None else mean


def gpu_power_cap(view: View, now_s: float) -> list[Finding]:
    """The finding `gpu_power_cap`: for `CAPPED_FOR_S` the power limit holds the clock of a busy GPU below `CAPPED_SHARE` of its
    highest."""
    found = []
    for gpu in view.gpus():
        since_s = _held_since(gpu, CAP, CAPPED_FOR_S, now_s)
        busy = gpu.utilization_ratio
        if since_s is None or busy is None:
            continue
        if is_held_below(CAPPED_SHARE, gpu.sm_clock_hertz, gpu.sm_clock_max_hertz, busy):
            word = CLOCK_EVENTS[CAP]._replace(severity="info", words="its power limit holds its clocks far down")
            found.append(_finding(gpu, FINDINGS[CAP], CAP, word, since_s, now_s, f"limit {CAPPED_SHARE:.0%}"))
    return found


def _held_since(gpu: Gpu, reason: str, for_s: float, now_s: float) -> float | None:
    since_s = gpu.clock_events_since_s.get(reason) if gpu.up and reason in gpu.clock_events else None
    return since_s if since_s is not None and now_s - since_s >= for_s else None


def _finding(gpu: Gpu, cause: str, reason: str, word: ClockEvent, since_s: float, now_s: float, limit: str = "") -> Finding:
    """`limit` is what its clock was held against, as evidence says it; empty where the reason alone is enough."""
    limit_s = CAPPED_FOR_S if cause == "gpu_power_cap" else HELD_S
    return Finding(
        cause=cause,
        subject=subject(gpu),
        severity=word.severity or "info",
        since_s=since_s,
        summary=f"{title(gpu)}: {word.words}",
        evidence=(
            Evidence(
                text=f"the driver gives {reason} as the reason for {now_s - since_s:.0f} s (limit {limit_s:g} s)", metric=EVENT
            ),
            *_numbers(gpu, limit),
        ),
        advice=word.do,
        runbook=f"docs/runbooks/{cause}.md",
    )


def _numbers(gpu: Gpu, limit: str) -> Iterator[Evidence]:
    if gpu.sm_clock_hertz is not None and gpu.sm_clock_max_hertz:
        part = f", {gpu.sm_clock_hertz / gpu.sm_clock_max_hertz:.0%} ({limit})" if limit else ""
        text = f"its SM clock is {gpu.sm_clock_hertz / 1e6:.0f} MHz of {gpu.sm_clock_max_hertz / 1e6:.0f} MHz{part}"
        yield Evidence(text=text, metric=_CLOCK)
    if gpu.temperature_celsius is not None:
        limit = "" if gpu.slowdown_celsius is None else f" (it slows down at {gpu.slowdown_celsius:.0f} °C)"
        yield Evidence(text=f"it is at {gpu.temperature_celsius:.0f} °C{limit}", metric="aie_gpu_temperature_celsius")
    if gpu.power_watts is not None and gpu.power_limit_watts is not None:
        text = f"it draws {gpu.power_watts:.0f} W (limit {gpu.power_limit_watts:.0f} W)"
        yield Evidence(text=text, metric="aie_gpu_power_watts")
