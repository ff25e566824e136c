"""Whether traffic and answers still look as they did: `aie_drift_*`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.metric import Metric, counter, gauge

_ENGINE = ("engine", "model")
_STATISTIC = (*_ENGINE, "statistic")

DRIFT_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_drift_watching", "1", _ENGINE,
           "1 while an engine's requests are compared with a reference, 0 while they come and none fits, or none of its statistics tells enough. Absent where its hooks send no numbers of requests."),
    gauge("aie_drift_reference_info", "1", (*_ENGINE, "reference", "traffic_class"), "Always 1; the labels tell the reference, by the beginning of its hash, and whose requests it was recorded of."),
    gauge("aie_drift_distance_ratio", "ratio", _STATISTIC,
           "Kolmogorov-Smirnov distance of the last complete window of 100 requests from the reference, 0 to 1. Windows share no request."),
    gauge("aie_drift_running_distance_ratio", "ratio", _STATISTIC,
           "The same of the last 100 requests, wherever windows begin. For information, not for alerts: such windows overlap, and chance brings them beyond the threshold within some thousand requests."),
    gauge("aie_drift_threshold_ratio", "ratio", _STATISTIC, "The distance from which on a window counts: that of p < 0.01, or more where the replay of the reference asks for it."),
    gauge("aie_drift_consecutive_windows", "windows", _STATISTIC, "Windows in a row that count at present, by their distance or by what lies outside the reference. Five are an alarm."),
    gauge("aie_drift_alarm", "1", _STATISTIC,
           "1 while a statistic is an alarm: five windows in a row beyond the threshold or with too many values that the reference hardly had, one and the same value again and again, or hardly any scatter; and until a hundred numbers came after a value that is none, as no float32 holds it."),
    gauge("aie_drift_outside_ratio", "ratio", _STATISTIC, "Share of the last window's values outside the reference's 1st to 99th percentile; 0.02 is expected."),
    gauge("aie_drift_unseen_ratio", "ratio", _STATISTIC, "Share of the last window's values far beyond all of the reference's: by more than rounding does (docs/drift.md); 0.04 counts, more where the reference has fewer than 1000 values or they depend on each other."),
    gauge("aie_drift_output_stability_ratio", "ratio", _STATISTIC,
           "Standard deviation of the last 1000 requests over that of the reference; about 1 where nothing changed. Absent until there are as many."),
    gauge("aie_drift_canary_level_nats", "nats", (*_ENGINE, "canary"), "Log-probability that a canary's first runs gave (their median). Absent until there are twenty."),
    gauge("aie_drift_canary_limit_nats", "nats", (*_ENGINE, "canary"), "How far from that level a run may be and counts as the same: three times the farthest of the first runs, and not less than what another batch may make."),
    gauge("aie_drift_canary_alarm", "1", (*_ENGINE, "canary"), "1 while three runs of a canary in a row were further from its level: the model is another than it was."),
    gauge("aie_drift_run_length_requests", "requests", _ENGINE,
           "Requests between two false alarms, all statistics together, at least, as the reference was calibrated."),
    gauge("aie_drift_run_length_seconds", "seconds", _ENGINE, "The same in time, at the rate at which requests were looked at over the last ten minutes. Holds for traffic as in the recording: docs/drift.md."),
    counter("aie_drift_windows_total", "windows", _STATISTIC, "Windows of 100 requests that were compared."),
    counter("aie_drift_windows_beyond_total", "windows", _STATISTIC, "Those beyond the threshold; about one in a hundred where nothing changed."),
    counter("aie_drift_values_total", "values", _STATISTIC, "Requests that were looked at."),
    counter("aie_drift_values_lost_total", "values", _STATISTIC, "Requests that were not looked at, because more than 1000 came in a second."),
)  # fmt: skip
