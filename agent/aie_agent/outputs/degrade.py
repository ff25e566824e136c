"""A file that is there while an engine's answers are not to be trusted: an engine, or what routes to it, may watch it and degrade.
Off by default: only who asks for it is acted upon."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from aie_agent.outputs.placed_file import place
from aie_telemetry.api import Finding
from aie_telemetry.degraded import VALID_S, Degraded

log = logging.getLogger(__name__)

DEGRADING: Final = frozenset({"input_drift", "output_drift", "output_collapse", "nan_logits"})
"""Causes for which the file is written."""

_RENEWED_S: Final = 30.0
"""After so long it is written anew, where nothing changed."""


class Renewal:
    """When to say what holds: at once where it changed, and again where what was said grows old. The first time always, so that
    what an agent of before left behind is set right."""

    def __init__(self) -> None:
        self._said: list[Finding] | None = None
        self._said_s = 0.0

    def due(self, findings: Sequence[Finding], now_s: float) -> list[Finding] | None:
        """Those of the findings that are to be said now, none of them where nothing is wrong; None when there is nothing to say."""
        untrusted = [finding for finding in findings if _is_degrading(finding)]
        is_old = bool(untrusted) and not 0.0 <= now_s - self._said_s < _RENEWED_S
        return None if self._said is not None and not is_old and _told(untrusted) == _told(self._said) else untrusted

    def said(self, untrusted: list[Finding], now_s: float) -> None:
        """What was due has been said."""
        self._said, self._said_s = untrusted, now_s


class DegradeFile:
    """Written whole and put in place at once, when something changed or what stands there grows old; a JSON object a line. Removed
    when nothing is wrong. What is only worth knowing (info), or is explained by another finding, is left out. Never raises: a file
    that cannot be written is told to the log, once."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is written. What stands there from before is taken for a file of an earlier run."""
        self._path = path
        self._renewal = Renewal()
        self._complained = False

    @property
    def is_on(self) -> bool:
        """Whether anything is written at all."""
        return self._path is not None

    def update(self, findings: Sequence[Finding], now_s: float) -> None:
        """The findings that hold now, seconds since the epoch."""
        untrusted = None if self._path is None else self._renewal.due(findings, now_s)
        if self._path is None or untrusted is None:
            return
        try:
            place(self._path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows(untrusted, now_s)))
            self._renewal.said(untrusted, now_s)
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning("drift.on_alarm: %s cannot be written: %s", self._path, error.strerror)
            self._complained = True


def _is_degrading(finding: Finding) -> bool:
    return finding.cause in DEGRADING and finding.severity != "info" and not finding.explained_by


def _told(findings: Sequence[Finding]) -> list[tuple[tuple[str, str, str], str, float]]:
    """What makes a difference to who reads the file: not the numbers in a summary, which change with every request."""
    return [(finding.key, finding.severity, finding.since_s) for finding in findings]


def rows(untrusted: Sequence[Finding], now_s: float) -> list[Degraded]:
    """The findings as they are said at `now_s`."""
    return [
        Degraded(
            engine=finding.subject,
            model=finding.model,
            cause=finding.cause,
            severity=finding.severity,
            since_s=finding.since_s,
            expires_s=now_s + VALID_S,
            summary=finding.summary,
        )
        for finding in untrusted
    ]
