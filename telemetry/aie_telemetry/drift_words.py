"""How far the comparison of an engine's answers is, in words: a sentence for `aie-agent diagnose`, parts for `aie-top`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from aie_telemetry.api_drift import Drift, DriftCanary, DriftStatistic
from aie_telemetry.durations import in_words


def is_alarm(drift: Drift) -> bool:
    """Whether any statistic or canary is one."""
    since_s = [each.alarm_since_s for each in drift.statistics] + [each.alarm_since_s for each in drift.canaries]
    return any(each is not None for each in since_s)


def is_compared(drift: Drift) -> bool:
    """Whether there is a reference, and something of it that can be compared."""
    return bool(drift.reference) and any(not each.untested for each in drift.statistics)


def requests(drift: Drift) -> int:
    """That were looked at, of the statistic that has most."""
    return max((each.requests for each in drift.statistics), default=0)


def share(statistic: DriftStatistic) -> float | None:
    """The distance of the last window as a share of what is too far; None until there is one."""
    if statistic.distance_ratio is None or not statistic.threshold_ratio:
        return None
    return statistic.distance_ratio / statistic.threshold_ratio


def nearest(drift: Drift) -> DriftStatistic | None:
    """The statistic that is nearest to an alarm; None until any has a window."""
    known = [(share(each) or 0.0, each) for each in drift.statistics if share(each) is not None]
    return max(known, key=lambda pair: (pair[1].consecutive, pair[0]))[1] if known else None


def is_shorter(drift: Drift) -> bool:
    """Whether false alarms come sooner, at the present rate, than the reference was made to keep."""
    return drift.run_length_s is not None and drift.promised_s is not None and drift.run_length_s < drift.promised_s


def of_canary(canary: DriftCanary) -> str:
    """What one says."""
    if canary.level_nats is None and canary.alarm_since_s is not None:
        return f"{canary.name} gives no number: the model is broken"
    if canary.level_nats is None and canary.too_noisy:
        return f"{canary.name} is too noisy: its runs lie too far apart to tell what it should give"
    anew = f" (learnt anew: {canary.learnt_anew})" if canary.learnt_anew else ""
    if canary.level_nats is None:
        return f"{canary.name} is learnt: {min(canary.runs, canary.runs_to_learn)} of {canary.runs_to_learn} runs{anew}"
    now = "no number" if canary.last_nats is None else f"{canary.last_nats:.5g}"
    if canary.alarm_since_s is not None:
        return f"{canary.name} gives {now}, and gave {canary.level_nats:.5g}: the model is another"
    return f"{canary.name} gives {now} as at first{anew}"


def told(drift: Drift) -> str:
    """All of it."""
    who = f"{drift.engine}, {drift.model}" if drift.model else drift.engine
    return f"{who}: " + "; ".join((*_comparison(drift), *(f"canary {of_canary(each)}" for each in drift.canaries)))


def _comparison(drift: Drift) -> Iterator[str]:
    if not is_compared(drift):
        untested = next((each.untested for each in drift.statistics if each.untested), "")
        yield f"not compared: {drift.reason or untested or 'nothing came yet'}"
        return
    tested = [each for each in drift.statistics if not each.untested]
    gone = [each.name for each in drift.statistics if each.untested and each.alarm_since_s is not None]
    if gone:
        yield f"{', '.join(gone)} left the range of the reference"
    yield f"compared with {drift.reference}, {len(tested)} of {len(drift.statistics)} statistics, {requests(drift)} requests so far"
    closest = nearest(drift)
    if closest is None:
        yield f"no window of {drift.window_requests} is complete"
    else:
        yield (
            f"nearest is {closest.name}, {closest.distance_ratio:.3f} where {closest.threshold_ratio:.3f} is too far,"
            f" {closest.consecutive} windows in a row too far or with too many values outside"
            f" ({drift.windows_to_alarm} are an alarm)"
        )
    yield from _run_length(drift)


def _run_length(drift: Drift) -> Iterator[str]:
    if drift.run_length_s is None:
        return
    promised = in_words(drift.promised_s or 0.0)
    made_for = drift.promised_requests_per_second or 0.0
    sooner = f", not {promised} as it was made for ({made_for:.2g} requests/s, now {drift.requests_per_second or 0.0:.2g})"
    yield f"a false alarm in {in_words(drift.run_length_s)} at the present rate{sooner if is_shorter(drift) else ''}"
