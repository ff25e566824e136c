"""An allocation of the engine failed for lack of memory: on a GPU (`cuda_oom`), or in a pool elsewhere (`out_of_memory`).

The hooks tell of it, with the state at that moment: so the rule is exact, and there is no false alarm as long as the engine
itself does not test how much it can take (vLLM does while it starts, in a process that reports nothing). It is told for `TOLD_S`
after the last one. Of three or more within `OFTEN_S` seconds it is critical.

Why memory ran out is read from the numbers, in this order. *Pieces*: what the allocator reserved and does not use would have been
enough, but no free block was. *Others*: what neither is free nor reserved by this process would have been, and more than contexts
take. *Full* otherwise: the process itself holds the memory. Where a number is missing, what it would tell is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.readings import size
from aie_agent.analysis.findings import View
from aie_telemetry.api import Event, Evidence, Finding

OOMS: Final = "aie_engine_allocator_ooms_total"
_RESERVED: Final = "aie_engine_allocator_reserved_bytes"
_PHYSICAL: Final = "aie_engine_memory_physical_bytes"

TOLD_S: Final = 300.0
OFTEN_S: Final = 60.0
OFTEN: Final = 3
CONTEXTS_BYTES: Final = 1.5 * 2**30
"""What a process's own contexts and libraries take outside the allocator, at most: below it, nobody else is blamed."""


class _Verdict(NamedTuple):
    """Why there was none: in words, and what to do."""

    words: str
    advice: str


_PIECES: Final = _Verdict(
    "the allocator held enough, in pieces",
    "Fewer different shapes, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, let the pieces be used.",
)
_OTHERS: Final = _Verdict(
    "others hold it",
    "See who else is on the GPU (`nvidia-smi`, the GPU's page of aie-top): end what does not belong there, or give each its share"
    " (vLLM --gpu-memory-utilization, SGLang --mem-fraction-static).",
)
_FULL: Final = _Verdict(
    "the engine itself holds it",
    "Let the engine take less: fewer sequences at a time (vLLM --max-num-seqs), fewer tokens in a step (--max-num-batched-tokens),"
    " a smaller share for the KV cache (vLLM --gpu-memory-utilization, SGLang --mem-fraction-static), shorter prompts.",
)


def cuda_oom(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `cuda_oom` at `now_s`, or None."""
    return _finding("cuda_oom", view, engine, now_s, lambda device: device.startswith("cuda"))


def out_of_memory(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `out_of_memory` at `now_s`, or None: as `cuda_oom`, on another device than a GPU of CUDA."""
    return _finding("out_of_memory", view, engine, now_s, lambda device: not device.startswith("cuda"))


def _finding(cause: str, view: View, engine: str, now_s: float, is_device: Callable[[str], bool]) -> Finding | None:
    events = [
        event
        for event in view.events
        if event.kind == "oom" and event.engine == engine and now_s - event.time_s < TOLD_S and is_device(_device(event))
    ]
    if not events:
        return None
    last = max(events, key=lambda event: event.time_s)
    verdict = _verdict(last.details)
    asked = _number(last.details, "asked_bytes")
    what = "an allocation" if asked is None else f"an allocation of {size(asked)}"
    return Finding(
        cause=cause,
        subject=engine,
        severity="critical" if _lately(events, now_s) >= OFTEN else "warning",
        since_s=min(event.time_s for event in events),
        summary=f"engine {engine}: {what} failed on {_device(last) or 'its device'}, {verdict.words}",
        evidence=tuple(_evidence(last, events, now_s)),
        advice=verdict.advice,
        not_visible=(f"could not be read at that moment: {unread}",) if (unread := _word(last, "unreadable")) else (),
        device=_device(last),
    )


def _lately(events: Sequence[Event], now_s: float) -> float:
    """Failures within the last `OFTEN_S`; a record also says how many went by without one just before it."""
    return sum(1 + (_number(event.details, "suppressed") or 0.0) for event in events if now_s - event.time_s < OFTEN_S)


def _verdict(details: Mapping[str, float | str]) -> _Verdict:
    asked, idle = _number(details, "asked_bytes"), _number(details, "reserved_unallocated_bytes")
    largest, others = _number(details, "largest_free_bytes"), _others(details)
    if asked is not None and idle is not None and idle >= asked and (largest is None or largest < asked):
        return _PIECES
    if others is not None and others > CONTEXTS_BYTES and (asked is None or others >= asked) and details.get("holders") != "none":
        return _OTHERS
    return _FULL


def _others(details: Mapping[str, float | str]) -> float | None:
    """What neither is free nor reserved by the process's allocator."""
    total, free, reserved = (_number(details, f"{name}_bytes") for name in ("total", "free", "reserved"))
    return None if total is None or free is None or reserved is None else total - free - reserved


def _evidence(last: Event, events: Sequence[Event], now_s: float) -> Iterator[Evidence]:
    details = last.details
    failed = sum(1 + (_number(event.details, "suppressed") or 0.0) for event in events)
    often = "" if failed == 1 else f", {failed:.0f} times in the last {TOLD_S:g} s"
    yield Evidence(text=f"{last.summary} ({now_s - last.time_s:.0f} s ago{often})", metric=OOMS)
    parts = (
        ("asked_bytes", "{} was asked for"),
        ("free_bytes", "{} was free on the device"),
        ("largest_free_bytes", "the largest free block of the allocator had {}"),
        ("reserved_unallocated_bytes", "{} was reserved and not allocated"),
    )
    known = [text.format(size(value)) for name, text in parts if (value := _number(details, name)) is not None]
    if known:
        yield Evidence(text="; ".join(known), metric=_RESERVED)
    others, holders = _others(details), _word(last, "holders")
    if others is not None:
        text = f"{size(others)} is held outside its allocator: its own contexts and libraries, and others"
        yield Evidence(text=f"{text} (limit {size(CONTEXTS_BYTES)})", metric=_PHYSICAL)
    if holders:
        yield Evidence(text=f"others on the GPU: {holders}", metric=_PHYSICAL)


def _number(details: Mapping[str, float | str], name: str) -> float | None:
    value = details.get(name)
    return None if value is None or isinstance(value, str) else float(value)


def _device(event: Event) -> str:
    """As its details say, else as its summary does; empty where neither does."""
    return _word(event, "device") or event.summary.partition("out of memory on ")[2].partition(":")[0]


def _word(event: Event, name: str) -> str:
    value = event.details.get(name, "")
    return value if isinstance(value, str) else ""
