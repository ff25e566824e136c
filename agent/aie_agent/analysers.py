"""The analysers that the configuration asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from aie_agent.analysis.analyser import Analyser
from aie_agent.analysis.drift.analyser import DriftAnalyser
from aie_agent.analysis.drift.files import assigned
from aie_agent.analysis.engine_causes.cache_watch import CacheAnalyser
from aie_agent.analysis.leaks.analyser import LeakAnalyser
from aie_agent.analysis.leaks.settings import MEGABYTE, LeakSettings
from aie_agent.config import Config, LeaksSection
from aie_telemetry.api import Drift

log = logging.getLogger(__name__)


def build(config: Config) -> list[Analyser]:
    """Reads the references of drift; what cannot be used is told to the log, and the rest goes on."""
    analysers: list[Analyser] = [CacheAnalyser()]
    if config.leaks.enabled:
        analysers.append(LeakAnalyser(leak_settings(config.leaks)))
    if config.drift.enabled:
        references, problems = assigned(config.drift.references)
        for problem in problems:
            log.warning("%s: it is not compared", problem)
        analysers.append(DriftAnalyser(references, config.drift.canary_since))
    return analysers


def drift_of(analysers: Sequence[Analyser]) -> Callable[[Sequence[str], float], tuple[Drift, ...]]:
    """What the one of drift shows of engines at a time; nothing where it is off."""
    own = next((each for each in analysers if isinstance(each, DriftAnalyser)), None)
    return (lambda engines, now_s: ()) if own is None else own.shown


def leak_settings(section: LeaksSection) -> LeakSettings:
    """The thresholds of [leaks], at its time scale."""
    return LeakSettings(
        warm_up_s=section.warm_up,
        warm_up_requests=section.warm_up_requests,
        limit_bytes_per_s=section.limit_mb_per_hour * MEGABYTE / 3600,
        horizon_s=section.horizon,
    ).scaled(section.time_scale)
