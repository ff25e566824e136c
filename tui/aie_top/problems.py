"""What is wrong, worst first: the agents' findings, and everything that keeps an agent or this program from seeing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from aie_telemetry.api import Engine, Finding, Severity, Snapshot, Source
from aie_top import format as fmt
from aie_top.rows import AgentState, ProblemRow

_RANK: Final[dict[Severity, int]] = {"critical": 0, "warning": 1, "info": 2}


def problems_of(states: Sequence[AgentState], stale: Mapping[str, float | None]) -> list[ProblemRow]:
    """Worst first, then the newest first. `stale` gives the age of old data by the agent's label."""
    rows = [row for state in states for row in _of_one(state, stale[state.label])]
    return sorted(rows, key=lambda row: (_RANK[row.severity], row.age_s if row.age_s is not None else 0.0))


def count_by_severity(rows: Iterable[ProblemRow]) -> dict[Severity, int]:
    counts: dict[Severity, int] = dict.fromkeys(_RANK, 0)
    for row in rows:
        counts[row.severity] += 1
    return counts


def _of_one(state: AgentState, stale_s: float | None) -> Iterator[ProblemRow]:
    yield from _connection(state, stale_s)
    snapshot = state.snapshot
    if snapshot is None:
        return
    host = snapshot.host.hostname
    yield from (_finding(finding, host, snapshot.time_s) for finding in snapshot.findings)
    yield from (_engine_down(engine, host) for engine in snapshot.engines if engine.state == "down")
    yield from (_source_down(source, host) for source in snapshot.sources if source.state == "down")
    yield from _drops(snapshot, host)


def _connection(state: AgentState, stale_s: float | None) -> Iterator[ProblemRow]:
    if state.phase == "away":
        seen = f"; data below is {fmt.age(stale_s)} old" if stale_s is not None else ""
        yield ProblemRow(
            severity="critical",
            summary=f"agent at {state.label} is away: {state.reason or 'no answer'}; retrying{seen}",
            age_s=stale_s,
            advice="" if stale_s is not None else "Start it on that host with `aie-agent run`, or name another with --connect URL.",
        )
    elif stale_s is not None:
        yield ProblemRow(
            severity="warning",
            summary=f"agent at {state.label} sent nothing for {fmt.age(stale_s)}",
            age_s=stale_s,
        )


def _finding(finding: Finding, host: str, time_s: float) -> ProblemRow:
    return ProblemRow(
        severity=finding.severity,
        summary=finding.summary or finding.cause,
        subject=finding.subject,
        host=host,
        age_s=max(time_s - finding.since_s, 0.0),
        why=tuple(f"{evidence.text} ({evidence.metric})" for evidence in finding.evidence),
        advice=finding.advice,
        runbook=finding.runbook,
        confidence=finding.confidence,
        not_visible=finding.not_visible,
        changes=finding.changes,
    )


def _engine_down(engine: Engine, host: str) -> ProblemRow:
    why = f": {engine.note}" if engine.note else ""
    return ProblemRow(severity="critical", summary=f"engine {engine.name} is down{why}", subject=engine.name, host=host)


def _source_down(source: Source, host: str) -> ProblemRow:
    return ProblemRow(
        severity="warning",
        summary=f"agent is blind in {source.name}: {source.reason or 'no reason given'}",
        subject=source.name,
        host=host,
        age_s=source.last_success_age_s,
        advice="`aie-agent check` on that host says what is missing and what to do.",
    )


def _drops(snapshot: Snapshot, host: str) -> Iterator[ProblemRow]:
    """One line for all: a drop means that numbers below are too low, whichever it was."""
    drops = {what: number for what, number in snapshot.agent.drops.items() if number > 0}
    if drops:
        each = ", ".join(f"{fmt.count(number)} {what}" for what, number in sorted(drops.items()))
        yield ProblemRow(
            severity="info",
            summary=f"agent dropped since its start: {each}",
            subject="aie-agent",
            host=host,
            age_s=snapshot.agent.uptime_s,
        )
