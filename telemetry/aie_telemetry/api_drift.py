"""The part of the API's schema (`api.py`, which has all of this too) that says how an engine's answers are compared."""

from __future__ import annotations

import msgspec


class DriftStatistic(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic beside its reference. Distances are 0 to 1: of the last complete window, and of the last requests wherever
    windows begin. `windows_beyond` of the `windows` were beyond `threshold_ratio`. `consecutive` windows in a row count now: they
    are beyond it, or hold too many values that the reference hardly had. `untested` says why it is not compared, "" where it is.
    `alarm_since_s` is null where there is no alarm."""

    name: str
    requests: int
    windows: int
    windows_beyond: int
    consecutive: int
    distance_ratio: float | None = None
    running_distance_ratio: float | None = None
    threshold_ratio: float | None = None
    alarm_since_s: float | None = None
    untested: str = ""


class DriftCanary(msgspec.Struct, frozen=True, kw_only=True):
    """One fixed prompt, and the log-probability that it gives (null where the last run gave none). `level_nats` is what its first
    runs gave; null while they are not `runs_to_learn`, or where they are `too_noisy`: so far apart that no level can be told,
    though it is learnt anew from the next. `learnt_anew` says why what was learnt before was forgotten, "" where it was not within
    a day."""

    name: str
    runs: int
    runs_to_learn: int
    last_run_age_s: float
    last_nats: float | None = None
    level_nats: float | None = None
    limit_nats: float | None = None
    alarm_since_s: float | None = None
    too_noisy: bool = False
    learnt_anew: str = ""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and model, whether its answers are compared with a reference, and how far that is. `reference` is its name and the
    beginning of its hash, "" where there is none; `reason` says why there is none, or why nothing is compared with it. An alarm
    takes `windows_to_alarm` windows of `window_requests` in a row. `run_length_s` is how long it is between two false alarms at the
    present rate of requests that are looked at, null where that is not known; `promised_s` what the reference was made to keep, at
    `promised_requests_per_second`. `recorded_s` is how long the reference was recorded."""

    engine: str
    model: str = ""
    reference: str = ""
    traffic_class: str = ""
    reason: str = ""
    window_requests: int = 0
    windows_to_alarm: int = 0
    requests_per_second: float | None = None
    run_length_requests: float | None = None
    run_length_s: float | None = None
    promised_s: float | None = None
    promised_requests_per_second: float | None = None
    recorded_s: float | None = None
    statistics: tuple[DriftStatistic, ...] = ()
    canaries: tuple[DriftCanary, ...] = ()
