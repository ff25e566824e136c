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


class Degraded(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file: an engine, why, since when, in seconds since the epoch by the agent's clock."""

    engine: str
    cause: str
    severity: str
    since_s: float
    summary: str


class DegradeFile:
    """Written whole and put in place at once, when something changed; a JSON object a line. Removed when nothing is wrong. Never
    raises: a file that cannot be written is told to the log, once."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is written. What stands there from before is taken for a file of an earlier run."""
        self._path = path
        self._written: bytes | None = None
        self._complained = False

    def update(self, findings: Sequence[Finding]) -> None:
        """The findings that hold now."""
        if self._path is None:
            return
        content = b"".join(msgspec.json.encode(_row(finding)) + b"\n" for finding in findings if finding.cause in DEGRADING)
        if content == self._written:
            return
        try:
            self._put(self._path, content)
            self._written, self._complained = content, False
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


def _row(finding: Finding) -> Degraded:
    return Degraded(
        engine=finding.subject,
        cause=finding.cause,
        severity=finding.severity,
        since_s=finding.since_s,
        summary=finding.summary,
    )
