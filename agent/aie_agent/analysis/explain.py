"""Which finding explains which: a GPU that is throttled makes its engine slow, and only the first is news.

What is explained stays among the findings, marked, below what explains it; it raises no alert of its own. What is graver than that
which explains it (a process that was killed, a leak that is a warning) keeps its own alarm, and names the other in its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from aie_telemetry.api import Evidence, Finding, Severity

HOST: Final = "host"
"""The subject of what concerns all engines of the host."""

CPU_DEVICE: Final = "cpu"
"""The device of memory that is the host's. An engine's memory there is also the host's concern."""

_METRIC: Final = "aie_finding"

RANK: Final[Mapping[Severity, int]] = {"critical": 0, "warning": 1, "info": 2}
"""The graver, the lower."""

Related = Callable[[str, str], bool]
"""Whether what is wrong with one subject can be felt by another."""


def explain(findings: Sequence[Finding], table: Mapping[str, frozenset[str]], related: Related) -> list[Finding]:
    """Each finding with `explained_by`: the cause of the worst of those that explain it, or "", and its subject. Two that would
    explain each other do not: the first in the list is taken to be the cause."""
    marked: list[Finding] = []
    explained: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        by = next((other for other in findings if _explains(other, finding, table, related, explained)), None)
        if by is not None:
            explained[finding.key] = by
        marked.append(_naming(finding, findings, table, related) if by is None else _under(finding, by))
    return marked


def _under(finding: Finding, by: Finding) -> Finding:
    return msgspec.structs.replace(finding, explained_by=by.cause, explained_by_subject=by.subject)


def _naming(finding: Finding, findings: Sequence[Finding], table: Mapping[str, frozenset[str]], related: Related) -> Finding:
    """With the milder findings that it may come of."""
    milder = (
        other for other in findings if RANK[other.severity] > RANK[finding.severity] and _leads(other, finding, table, related)
    )
    named = tuple(Evidence(text=f"it may come of {other.cause}: {other.summary}", metric=_METRIC) for other in milder)
    return msgspec.structs.replace(finding, evidence=(*finding.evidence, *named)) if named else finding


def _leads(other: Finding, finding: Finding, table: Mapping[str, frozenset[str]], related: Related) -> bool:
    """Whether one can lead to the other at all, whatever their severities: by its cause, and by where it is."""
    if finding.cause not in table.get(other.cause, ()):
        return False
    if other.model and finding.model and other.model != finding.model:
        return False
    if other.device and finding.device:
        if (other.device == CPU_DEVICE) != (finding.device == CPU_DEVICE):
            return False
        if finding.subject == HOST:
            return True
    return related(other.subject, finding.subject)


def _explains(
    other: Finding,
    finding: Finding,
    table: Mapping[str, frozenset[str]],
    related: Related,
    explained: Mapping[tuple[str, str, str], Finding],
) -> bool:
    if not _leads(other, finding, table, related):
        return False
    if RANK[other.severity] > RANK[finding.severity]:
        return False  # what is graver is told by itself: an alert on what explains it would be too mild
    # Not in a circle: what this one explains itself cannot explain it.
    above: Finding | None = other
    while above is not None:
        if above.key == finding.key:
            return False
        above = explained.get(above.key)
    return True
