"""The leak analysis as the configuration wants it."""

from __future__ import annotations

from aie_agent.analysis.leaks.analyser import LeakAnalyser
from aie_agent.analysis.leaks.settings import MEGABYTE, LeakSettings
from aie_agent.config import LeaksSection


def settings_of(section: LeaksSection) -> LeakSettings:
    """The thresholds of [leaks], its time scale taken in."""
    plain = LeakSettings(
        warm_up_s=float(section.warm_up),
        warm_up_requests=float(section.warm_up_requests),
        warm_up_most_s=max(LeakSettings().warm_up_most_s, float(section.warm_up)),
        limit_bytes_per_s=section.limit_mb_per_hour * MEGABYTE / 3600,
        horizon_s=float(section.horizon),
    )
    return plain.scaled(section.time_scale)


def build(section: LeaksSection) -> tuple[LeakAnalyser, ...]:
    """The analyser; none where it is switched off."""
    return (LeakAnalyser(settings_of(section)),) if section.enabled else ()
