"""Requests wait for room in the KV cache: what runs has taken it, and another does not fit.

The rule: requests wait as `queue_saturation` has it, and of the last `HELD_S` seconds the KV cache was on average so full that one
more request like those that run, whose mean share is the mean use by the mean number that ran, had no room; or it was `FULL` or
more. So a cache that holds one request at a time is full at 60 %, with one that runs. It goes on while there is no room for two
more, or the cache is `STILL_FULL`.

An engine with one place at a time looks the same (llama.cpp without --parallel). Where its page tells neither the size of its cache
nor how long requests wait, and no more than one ran at any look that is remembered, only `FULL` counts. That more than one ran is
said in the finding, and holds for as long as that goes on, when the look is forgotten.

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
from aie_agent.analysis.sustained import mean_of
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "kv_full"
CAPACITY: Final = "aie_engine_kv_capacity_tokens"

FULL: Final = 0.9
STILL_FULL: Final = 0.8
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
    is_told = capacity is not None or not queue.not_visible
    places = () if is_told else _places(view, engine, now_s)
    limit = _limit_reached(used, running if is_told or places else None, view.held(CAUSE, engine) is not None)
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
        evidence=(full, *size, *places, *queue.evidence),
        advice=_ADVICE,
    )


def _places(view: View, engine: str, now_s: float) -> tuple[Evidence, ...]:
    """That more than one can run at a time: more than one ran at a look that is remembered, or as what is found already says. Of
    what runs it says nothing else."""
    most, before = highest(view, engine, RUNNING, 0.0, now_s) or 0.0, view.held(CAUSE, engine)
    if most > 1.0:
        text = f"{most:.0f} ran at a time, while this is so or minutes before: it has places for more"
        return (Evidence(text=text, metric=RUNNING),)
    return () if before is None else tuple(each for each in before.evidence if each.metric == RUNNING)


def _limit_reached(used: float, running: float | None, is_found: bool) -> str | None:
    """The limit that a cache so full reaches, in words; None where it has room. `running` is None where nobody knows whether it is
    memory that no more run for."""
    limit = f"limit {FULL:.0%}, or no room for one more"
    share = 0.0 if running is None else used / running
    if used >= FULL or used + share > 1.0:
        return limit
    goes_on = is_found and (used >= STILL_FULL or used + 2 * share > 1.0)
    return f"{limit}; {STILL_FULL:.0%}, or none for two more, for as long as it goes on" if goes_on else None
