"""What happened lately, as problems: an engine that ran out of memory ten minutes ago may be well again, and one should know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from aie_telemetry.api import Event, Severity, Snapshot
from aie_top import format as fmt
from aie_top.finding_rows import told
from aie_top.rows import ProblemRow

SHOWN_S: Final = 600.0
"""So long an event is shown."""
XID_EVENT: Final = "gpu_xid"
FINDING_EVENT: Final = "finding"
"""One that came or went: its summary says all, and one that is there stands among the findings."""

_SEVERITIES: Final[dict[str, Severity]] = {"oom": "warning", "oom_kill": "warning"}

# Events that the agent has findings for, as long as these stand there.
_TOLD_BY: Final = {"oom": ("cuda_oom", "out_of_memory"), "oom_kill": ("oom_killed",)}

# What decides why memory ran out, in the order in which one asks.
_FIRST: Final = (
    ("asked_bytes", "asked for"),
    ("free_bytes", "free on the device"),
    ("largest_free_bytes", "largest free block"),
    ("reserved_unallocated_bytes", "reserved and not allocated"),
)
_FRAGMENTED: Final = (
    "The allocator held enough, in pieces: fewer different shapes, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, let it be"
    " used."
)
_TOO_FULL: Final = (
    "Let the engine take less (fewer sequences at a time, a smaller KV cache, shorter prompts), or see who else holds memory."
)
_KILLED: Final = (
    "Whoever ran out (the host, or a control group with its memory.max) needs more memory, or less has to run there. A process that"
    " must live gets a lower oom_score_adj."
)


def event_rows(snapshot: Snapshot) -> Iterator[ProblemRow]:
    """One row for each engine and kind of event (of findings: cause) of the last ten minutes: the newest, and how many there were.

    XIDs of GPUs that are shown stand among what is wrong with the GPUs.
    """
    shown = {XID_EVENT} if snapshot.gpus else set()
    by_findings = {kind: told(snapshot, *causes) for kind, causes in _TOLD_BY.items()}
    recent = [
        event
        for event in snapshot.events
        if snapshot.time_s - event.time_s <= SHOWN_S
        and event.kind not in shown
        and event.engine not in by_findings.get(event.kind, ())
    ]
    groups: dict[tuple[str, str, object], list[Event]] = {}
    for event in recent:
        if not _is_begun(event):
            cause = event.details.get("cause") if event.kind == FINDING_EVENT else None
            groups.setdefault((event.engine, event.kind, cause), []).append(event)
    for events in groups.values():
        newest = max(events, key=lambda event: event.time_s)
        times = f" ({len(events)} times in {fmt.age(SHOWN_S)})" if len(events) > 1 else ""
        yield ProblemRow(
            severity=_SEVERITIES.get(newest.kind, "info"),
            summary=f"{newest.summary or newest.kind}{times}",
            subject=newest.engine,
            host=snapshot.host.hostname,
            age_s=max(snapshot.time_s - newest.time_s, 0.0),
            why=tuple(_why(newest.details)) if newest.kind != FINDING_EVENT else (),
            advice=_advice(newest),
        )


def _is_begun(event: Event) -> bool:
    return event.kind == FINDING_EVENT and event.details.get("state") == "begun"


def _why(details: Mapping[str, float | str]) -> Iterator[str]:
    first = {name: label for name, label in _FIRST if name in details}
    if first:
        yield "; ".join(f"{label} {_value(name, details[name])}" for name, label in first.items())
    others = [f"{_label(name)} {_value(name, value)}" for name, value in details.items() if name not in first]
    if others:
        yield "; ".join(others)


def _advice(event: Event) -> str:
    if event.kind == "oom_kill":
        return _KILLED
    if event.kind != "oom":
        return ""
    asked, idle = event.details.get("asked_bytes"), event.details.get("reserved_unallocated_bytes")
    fragmented = isinstance(asked, float | int) and isinstance(idle, float | int) and idle >= asked
    return _FRAGMENTED if fragmented else _TOO_FULL


def _label(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _value(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return fmt.size(value) if name.endswith("_bytes") else f"{value:g}"
