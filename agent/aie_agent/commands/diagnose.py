"""`aie-agent diagnose`: what is wrong now, by the agent that runs: cause, evidence, what changed before, what to do."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from aie_agent.commands import agent_api
from aie_agent.commands.terminal import complain, printable
from aie_telemetry import api, drift_words
from aie_telemetry.durations import in_words
from aie_telemetry.explained import above

_MAY_LEAK: Final = frozenset({"memory_leak", "memory_fragmentation", "kv_accounting"})
"""Causes that as information say that something may be wrong, or is and there is time. Other causes' information is harmless."""
_SUSPICION: Final = 0.5
"""The confidence of a suspicion, at most (docs/leaks.md)."""
_NO_ENGINE: Final = "no engine is seen, so nothing can be said of any: `aie-agent check` says what is missing, and what to do"


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("diagnose", help="what is wrong now: cause, evidence, what changed before, what to do")
    parser.add_argument("--json", action="store_true", help="one JSON object a finding, one a line")
    parser.add_argument("--agent", default=agent_api.DEFAULT_AGENT, metavar="URL", help="the agent to ask (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: nothing is certainly wrong, though there may be suspicions and what is worth knowing; 1: something is; 2: that
    cannot be said, because the agent cannot be asked, or sees no engine and nothing wrong with the rest."""
    try:
        snapshot = agent_api.snapshot(arguments.agent)
    except agent_api.AgentError as error:
        complain(str(error))
        return 2
    is_blind = not sees_engines(snapshot)
    if arguments.json:
        if is_blind:
            complain(_NO_ENGINE)
        for finding in snapshot.findings:
            sys.stdout.write(msgspec.json.encode(finding).decode() + "\n")
    else:
        print("\n".join(report(snapshot, time.time())))
    if any(finding.severity != "info" for finding in snapshot.findings):
        return 1
    return 2 if is_blind else 0


def sees_engines(snapshot: api.Snapshot) -> bool:
    """Whether there is an engine of which a process or a metric was ever seen."""
    gone = any(finding.cause == "engine_down" for finding in snapshot.findings)
    return gone or any(engine.state != "unknown" or engine.metrics_from for engine in snapshot.engines)


def report(snapshot: api.Snapshot, now_s: float) -> Iterator[str]:
    """The findings for people, those that another explains below it, and what those explain below them; then how far each engine's
    answers are compared."""
    if not sees_engines(snapshot):
        yield _NO_ENGINE
    if all(finding.severity == "info" for finding in snapshot.findings):
        yield _nothing(snapshot)
        down = [source.name for source in snapshot.sources if source.state == "down"]
        if down:
            yield f"  not seen: {', '.join(down)} (aie-agent check says why)"
        unseen = [printable(engine.name) for engine in snapshot.engines if engine.state == "unknown"]
        if unseen:
            yield f"  no process seen of: {', '.join(unseen)}"
    told = list(zip(snapshot.findings, above(snapshot), strict=True))
    for finding, by in told:
        if by is None:
            yield from _finding(finding, now_s)
            yield from _explained(finding, told, "    ")
    for drift in snapshot.drift:
        yield f"drift: {printable(drift_words.told(drift))}"


def _nothing(snapshot: api.Snapshot) -> str:
    """That an engine is gone may be as it was meant; that all is as it should be is not said beside it."""
    gone = {finding.subject for finding in snapshot.findings if finding.cause == "engine_down"}
    gone |= {engine.name for engine in snapshot.engines if engine.state == "down"}
    if gone:
        return f"no alarm, but without a process: {printable(', '.join(sorted(gone)))}"
    rising = [finding for finding in snapshot.findings if finding.cause in _MAY_LEAK]
    suspicions = sum((finding.confidence or 0.0) <= _SUSPICION for finding in rising)
    slow = len(rising) - suspicions
    if slow:
        return f"no alarm; {_counted(slow, 'slow leak')}{', ' + _counted(suspicions, 'suspicion') if suspicions else ''}:"
    if suspicions:
        return f"nothing certain; {_counted(suspicions, 'suspicion')}:"
    if not sees_engines(snapshot):
        return f"of the rest nothing is wrong: {_counted(len(snapshot.gpus), 'GPU')} and the host are as they should be"
    up = sum(engine.state == "up" for engine in snapshot.engines)
    return f"nothing wrong: {up} engines, {len(snapshot.gpus)} GPUs and the host are as they should be"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _explained(finding: api.Finding, told: Sequence[tuple[api.Finding, api.Finding | None]], indent: str) -> Iterator[str]:
    for other, by in told:
        if by is finding:
            yield f"{indent}explains: {printable(f'{other.summary} ({other.cause})')}"
            yield from _explained(other, told, f"{indent}    ")


def _finding(finding: api.Finding, now_s: float) -> Iterator[str]:
    yield f"{finding.severity.upper()}  {printable(finding.summary)}"
    yield f"    {printable(f'{finding.cause}, {finding.subject}')}, for {in_words(max(now_s - finding.since_s, 0.0))}"
    for label, texts in (
        ("because", [each.text for each in finding.evidence]),
        ("before", list(finding.changes)),
        ("not seen", list(finding.not_visible)),
        ("do", [finding.advice] if finding.advice else []),
        ("more", [finding.runbook] if finding.runbook else []),
    ):
        for text in texts:
            yield f"    {label:<9} {printable(text)}"
