"""How far the comparison of an engine's answers is, as the API says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aie_agent.analysis.drift.canary import LEARNT, CanaryWatch
from aie_agent.analysis.drift.collapse import alike_since_s
from aie_agent.analysis.drift.rule import CONSECUTIVE, WINDOW
from aie_agent.analysis.drift.stream import EngineStream
from aie_agent.analysis.drift.watch import StatisticWatch
from aie_telemetry.api import Drift, DriftCanary, DriftStatistic

NOTHING_COMES = "no numbers of single requests came: nobody asked, or its hooks send none (docs/instrument-your-engine.md)"
"""Why an engine is not watched that sends nothing."""

_TOLD_S: Final = 86400.0
"""For so long it is told that a canary was learnt anew."""


def watched(engine: str, model: str, stream: EngineStream, name: str, canaries: Mapping[str, CanaryWatch], now_s: float) -> Drift:
    """Of an engine and model that are compared with a reference of this name."""
    header = stream.reference.header
    hours = header.about.span_hours
    alike = alike_since_s(stream.watches)
    return Drift(
        engine=engine,
        model=model,
        reference=f"{name} {header.sha256[:12]}".strip(),
        traffic_class=header.about.traffic_class,
        reason="" if stream.is_compared else _untested(stream),
        window_requests=WINDOW,
        windows_to_alarm=CONSECUTIVE,
        requests_per_second=stream.rate.per_second(now_s),
        run_length_requests=stream.run_length_requests,
        run_length_s=stream.run_length_s(now_s),
        promised_s=header.aim.days * 86400.0,
        promised_requests_per_second=header.aim.requests_per_second,
        recorded_s=None if hours is None else hours * 3600.0,
        statistics=tuple(_statistic(name, watch, alike.get(name)) for name, watch in stream.watches.items()),
        canaries=_canaries(canaries, now_s),
    )


def _untested(stream: EngineStream) -> str:
    """Why nothing is compared: what the reference says of each statistic."""
    reasons = (f"{name}: {watch.column.untested}" for name, watch in stream.watches.items())
    return f"{'; '.join(reasons)}; looked at is only whether it leaves the reference's range"


def unwatched(engine: str, model: str, reason: str, canaries: Mapping[str, CanaryWatch], now_s: float) -> Drift:
    """Of one that is not."""
    return Drift(engine=engine, model=model, reason=reason, canaries=_canaries(canaries, now_s))


def _statistic(name: str, watch: StatisticWatch, alike_since_s: float | None) -> DriftStatistic:
    column, last = watch.column, watch.last
    since_s = [*watch.alarms.values(), *([] if alike_since_s is None or column.untested else [alike_since_s])]
    return DriftStatistic(
        name=name,
        requests=watch.taken,
        windows=watch.windows,
        windows_beyond=watch.windows_beyond,
        consecutive=watch.consecutive,
        distance_ratio=None if last is None else last.distance,
        running_distance_ratio=watch.running_distance(),
        threshold_ratio=None if column.untested else column.threshold,
        alarm_since_s=min(since_s, default=None),
        untested=column.untested,
    )


def _canaries(canaries: Mapping[str, CanaryWatch], now_s: float) -> tuple[DriftCanary, ...]:
    return tuple(
        DriftCanary(
            name=name,
            runs=len(watch.learnt) if watch.level is None else watch.runs,
            runs_to_learn=LEARNT,
            last_run_age_s=max(0.0, now_s - watch.seen_s),
            last_nats=watch.last,
            level_nats=watch.level,
            limit_nats=watch.limit,
            alarm_since_s=watch.since_s,
            too_noisy=watch.is_noisy,
            learnt_anew=watch.anew if watch.anew_s is not None and now_s - watch.anew_s <= _TOLD_S else "",
        )
        for name, watch in sorted(canaries.items())
    )
