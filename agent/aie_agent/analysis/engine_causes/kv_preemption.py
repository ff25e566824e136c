"""Running requests lose their KV cache to others, and what was computed for them is computed again.

The rule: at least `LEAST` preemptions within `WINDOW_S` seconds, seen at two different looks or more. Nothing is estimated. It goes
on while there are half as many over `GOES_ON_S`, and any within `WINDOW_S`: so a rate near the limit is one finding.

When it is wrong: a preemption now and then is what a full cache costs, and below the threshold nothing is said; above it, it is
true and costs what the evidence says. The false-alarm rate on engines that preempt less than that is 0. An engine that does not
count its preemptions (TGI, llama.cpp, TensorRT-LLM) is never reported, nor is aie-engine, which reserves a request's whole
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aie_agent.analysis.engine_causes.readings import KV_USAGE, RUNNING, highest, risen, risen_per_bin
from aie_agent.analysis.findings import View
from aie_agent.analysis.sustained import ENDS_AT, limit_of
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "kv_preemption"
PREEMPTIONS: Final = "aie_engine_preemptions_total"

WINDOW_S: Final = 30.0
GOES_ON_S: Final = 240.0
LEAST: Final = 5
_ADVICE: Final = (
    "Give the KV cache more room (vLLM --gpu-memory-utilization, --kv-cache-dtype fp8, --tensor-parallel-size; SGLang"
    " --mem-fraction-static), or run fewer requests at a time (vLLM --max-num-seqs, SGLang --max-running-requests or a higher"
    " --schedule-conservativeness)."
)


def kv_preemption(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `kv_preemption` at `now_s`, or None."""
    start_s = now_s - WINDOW_S
    count = risen(view, engine, PREEMPTIONS, start_s, now_s)
    if not count:
        return None
    edges = [start_s + second for second in range(int(WINDOW_S) + 1)]
    bins = risen_per_bin(view.store.scalars(PREEMPTIONS, engine=engine), edges)
    counted = _begins(count, bins) or _goes_on(view, engine, now_s)
    if counted is None:
        return None
    kv = highest(view, engine, KV_USAGE, start_s, now_s)
    running = highest(view, engine, RUNNING, start_s, now_s)
    texts = [(counted, PREEMPTIONS)]
    if kv is not None:
        texts.append((f"its KV cache was {kv:.0%} taken at most", KV_USAGE))
    if running is not None:
        texts.append((f"{running:.0f} requests ran at most", RUNNING))
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=next(edge for edge, rise in zip(edges, bins, strict=False) if rise > 0),
        summary=f"engine {engine}: its KV cache is too small for what runs, requests are put back and computed again",
        evidence=tuple(Evidence(text=text, metric=metric) for text, metric in texts),
        advice=_ADVICE,
    )


def _begins(count: float, bins: Sequence[float]) -> str | None:
    """How many there were, if these are enough; else None."""
    if count < LEAST or sum(rise > 0 for rise in bins) < 2:
        return None
    return f"{count:.0f} times in the last {WINDOW_S:g} s a running request was put back (limit {LEAST})"


def _goes_on(view: View, engine: str, now_s: float) -> str | None:
    """The same of what was found before: since it began, `GOES_ON_S` at most."""
    since_s = view.held_since_s(CAUSE, engine)
    if since_s is None:
        return None
    window_s = min(max(now_s - since_s, WINDOW_S), GOES_ON_S)
    count = risen(view, engine, PREEMPTIONS, now_s - window_s, now_s) or 0.0
    if count < ENDS_AT * LEAST * window_s / WINDOW_S:
        return None
    text = f"{count:.0f} times in the last {window_s:.0f} s a running request was put back"
    return f"{text} ({limit_of(False, f'{LEAST} in {WINDOW_S:g} s')})"
