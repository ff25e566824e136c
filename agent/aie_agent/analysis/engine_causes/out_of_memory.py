"""An allocation of the engine failed for lack of memory: on a GPU (`cuda_oom`), or in a pool elsewhere (`out_of_memory`).

The hooks tell of it, with the state at that moment: so the rule is exact, and there is no false alarm as long as the engine
itself does not test how much it can take (vLLM does while it starts, in a process that reports nothing). It is told for `TOLD_S`
after the last one. Of three or more within `OFTEN_S` seconds it is critical.

Why memory ran out is read from the numbers, in this order. *Pieces*: what the allocator reserved and does not use would have been
enough, but no free block was. *Full*: the process itself holds the memory, since what neither is free nor reserved by it would not
have been enough, or is no more than contexts take; or it is a pool of its own. *Others*: processes that are surely not its own hold
as much as would have been enough, and more than that; *full* where they hold less. Within a container the driver's list has the
engine itself, under a pid that it does not know: it is told by its pid, if the agent knows that, else by its size. Where it cannot
be told, or nobody listed processes, *full* if the process reserved `MOST` of all that is taken, and *unsure* otherwise. *Unknown*:
the numbers could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
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
MOST: Final = 0.8
_AS_LARGE: Final = (0.98, 1.25)
"""So many times what it reserved, and `CONTEXTS_BYTES`, a process has by the driver's account."""
_HOLDER: Final = re.compile(r"pid (\d+): (\d+) MiB")
_PERHAPS_OWN: Final = "may be this process"


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
_WHO: Final = "`nvidia-smi` on the host, and the GPU's page of aie-top, list who is on the GPU and with how much"
_UNSURE: Final = _Verdict(
    "who holds it cannot be told",
    f"{_WHO}: compare that with what the engine reserved. End what does not belong there; if nothing else is there, let the engine"
    " take less.",
)
_UNKNOWN: Final = _Verdict(
    "it is not known who holds it",
    f"{_WHO}; for a CPU `free -h` and the limit of the control group. The engine's log may have more of the error.",
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
    verdict = _verdict(last.details, view.pids(engine))
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


def _verdict(details: Mapping[str, float | str], own: Set[int] = frozenset()) -> _Verdict:
    """`own` are the pids that are known to be the engine's."""
    asked, idle, reserved = (_number(details, f"{name}_bytes") for name in ("asked", "reserved_unallocated", "reserved"))
    largest, outside = _number(details, "largest_free_bytes"), _others(details)
    if asked is not None and idle is not None and idle >= asked and (largest is None or largest < asked):
        return _PIECES
    if outside is not None and _is_little(outside, asked):
        return _FULL
    strangers = _strangers_bytes(details, own)
    if strangers is not None and not _is_little(strangers, asked):
        return _OTHERS
    if outside is None or reserved is None:
        return _FULL if (strangers is not None and reserved) or _is_pool(details) else _UNKNOWN
    return _FULL if strangers is not None or reserved >= MOST * (reserved + outside) else _UNSURE


def _is_pool(details: Mapping[str, float | str]) -> bool:
    """Whether it is memory that nobody else can have: the record says what of it is taken, and it is no GPU's."""
    is_gpu = str(details.get("device", "cuda")).startswith("cuda")
    return not is_gpu and any(_number(details, f"{name}_bytes") is not None for name in ("allocated", "reserved"))


def _is_little(held: float, asked: float | None) -> bool:
    """Whether it would not have been enough, or is no more than contexts take."""
    return held <= CONTEXTS_BYTES or (asked is not None and held < asked)


def _strangers_bytes(details: Mapping[str, float | str], own: Set[int]) -> float | None:
    """What processes hold that are surely not the engine's, by the driver's list; None where that cannot be told."""
    listed = details.get("holders")
    if not isinstance(listed, str):
        return None
    held = {int(pid): float(mib) * 2**20 for pid, mib in _HOLDER.findall(listed)}
    if _PERHAPS_OWN not in listed:
        return sum(held.values())
    known = own & held.keys()
    itself = known or _as_large(held, _number(details, "reserved_bytes"))
    return sum(size_bytes for pid, size_bytes in held.items() if pid not in itself) if itself else None


def _as_large(held: Mapping[int, float], reserved: float | None) -> frozenset[int]:
    """The process that has about as much as the engine reserved; empty where none has."""
    if not reserved:
        return frozenset()
    least, most = _AS_LARGE[0] * reserved, _AS_LARGE[1] * reserved + CONTEXTS_BYTES
    near = [pid for pid, size_bytes in held.items() if least <= size_bytes <= most]
    return frozenset(sorted(near, key=lambda pid: abs(held[pid] - reserved))[:1])


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
        who = "processes" if _PERHAPS_OWN in holders else "others"
        yield Evidence(text=f"{who} on the GPU: {holders}", metric=_PHYSICAL)


def _number(details: Mapping[str, float | str], name: str) -> float | None:
    value = details.get(name)
    return None if value is None or isinstance(value, str) else float(value)


def _device(event: Event) -> str:
    """As its details say, else as its summary does; empty where neither does."""
    return _word(event, "device") or event.summary.partition("out of memory on ")[2].partition(":")[0]


def _word(event: Event, name: str) -> str:
    value = event.details.get(name, "")
    return value if isinstance(value, str) else ""
