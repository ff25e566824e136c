"""Findings come and go: each time is an event and a line in the log, so that who comes later sees what was."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from aie_agent.sources.statsd_events import EventIntake
from aie_telemetry.api import Event, Finding

log = logging.getLogger(__name__)

KIND: Final = "finding"
"""The kind of the agent's own events: none that anybody may send."""

BEGUN: Final = "begun"
OVER: Final = "over"


class FindingHistory:
    """Compares what is wrong with what was. A finding is told by its key; as many are told as events of hooks are taken, so that
    one that comes and goes all the time pushes nothing out."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], tuple[Finding, float]] = {}
        self._intake = EventIntake()

    def update(self, findings: Sequence[Finding], now_s: float) -> list[Event]:
        """What came and what went since the last time, as events; says the same in the log."""
        known = {each.key: each for each in findings}
        before = self._known
        for key, (finding, since_s) in before.items():
            if key not in known:
                self._tell(finding, OVER, since_s, now_s)
        for key, finding in known.items():
            if key not in before:
                self._tell(finding, BEGUN, finding.since_s, now_s)
        self._known = {key: (each, min(each.since_s, before[key][1] if key in before else now_s)) for key, each in known.items()}
        return self._intake.take(now_s)

    def _tell(self, finding: Finding, state: str, since_s: float, now_s: float) -> None:
        details: dict[str, float | str] = {
            "state": state,
            "cause": finding.cause,
            "severity": finding.severity,
            "since_s": since_s,
            "lasted_s": now_s - since_s,
        }
        lasted = f"{now_s - since_s:.0f} s"
        summary = f"over after {lasted}: {finding.summary}" if state == OVER else finding.summary
        if self._intake.add(Event(time_s=now_s, kind=KIND, engine=finding.subject, summary=summary, details=details)):
            write = log.warning if state == BEGUN and finding.severity != "info" else log.info
            write("%s%s", summary, "" if state == OVER else f" ({finding.cause}, for {lasted})")


def is_finding(event: Event) -> bool:
    """Whether an event says that a finding began or ended."""
    return event.kind == KIND


def is_current(event: Event) -> bool:
    """Whether an event only says what stands among the findings, or stood there: that one began."""
    return event.kind == KIND and event.details.get("state") == BEGUN
