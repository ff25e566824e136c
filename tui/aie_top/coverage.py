"""What probes do not see of an engine, in words: an empty table must never be taken for "nothing waits". Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aie_telemetry.api import Coverage, Engine
from aie_top.waits import unknown_parts

# The agent's name of a set, and what it sees. A set that is not here goes by its name.
_SEES: Final[dict[str, str]] = {
    "ebpf": "waits, locks and CUDA",
    "locks": "locks and the GIL",
    "sched": "sleep and disk",
    "faults": "page faults",
    "block_io": "block devices",
    "oom": "kills for memory",
    "xid": "the driver's XIDs",
    "cuda_memory": "CUDA memory",
    "cuda_sync": "CUDA waits",
    "cuda_copy": "CUDA copies",
    "cuda_launch": "CUDA launches",
    "gc": "garbage collections",
    "lock_stacks": "native code that waits for locks",
}

# The set that a part of the bar is from, where an engine may have nothing of it.
_SET_OF: Final = {"gpu_sync": "cuda_sync"}

# Of what is missing of one set: a driver that is older than all of the probes would fill the page.
_MOST_SAID: Final = 3


def not_seen(engine: Engine) -> str:
    """Such as: A, B (reason; remedy); part of C (what is missing). Empty where all is seen.

    Sets with the same reason are named together. Those that wait to be opened for a while are not missed, nor those of which an
    engine has nothing to see.
    """
    by_reason: dict[str, list[str]] = {}
    for one in engine.coverage:
        if one.state in ("off", "part"):
            what = _SEES.get(one.set, one.set)
            by_reason.setdefault(_why(one), []).append(what if one.state == "off" else f"part of {what}")
    parts = [f"{', '.join(sets)} ({why})" if why else ", ".join(sets) for why, sets in by_reason.items()]
    without = {one.set for one in engine.coverage if one.state == "none"}
    unknown = (
        () if engine.waits is None else [part for part in unknown_parts(engine.waits) if _SET_OF.get(part.field) not in without]
    )
    if not parts and unknown:
        parts = [f"{', '.join(part.words for part in unknown)} (the agent does not say why)"]
    return "; ".join(parts)


def sees(engine: Engine, *sets: str) -> bool:
    """Whether all of these sets see it, in whole or in part. An agent that says nothing of a set is not taken at its word."""
    seen = {one.set for one in engine.coverage if one.state in ("on", "part")}
    return seen.issuperset(sets)


def can_be_opened(coverage: Iterable[Coverage]) -> str:
    """Sets that see nothing until somebody asks for a window, or ""."""
    return ", ".join(_SEES.get(one.set, one.set) for one in coverage if one.state == "window")


def notes(coverage: Iterable[Coverage]) -> tuple[str, ...]:
    """What is worth knowing of what is seen, each once."""
    return tuple(dict.fromkeys(note for one in coverage for note in one.notes))[:_MOST_SAID]


def _why(one: Coverage) -> str:
    missing = one.missing if one.state == "part" else ()
    more = len(missing) - _MOST_SAID
    said = (*missing[:_MOST_SAID], f"and {more} more" if more > 0 else "") if missing else (one.reason,)
    return "; ".join(filter(None, (*said, one.remedy)))
