"""Requests wait for room in the KV cache: what runs has taken it, and another does not fit.

The rule: requests wait as `queue_saturation` has it, and of the last `HELD_S` seconds the KV cache was on average so full that one
more request like those that run, whose mean share is the mean use by the mean number that ran, had no room; or it was `FULL` or
more. So a cache that holds one request at a time is full at 60 %, with one that runs. It goes on while there is no room for two
more, or the cache is `STILL_FULL`.

An engine with one place at a time looks the same (llama.cpp without --parallel). Where its page tells neither the size of its cache
nor how long requests wait, and no more than one ran at any look that is remembered, only `FULL` counts. What was found because more
than one ran goes on when that look is forgotten: what is found still, though the cache was not `STILL_FULL` at any look of the last
`OUTLASTS_S` seconds, was not found because it was `FULL`.

When it is wrong: where places in the batch are used up at the same moment, both are short, and this is named: more places alone
would not help. Some versions of TensorRT-LLM count blocks that they keep only for reuse as taken: there a queue before a batch that
is full is called this. Where no queue is, nothing is ever said, however full the cache: the false-alarm rate is that of
`queue_saturation`. Of a page that is read every 4 s or less often nothing is said, for want of readings for a mean. An engine that
preempts (vLLM, SGLang) has `kv_preemption` as well, which explains this.
"""

from __future__ import annotations

from typing import Final

import msgspec

from aie_agent.analysis.engine_causes.queue_saturation import HELD_S, queue_of_waits
from aie_agent.analysis.engine_causes.readings import KV_USAGE, RUNNING, WAITING, highest
from aie_agent.analysis.findings import View
from aie_agent.analysis.sustained import level_since, live, mean_of
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "kv_full"
CAPACITY: Final = "aie_engine_kv_capacity_tokens"

FULL: Final = 0.9
STILL_FULL: Final = 0.8
OUTLASTS_S: Final = 20.0
"""What only a cache as full as that keeps is over by then, and no longer shown: the mean is of `HELD_S`, and it lingers for ten."""
_LEAST_READINGS: Final = 3
_ADVICE: Final = (
    "Give the KV cache more memory (vLLM --gpu-memory-utilization, --kv-cache-dtype fp8; SGLang --mem-fraction-static; llama.cpp"
    " --ctx-size, --cache-type-k; aie-engine --kv-tokens), shorten what a request may ask for (--max-model-len, max_tokens:"
    " aie-engine reserves the longest answer), or add replicas. More places in the batch alone (--max-num-seqs, --parallel) do not"
    " help. See whether its size or the lengths of requests changed just before."
)


def kv_full(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `kv_full` at `now_s`, or None."""
    queue = queue_of_waits(view, engine, now_s)
    if queue is None:
        return None
    used, running = (
        mean_of(view.store.scalars(metric, engine=engine), now_s - HELD_S, now_s, _LEAST_READINGS) for metric in (KV_USAGE, RUNNING)
    )
    if used is None or running is None or not running:
        return None
    capacity = view.store.current(CAPACITY, now_s, engine=engine)
    is_found = view.held_since_s(CAUSE, engine) is not None
    has_places = capacity is not None or not queue.not_visible or _has_places(view, engine, is_found, now_s)
    limit = _limit_reached(used, running if has_places else None, is_found)
    if limit is None:
        return None
    waiting = view.store.current(WAITING, now_s, engine=engine) or 0.0
    text = f"its KV cache was {used:.0%} taken on average over the last {HELD_S:g} s, by {running:.1f} requests"
    full = Evidence(text=f"{text}: {used / running:.0%} each ({limit})", metric=KV_USAGE)
    size = () if capacity is None else (Evidence(text=f"it has room for {capacity:.0f} tokens", metric=CAPACITY),)
    return msgspec.structs.replace(
        queue,
        cause=CAUSE,
        summary=f"engine {engine}: its KV cache has no room for more, {waiting:.0f} requests wait",
        evidence=(full, *size, *queue.evidence),
        advice=_ADVICE,
    )


def _has_places(view: View, engine: str, is_found: bool, now_s: float) -> bool:
    """Whether more than one can run at a time: more than one ran, or did when this was found, or it would not be found still."""
    if (highest(view, engine, RUNNING, 0.0, now_s) or 0.0) > 1.0:
        return True
    usage = live(view.store.scalars(KV_USAGE, engine=engine), now_s)
    return is_found and all(level_since(each, lambda used: used < STILL_FULL, OUTLASTS_S, now_s) is not None for each in usage)


def _limit_reached(used: float, running: float | None, is_found: bool) -> str | None:
    """The limit that a cache so full reaches, in words; None where it has room. `running` is None where nobody knows whether it is
    memory that no more run for."""
    limit = f"limit {FULL:.0%}, or no room for one more"
    share = 0.0 if running is None else used / running
    if used >= FULL or used + share > 1.0:
        return limit
    goes_on = is_found and (used >= STILL_FULL or used + 2 * share > 1.0)
    return f"{limit}; {STILL_FULL:.0%}, or none for two more, for as long as it goes on" if goes_on else None
