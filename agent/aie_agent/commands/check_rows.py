"""A row of `aie-agent check`, and those that the running agent gives: what is wrong at present, and its engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from aie_telemetry import api

_TGIDS_SHOWN: Final = 4


class Row(NamedTuple):
    """One thing that aie sees or does not: `needed` marks what the configuration asks for, and so decides the exit status. `wrong`
    is something that is seen, and is not as it should be: it does not."""

    what: str
    visible: bool
    needed: bool
    found: str
    remedy: str = ""
    wrong: bool = False


def tgids_shown(tgids: Sequence[int]) -> str:
    """The first processes, as text."""
    return ", ".join(map(str, tgids[:_TGIDS_SHOWN])) + ("" if len(tgids) <= _TGIDS_SHOWN else ", ...")


def finding_rows(agent: api.Snapshot) -> Iterator[Row]:
    """What the agent finds wrong at present, and what to do."""
    for finding in agent.findings:
        lasts_s = max(agent.time_s - finding.since_s, 0.0)
        found = f"{finding.summary} ({finding.severity}, for {lasts_s:.0f} s)"
        yield Row(f"{finding.cause}: {finding.subject}", True, False, found, finding.advice, wrong=True)


def engine_rows(agent: api.Snapshot) -> Iterator[Row]:
    """The engines that the agent knows of, by its names."""
    for engine in agent.engines:
        tgids = tgids_shown([process.tgid for process in engine.processes])
        parts = (
            engine.kind,
            engine.state,
            f"process {tgids}" if tgids else None,
            f"numbers from {', '.join(engine.metrics_from)}" if engine.metrics_from else "no numbers of its own at present",
            engine.page_reason,
            engine.note,
        )
        yield Row(f"engine {engine.name}", engine.state == "up", False, "; ".join(filter(None, parts)))


def known_as(agent: api.Snapshot | None, tgids: Sequence[int]) -> str | None:
    """What the agent calls the engine of these processes; None where it knows none of them."""
    engines = agent.engines if agent is not None else ()
    return next((each.name for each in engines if {process.tgid for process in each.processes}.intersection(tgids)), None)
