"""From one view after another to what is wrong: causes and analysers, steadied, explained, with what changed before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from aie_agent.analysis.analyser import Analyser
from aie_agent.analysis.causes import ENGINE_CAUSES, EXPLAINS, STEADINESS, SUBJECT_CAUSES
from aie_agent.analysis.changes import Changes
from aie_agent.analysis.engine_causes.last_heard import LastHeard
from aie_agent.analysis.explain import RANK, Related, explain
from aie_agent.analysis.findings import EngineCause, SubjectCause, View
from aie_agent.analysis.placement import Placement
from aie_agent.analysis.steady import Steady
from aie_agent.samples import Point
from aie_telemetry.api import Finding

log = logging.getLogger(__name__)

_CHANGES: Final = "changes"


class Diagnosis:
    """All of the analysis. Pure but for its own small state: what lingers, what changed, what ran in engines that are gone, what
    the analysers remember."""

    def __init__(
        self,
        analysers: Sequence[Analyser] = (),
        engine_causes: Sequence[EngineCause] = ENGINE_CAUSES,
        subject_causes: Sequence[SubjectCause] = SUBJECT_CAUSES,
    ) -> None:
        self._analysers = analysers
        self._engine_causes = engine_causes
        self._subject_causes = subject_causes
        self._steady = Steady(STEADINESS)
        self._changes = Changes()
        self._placement = Placement()
        self._last_heard = LastHeard()

    def update(self, view: View, now_s: float) -> tuple[Finding, ...]:
        """What is wrong at `now_s`: the worst first, among equals the newest; what another explains comes last."""
        self._changes.observe(view, now_s)
        for analyser in self._analysers:
            analyser.observe(view, now_s)
        self._placement.observe(view, now_s)
        self._last_heard.observe(view, now_s)
        related = self._placement.related
        found = sorted(self._steady.update(self._found(view, now_s), now_s), key=_rank)
        told = [self._told(finding, related) for finding in explain(found, EXPLAINS, related)]
        return tuple(sorted(told, key=lambda finding: bool(finding.explained_by)))

    def points(self, now_s: float) -> list[Point]:
        """The analysers' metrics."""
        return [point for analyser in self._analysers for point in analyser.points(now_s)]

    def dump(self) -> Mapping[str, Any]:
        """What must survive a restart of the agent."""
        return {_CHANGES: self._changes.dump(), **{analyser.name: analyser.dump() for analyser in self._analysers}}

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Goes on from what `dump` gave. A part that cannot be used begins anew, and the log says so."""
        by_name = {each.name: each for each in self._analysers}
        for name, part in state.items():
            try:
                if name == _CHANGES:
                    self._changes.restore(part)
                elif name in by_name:
                    by_name[name].restore(part, now_s)
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # whatever the file holds
                log.warning("state of %s is not used: %s", name, error)

    def _told(self, finding: Finding, related: Related) -> Finding:
        """With what changed before, and with its page."""
        changes = finding.changes or self._changes.before(finding, related)
        page = finding.runbook or f"docs/runbooks/{finding.cause}.md"
        return msgspec.structs.replace(finding, changes=changes, runbook=page)

    def _found(self, view: View, now_s: float) -> list[Finding]:
        view = replace(view, held_since_s=self._steady.since_s, held=self._steady.shown, last_heard=self._last_heard.of)
        of_engines = [found for engine in view.engines for cause in self._engine_causes if (found := cause(view, engine, now_s))]
        of_others = [finding for cause in self._subject_causes for finding in cause(view, now_s)]
        of_analysers = [finding for analyser in self._analysers for finding in analyser.findings(now_s)]
        return of_engines + of_others + of_analysers


def _rank(finding: Finding) -> tuple[int, float]:
    return RANK[finding.severity], -finding.since_s
