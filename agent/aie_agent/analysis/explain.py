"""Which finding explains which: a GPU that is throttled makes its engine slow, and only the first is news.

What is explained stays among the findings, marked, below what explains it; it raises no alert of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from aie_telemetry.api import Finding, Severity

HOST: Final = "host"
"""The subject of what concerns all engines of the host."""

RANK: Final[Mapping[Severity, int]] = {"critical": 0, "warning": 1, "info": 2}
"""The graver, the lower."""

Related = Callable[[str, str], bool]
"""Whether what is wrong with one subject can be felt by another."""


def explain(findings: Sequence[Finding], table: Mapping[str, frozenset[str]], related: Related) -> list[Finding]:
    """Each finding with `explained_by`: the cause of the worst of those that explain it, or "", and its subject. Two that would
    explain each other do not: the first in the list is taken to be the cause."""
    marked: list[Finding] = []
    explained: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        by = next((other for other in findings if _explains(other, finding, table, related, explained)), None)
        if by is not None:
            explained[finding.cause, finding.subject] = by
        marked.append(finding if by is None else _under(finding, by))
    return marked


def _under(finding: Finding, by: Finding) -> Finding:
    return msgspec.structs.replace(finding, explained_by=by.cause, explained_by_subject=by.subject)


def _explains(
    other: Finding,
    finding: Finding,
    table: Mapping[str, frozenset[str]],
    related: Related,
    explained: Mapping[tuple[str, str], Finding],
) -> bool:
    if finding.cause not in table.get(other.cause, ()) or not related(other.subject, finding.subject):
        return False
    if RANK[other.severity] > RANK[finding.severity]:
        return False  # what is graver is told by itself: an alert on what explains it would be too mild
    # Not in a circle: what this one explains itself cannot explain it.
    above: Finding | None = other
    while above is not None:
        if (above.cause, above.subject) == (finding.cause, finding.subject):
            return False
        above = explained.get((above.cause, above.subject))
    return True
