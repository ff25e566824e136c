"""What is wrong, worst first: the agents' findings, and everything that keeps an agent or this program from seeing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from aie_telemetry.api import Engine, Severity, Snapshot, Source
from aie_top import format as fmt
from aie_top.events import event_rows
from aie_top.finding_rows import RANK, finding_rows, told
from aie_top.gpu_problems import FINDING_BEGINS_S, gpu_problems
from aie_top.rows import AgentState, ProblemRow

OLD_NEWS_S: Final = 600.0
"""An engine that is down for so long is down on purpose, or everybody knows."""
REMEMBERED_S: Final = 240.0
"""For so long the agent surely knows what ran in an engine that is gone: its `store.retention`, less a little."""
_AGENT: Final = "agent"
"""The subject of the finding that it dropped something."""
_DOWN_ADVICE: Final = (
    "Restart it; its own log, and the kernel's (`dmesg`), say how it ended. If it is gone for good, the agent forgets it after an"
    " hour, one that is configured when it is taken out there."
)


def problems_of(states: Sequence[AgentState], stale: Mapping[str, float | None]) -> list[ProblemRow]:
    """Worst first; among equals a lost agent, since all that it said is old, then what agents found, then the rest, each with the
    newest first. `stale`: ages by agent's label."""
    snapshots = [state.snapshot for state in states if state.snapshot is not None]
    lost = [row for state in states for row in _connection(state, stale[state.label])]
    found = [row for one in snapshots for row in finding_rows(one)]
    rest = [row for one in snapshots for row in _of_one(one)]
    return sorted([*lost, *_newest_first(found), *_newest_first(rest)], key=lambda row: RANK[row.severity])


def hung_engines(snapshot: Snapshot) -> frozenset[str]:
    """The engines of which the agent says that they hang."""
    return told(snapshot, "engine_hung")


def engine_of(subject: str) -> str:
    """The engine that a problem's subject names, itself or through the source that reads its page."""
    return subject.removeprefix("scrape:")


def _newest_first(rows: Iterable[ProblemRow]) -> list[ProblemRow]:
    return sorted(rows, key=lambda row: row.age_s if row.age_s is not None else 0.0)


def count_by_severity(rows: Iterable[ProblemRow]) -> dict[Severity, int]:
    counts: dict[Severity, int] = dict.fromkeys(RANK, 0)
    for row in rows:
        counts[row.severity] += 1
    return counts


def _of_one(snapshot: Snapshot) -> Iterator[ProblemRow]:
    host = snapshot.host.hostname
    yield from event_rows(snapshot)
    yield from gpu_problems(snapshot)
    yield from (_engine_unseen(engine, host) for engine in snapshot.engines if engine.state != "down" and _unseen(engine))
    lost = {engine.name: engine for engine in snapshot.engines if engine.state == "down"}
    ended = told(snapshot, "engine_down", "oom_killed")
    for engine in lost.values():
        age_s = _age(engine.down_since_s, snapshot.time_s)
        if engine.name not in ended and (age_s is None or age_s >= FINDING_BEGINS_S):  # until then the agent may tell of it
            yield _engine_down(engine, host, snapshot.time_s)
    # That the page of an engine that is down, or hangs, does not answer is no second problem.
    explained = {f"scrape:{name}" for name in (*lost, *hung_engines(snapshot))}
    blind = told(snapshot, "agent_blind")
    explained |= {source.name for source in snapshot.sources if engine_of(source.name) in blind}
    down = [source for source in snapshot.sources if source.state == "down" and source.name not in explained]
    yield from (_source_down(source, host, snapshot.time_s, advise=at == 0) for at, source in enumerate(down))
    if _AGENT not in blind:
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


def _engine_down(engine: Engine, host: str, time_s: float) -> ProblemRow:
    why = f": {engine.note}" if engine.note else ""
    age_s = _age(engine.down_since_s, time_s)
    how = "stopped while idle" if engine.running_at_end == 0 else "is down"
    return ProblemRow(
        severity=_down_severity(engine.running_at_end, age_s or 0.0),
        summary=f"engine {engine.name} {how}: it has no process left{why}",
        subject=engine.name,
        host=host,
        age_s=age_s,
        why=(f"{fmt.count(engine.running_at_end)} requests ran when it was last seen",) if engine.running_at_end else (),
        advice=_DOWN_ADVICE,
    )


def _down_severity(running_at_end: float | None, age_s: float) -> Severity:
    """Critical where requests may have been lost. It only ever gets milder: what ran is forgotten before it is old news."""
    if age_s >= OLD_NEWS_S:
        return "info"
    forgotten = running_at_end is None and age_s >= REMEMBERED_S
    return "warning" if running_at_end == 0 or forgotten else "critical"


def _unseen(engine: Engine) -> str | None:
    """What the agent cannot see of it: such an engine may look fine without being so."""
    return engine.note or ("no process of it is known" if engine.state == "unknown" else None)


def _engine_unseen(engine: Engine, host: str) -> ProblemRow:
    return ProblemRow(
        severity="warning" if engine.state == "unknown" else "info",
        summary=f"engine {engine.name}: {_unseen(engine)}",
        subject=engine.name,
        host=host,
    )


def _age(since_s: float | None, time_s: float) -> float | None:
    return None if since_s is None else max(time_s - since_s, 0.0)


def _source_down(source: Source, host: str, time_s: float, *, advise: bool) -> ProblemRow:
    """Without it the agent is blind for something, and silent about that. The same advice is not repeated for each."""
    return ProblemRow(
        severity="warning",
        summary=f"source {source.name} is down: {source.reason or 'no reason given'}",
        subject=source.name,
        host=host,
        age_s=_age(source.down_since_s, time_s),
        advice="`aie-agent check` on that host says what cannot be seen, why, and what to do." if advise else "",
    )


def _drops(snapshot: Snapshot, host: str) -> Iterator[ProblemRow]:
    """One line for all: a drop means that numbers below are too low, whichever it was."""
    drops = {what: number for what, number in snapshot.agent.drops.items() if number > 0}
    if drops:
        each = ", ".join(f"{fmt.count(number)} {what}" for what, number in sorted(drops.items()))
        yield ProblemRow(
            severity="info",
            summary=f"agent dropped in the last {fmt.age(snapshot.window_s)}: {each}",
            subject="aie-agent",
            host=host,
        )
