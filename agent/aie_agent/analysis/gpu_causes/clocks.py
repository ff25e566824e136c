"""Clocks that are held down: by heat, by the supply, by the hardware, by the power limit.

The driver says why (`aie_gpu_clock_event_active`); a reason that comes and goes within seconds is one (`outputs/gpu_since.py`), and
counts once it holds for `HELD_S`. What people have set, and what is a board's way of doing its work, is not wrong: a GPU at its
power limit is at work, so that is told, as information, only where it costs much of the clock for longer.

False alarms: none by heat or brake, since the driver says them; they may cost nothing where little is asked of the GPU. The power
cap is told of a GPU whose work (prefill, large batches) draws more than its board allows by so much that the clock falls below
`CAPPED_SHARE` of the highest: that is what the board is made for, and why it is information.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import subject, title
from aie_telemetry.api import Evidence, Finding, Gpu
from aie_telemetry.clock_events import CLOCK_EVENTS, FINDINGS, ClockEvent

EVENT: Final = "aie_gpu_clock_event_active"

HELD_S: Final = 5.0
CAPPED_FOR_S: Final = 10.0
CAPPED_SHARE: Final = 0.6
BUSY_RATIO: Final = 0.5

_CAP: Final = "sw_power_cap"
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
            key = cause, subject(gpu)
            found.setdefault(key, _finding(gpu, cause, reason, word, since_s, now_s))
    return list(found.values())


def gpu_power_cap(view: View, now_s: float) -> list[Finding]:
    """The finding `gpu_power_cap`: for `CAPPED_FOR_S` the power limit holds the clock of a busy GPU below `CAPPED_SHARE` of its
    highest."""
    found = []
    for gpu in view.gpus():
        since_s = _held_since(gpu, _CAP, CAPPED_FOR_S, now_s)
        now, most = gpu.sm_clock_hertz, gpu.sm_clock_max_hertz
        busy = gpu.utilization_ratio is not None and gpu.utilization_ratio >= BUSY_RATIO
        if since_s is not None and busy and now is not None and most and now < CAPPED_SHARE * most:
            word = CLOCK_EVENTS[_CAP]._replace(severity="info", words="its power limit holds its clocks far down")
            found.append(_finding(gpu, FINDINGS[_CAP], _CAP, word, since_s, now_s))
    return found


def _held_since(gpu: Gpu, reason: str, for_s: float, now_s: float) -> float | None:
    since_s = gpu.clock_events_since_s.get(reason) if gpu.up and reason in gpu.clock_events else None
    return since_s if since_s is not None and now_s - since_s >= for_s else None


def _finding(gpu: Gpu, cause: str, reason: str, word: ClockEvent, since_s: float, now_s: float) -> Finding:
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
            *_numbers(gpu),
        ),
        advice=word.do,
        runbook=f"docs/runbooks/{cause}.md",
    )


def _numbers(gpu: Gpu) -> Iterator[Evidence]:
    if gpu.sm_clock_hertz is not None and gpu.sm_clock_max_hertz:
        text = f"its SM clock is {gpu.sm_clock_hertz / 1e6:.0f} MHz of {gpu.sm_clock_max_hertz / 1e6:.0f} MHz"
        yield Evidence(text=text, metric="aie_gpu_clock_hertz")
    if gpu.temperature_celsius is not None:
        limit = "" if gpu.slowdown_celsius is None else f" (it slows down at {gpu.slowdown_celsius:.0f} °C)"
        yield Evidence(text=f"it is at {gpu.temperature_celsius:.0f} °C{limit}", metric="aie_gpu_temperature_celsius")
    if gpu.power_watts is not None and gpu.power_limit_watts is not None:
        text = f"it draws {gpu.power_watts:.0f} W (limit {gpu.power_limit_watts:.0f} W)"
        yield Evidence(text=text, metric="aie_gpu_power_watts")
