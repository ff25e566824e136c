"""Hysteresis: a finding that comes and goes within seconds is one finding, and one that is over at once was none.

It changes when a finding is shown, never whether its cause holds: a cause's own false-alarm rate can only fall. A finding that goes
on keeps the earliest moment at which it is said to have begun, and its graver severity for a while: one that becomes milder for
a second raises no second alarm after it.

What a rule says may return within so long was not over when it did: from then on it lingers twice as long each time, up to that
long, until it stays away for as long. So bursts each minute are one finding after the third. Others do not: what lingers is told
as it was last, hides what it explained, and is not so any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from aie_agent.analysis.explain import RANK
from aie_telemetry.api import Finding, Severity

Key = tuple[str, str, str]
"""A finding's cause, subject and model (`Finding.key`): two models of one engine are two."""


class Steadiness(NamedTuple):
    """For how long a cause must hold without a gap before it is shown, how long it is shown after it was last seen to hold, how
    long it keeps its severity while it goes on after it was last as grave (None: as long as it lingers), and within how long it
    may return, so that it was not over."""

    begins_after_s: float = 0.0
    lingers_s: float = 0.0
    calms_after_s: float | None = None
    returns_s: float = 0.0


_AT_ONCE: Final = Steadiness()


class _Seen(NamedTuple):
    first_s: float
    last_s: float
    finding: Finding
    shown: bool
    severity: Severity
    severe_s: float
    lingers_s: float


class _Gone(NamedTuple):
    """How long a finding lingered before it went, and until when it may return."""

    lingers_s: float
    returns_until_s: float


class Steady:
    """Remembers when each finding was first and last seen."""

    def __init__(self, rules: Mapping[str, Steadiness]) -> None:
        """`rules` by cause; a cause without one is shown at once and goes at once."""
        self._rules = rules
        self._seen: dict[Key, _Seen] = {}
        self._gone: dict[Key, _Gone] = {}

    def update(self, findings: Sequence[Finding], now_s: float) -> list[Finding]:
        """The findings to show at `now_s`, in no particular order; those that linger are as they were last. One that goes on never
        gets younger, also where its cause cannot tell since when it holds."""
        for finding in findings:
            key = finding.key
            before = self._seen.get(key)
            first_s = now_s if before is None else before.first_s
            if before is not None and before.finding.since_s < finding.since_s:
                # It goes on: most causes look back over a window only, and cannot tell when it began.
                finding = msgspec.structs.replace(finding, since_s=before.finding.since_s)
            finding = finding if before is None else _as_old(finding, before.finding.since_s)
            shown = (before is not None and before.shown) or now_s - first_s >= self._rule(finding).begins_after_s
            severity, severe_s = self._severity(finding, before, now_s)
            finding = msgspec.structs.replace(finding, severity=severity)
            lingers_s = self._lingers_s(finding, now_s) if before is None else before.lingers_s
            self._seen[key] = _Seen(first_s, now_s, finding, shown, severity, severe_s, lingers_s)
        self._forget(now_s)
        return [seen.finding for seen in self._seen.values() if seen.shown]

    def _forget(self, now_s: float) -> None:
        """What is over; and, once it stayed away, that it was ever there."""
        over = {key: seen for key, seen in self._seen.items() if not _stays(seen, now_s)}
        self._seen = {key: seen for key, seen in self._seen.items() if key not in over}
        went = {key: _Gone(seen.lingers_s, now_s + self._rule(seen.finding).returns_s) for key, seen in over.items() if seen.shown}
        self._gone = {key: gone for key, gone in (self._gone | went).items() if now_s < gone.returns_until_s}

    def _lingers_s(self, finding: Finding, now_s: float) -> float:
        """Of a finding that begins: longer where it was gone for a moment only."""
        rule = self._rule(finding)
        gone = self._gone.get(finding.key)
        if gone is None or now_s >= gone.returns_until_s:
            return rule.lingers_s
        return min(2 * gone.lingers_s, rule.returns_s)

    def since_s(self, cause: str, subject: str) -> float | None:
        """Since when a finding that is shown, or lingers, is said to hold, of the subject as a whole; None where there is none."""
        finding = self.shown(cause, subject)
        return None if finding is None else finding.since_s

    def shown(self, cause: str, subject: str) -> Finding | None:
        """The finding itself, as it was last."""
        seen = self._seen.get((cause, subject, ""))
        return seen.finding if seen is not None and seen.shown else None

    def _severity(self, finding: Finding, before: _Seen | None, now_s: float) -> tuple[Severity, float]:
        """The severity to show, and when the cause last had it itself."""
        if before is None or RANK[before.severity] >= RANK[finding.severity]:
            return finding.severity, now_s
        calms_after_s = self._rule(finding).calms_after_s
        if now_s - before.severe_s < (before.lingers_s if calms_after_s is None else calms_after_s):
            return before.severity, before.severe_s
        return finding.severity, now_s

    def _rule(self, finding: Finding) -> Steadiness:
        return self._rules.get(finding.cause, _AT_ONCE)


def _as_old(finding: Finding, since_s: float) -> Finding:
    return finding if finding.since_s <= since_s else msgspec.structs.replace(finding, since_s=since_s)


def _stays(seen: _Seen, now_s: float) -> bool:
    """What was not shown yet goes with its first gap."""
    return seen.last_s == now_s or (seen.shown and now_s - seen.last_s < seen.lingers_s)
