"""What an analyser is that remembers: its own small state, fed once a tick, saved to disk and restored.

Most causes need no memory of their own: they are functions (findings.EngineCause). A leak takes a day to show, and drift a thousand
requests: those are analysers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aie_agent.analysis.findings import View
from aie_agent.samples import Point
from aie_telemetry.api import Finding


class Analyser(Protocol):
    """A pure object: it reads no clock and no file; the same views at the same times give the same findings, live or replayed."""

    @property
    def name(self) -> str:
        """Of its state on disk, and of nothing else."""

    def observe(self, view: View, now_s: float) -> None:
        """Takes what is new in the view. Called once a tick, about once a second; cheap when nothing is due."""

    def findings(self, now_s: float) -> Sequence[Finding]:
        """What is wrong now, by what was observed."""

    def points(self, now_s: float) -> Sequence[Point]:
        """Its metrics, of the families `aie_leak_*` or `aie_drift_*`."""

    def dump(self) -> Mapping[str, Any]:
        """Its state, as numbers, strings, lists and mappings: a few KB an engine."""

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Goes on from a state that `dump` gave before a restart. Raises ValueError when it is none: it then begins anew."""
