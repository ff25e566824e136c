"""Which finding stands under which: a finding names what explains it, and here that is found again among the findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aie_telemetry.api import Finding, Snapshot

_NONE: Final = -1


def above(snapshot: Snapshot) -> tuple[Finding | None, ...]:
    """For each finding of a snapshot the one that explains it. None for one that stands by itself: nothing explains it, what does
    is not there, or they explain each other, which no agent of ours says. So each finding is told somewhere."""
    findings = snapshot.findings
    up = [_above(at, findings, snapshot) for at in range(len(findings))]
    return tuple(None if up[at] == _NONE or _in_circle(at, up) else findings[up[at]] for at in range(len(findings)))


def _above(at: int, findings: Sequence[Finding], snapshot: Snapshot) -> int:
    """The position of what explains it: what it names; where it names only a cause (older agents), that of the same subject, else
    of a GPU that the engine is on, else any."""
    finding = findings[at]
    if not finding.explained_by:
        return _NONE
    named = finding.explained_by_subject
    candidates = [
        other
        for other, each in enumerate(findings)
        if each.cause == finding.explained_by and other != at and named in ("", each.subject)
    ]
    on = {f"gpu{gpu.index}" for gpu in snapshot.gpus for each in gpu.processes if each.engine == finding.subject}
    return min(
        candidates,
        key=lambda other: (
            findings[other].subject != finding.subject,
            findings[other].subject not in on,
            findings[other].model not in ("", finding.model),
        ),
        default=_NONE,
    )


def _in_circle(at: int, up: Sequence[int]) -> bool:
    """Whether the way up from here comes back to here."""
    step = up[at]
    for _ in up:
        if step in (at, _NONE):
            break
        step = up[step]
    return step == at
