"""The agent's findings as problems: GPUs that have the same share a line, and what another explains stands under that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aie_telemetry.api import Finding, Severity, Snapshot
from aie_telemetry.explained import above
from aie_top import format as fmt
from aie_top.rows import ProblemRow

RANK: Final[dict[Severity, int]] = {"critical": 0, "warning": 1, "info": 2}

_GPU: Final = re.compile(r"gpu(\d{1,3})")
_NAMED: Final = re.compile(r"(?:simulated )?GPU \d+(?: is)?:? ?")
_MOST_REASONS: Final = 4


def finding_rows(snapshot: Snapshot) -> Iterator[ProblemRow]:
    """A row for each finding that stands by itself, GPUs of one host together, in the order of the findings."""
    under = _explained(snapshot)
    hidden = {id(each) for several in under.values() for each in several}
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in snapshot.findings:
        if id(finding) not in hidden:
            groups.setdefault(_group(finding), []).append(finding)
    for members in groups.values():
        explained = [each for member in members for each in under.get(id(member), ())]
        yield _row(members, explained, snapshot)


def told(snapshot: Snapshot, *causes: str) -> frozenset[str]:
    """The subjects of the findings of these causes: what is told of them need not be told again."""
    return frozenset(finding.subject for finding in snapshot.findings if finding.cause in causes)


def _group(finding: Finding) -> tuple[str, ...]:
    if _GPU.fullmatch(finding.subject):
        return finding.cause, finding.severity, _NAMED.sub("", finding.summary, count=1)
    return finding.cause, finding.severity, finding.subject, finding.summary


def _explained(snapshot: Snapshot) -> dict[int, list[Finding]]:
    """Findings by the one that explains them in the end, by its identity. One whose explanation is not there stands by itself."""
    found: dict[int, list[Finding]] = {}
    up = {id(finding): by for finding, by in zip(snapshot.findings, above(snapshot), strict=True) if by is not None}
    for finding in snapshot.findings:
        top = finding
        while id(top) in up:
            top = up[id(top)]
        if top is not finding:
            found.setdefault(id(top), []).append(finding)
    return found


def _row(members: Sequence[Finding], explained: Sequence[Finding], snapshot: Snapshot) -> ProblemRow:
    first = members[0]
    is_gpu = _GPU.fullmatch(first.subject) is not None
    return ProblemRow(
        severity=min((each.severity for each in (*members, *explained)), key=RANK.__getitem__),
        summary=(_NAMED.sub("", first.summary, count=1) if is_gpu else first.summary) or first.cause,
        subject=_gpus(members, snapshot) if is_gpu else first.subject,
        host=snapshot.host.hostname,
        age_s=max(snapshot.time_s - min(each.since_s for each in members), 0.0),
        why=tuple(_why(members)),
        advice=first.advice,
        runbook=first.runbook,
        confidence=first.confidence,
        not_visible=_once(text for each in members for text in each.not_visible),
        changes=_once(text for each in members for text in each.changes),
        explains=tuple(f"{each.summary} (for {fmt.age(max(snapshot.time_s - each.since_s, 0.0))})" for each in explained),
    )


def _gpus(members: Sequence[Finding], snapshot: Snapshot) -> str:
    """GPU 3, or simulated GPUs 0-3, 7."""
    indices = {int(each.subject.removeprefix("gpu")) for each in members}
    simulated = any(gpu.simulated for gpu in snapshot.gpus if gpu.index in indices)
    word = "GPU" if len(indices) == 1 else "GPUs"
    return f"{'simulated ' if simulated else ''}{word} {fmt.numbers(sorted(indices))}"


def _why(members: Sequence[Finding]) -> Iterator[str]:
    if len(members) == 1:
        yield from (f"{each.text} ({each.metric})" for each in members[0].evidence)
        return
    for each in members[:_MOST_REASONS]:
        yield f"GPU {each.subject.removeprefix('gpu')}: {'; '.join(evidence.text for evidence in each.evidence)}"
    if len(members) > _MOST_REASONS:
        yield f"and {len(members) - _MOST_REASONS} more"


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
