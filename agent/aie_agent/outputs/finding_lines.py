"""Findings as lines of JSON, for whoever reads the agent's standard output: a log shipper, a script."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TextIO

import msgspec

from aie_telemetry.api import Finding

log = logging.getLogger(__name__)


class FindingLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a finding begins, is another than before (severity, or what explains it), or is over."""

    time_s: float
    state: str
    finding: Finding


def _standing(finding: Finding) -> tuple[str, str, str]:
    return finding.severity, finding.explained_by, finding.explained_by_subject


class FindingLines:
    """Writes a line for each finding that comes, changes or goes. A reader that went away ends it, and nothing else."""

    def __init__(self, stream: TextIO | None) -> None:
        """None: nothing is written."""
        self._stream = stream
        self._known: dict[tuple[str, str, str], Finding] = {}

    def update(self, findings: Sequence[Finding], now_s: float) -> None:
        """The findings that hold now."""
        known = {each.key: each for each in findings}
        for key, before in self._known.items():
            if key not in known:
                self._write(FindingLine(time_s=now_s, state="over", finding=before))
        for key, finding in known.items():
            before_ = self._known.get(key)
            if before_ is None:
                self._write(FindingLine(time_s=now_s, state="begun", finding=finding))
            elif _standing(before_) != _standing(finding):
                self._write(FindingLine(time_s=now_s, state="changed", finding=finding))
        self._known = known

    def _write(self, line: FindingLine) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(msgspec.json.encode(line).decode() + "\n")
            self._stream.flush()
        except (OSError, ValueError) as error:  # a closed pipe, or a closed file
            log.warning("findings are no longer written to standard output: %s", error)
            with contextlib.suppress(OSError, ValueError):
                self._stream.close()
            self._stream = None
