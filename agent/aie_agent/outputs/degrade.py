"""A file that is there while an engine's answers are not to be trusted: an engine, or what routes to it, may watch it and degrade.
Off by default: only who asks for it is acted upon."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from aie_telemetry.api import Finding

log = logging.getLogger(__name__)

DEGRADING: Final = frozenset({"input_drift", "output_drift", "output_collapse", "nan_logits"})
"""Causes for which the file is written."""


VALID_S: Final = 120.0
"""So long a line holds. An agent that was killed leaves its file behind: who reads it looks at `expires_s` first."""

_RENEWED_S: Final = 30.0
"""After so long it is written anew, where nothing changed."""


class Degraded(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file: an engine, why, since when, and until when that holds unless it is written anew, in seconds since the
    epoch by the agent's clock."""

    engine: str
    cause: str
    severity: str
    since_s: float
    expires_s: float
    summary: str


class DegradeFile:
    """Written whole and put in place at once, when something changed or what stands there grows old; a JSON object a line. Removed
    when nothing is wrong. What is only worth knowing (info), or is explained by another finding, is left out. Never raises: a file
    that cannot be written is told to the log, once."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is written. What stands there from before is taken for a file of an earlier run."""
        self._path = path
        self._written: list[Finding] | None = None
        self._written_s = 0.0
        self._complained = False

    def update(self, findings: Sequence[Finding], now_s: float) -> None:
        """The findings that hold now, seconds since the epoch."""
        if self._path is None:
            return
        untrusted = [finding for finding in findings if _is_degrading(finding)]
        is_old = bool(untrusted) and not 0.0 <= now_s - self._written_s < _RENEWED_S
        if self._written is not None and not is_old and _told(untrusted) == _told(self._written):
            return
        try:
            self._put(self._path, b"".join(msgspec.json.encode(_row(finding, now_s)) + b"\n" for finding in untrusted))
            self._written, self._written_s, self._complained = untrusted, now_s, False
        except OSError as error:
            if not self._complained:
                log.warning("drift.on_alarm: %s cannot be written: %s", self._path, error.strerror)
            self._complained = True

    def _put(self, path: Path, content: bytes) -> None:
        if not content:
            path.unlink(missing_ok=True)
            return
        scratch = path.with_name(f"{path.name}.new")
        scratch.write_bytes(content)
        scratch.replace(path)


def _is_degrading(finding: Finding) -> bool:
    return finding.cause in DEGRADING and finding.severity != "info" and not finding.explained_by


def _told(findings: Sequence[Finding]) -> list[tuple[str, str, str, float]]:
    """What makes a difference to who reads the file: not the numbers in a summary, which change with every request."""
    return [(finding.subject, finding.cause, finding.severity, finding.since_s) for finding in findings]


def _row(finding: Finding, now_s: float) -> Degraded:
    return Degraded(
        engine=finding.subject,
        cause=finding.cause,
        severity=finding.severity,
        since_s=finding.since_s,
        expires_s=now_s + VALID_S,
        summary=finding.summary,
    )
