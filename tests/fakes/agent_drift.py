"""What an agent tells of drift, for the tests of those that show it: an alarm, a canary alone, a beginning, and reasons why not."""

from __future__ import annotations

import agent_api as fake
import msgspec

from aie_telemetry.api import Drift, DriftCanary, DriftStatistic, Engine, Snapshot

HOUR_S = 3600.0
THRESHOLD = 0.169


def statistic(name: str, distance: float | None, **more: float | int | str | None) -> DriftStatistic:
    """Of an engine that 1230 requests were looked at of."""
    usual = {"name": name, "requests": 1230, "windows": 12, "windows_beyond": 0, "consecutive": 0, "threshold_ratio": THRESHOLD}
    return msgspec.convert({**usual, "distance_ratio": distance, "running_distance_ratio": distance, **more}, DriftStatistic)


def canary(**more: float | int | str | None) -> DriftCanary:
    """One that is as it was."""
    usual = {"name": "default", "runs": 620, "runs_to_learn": 20, "last_run_age_s": 12.0, "last_nats": -4.8752}
    return msgspec.convert({**usual, "level_nats": -4.8752, "limit_nats": 0.02, **more}, DriftCanary)


def compared(engine: str, model: str, *statistics: DriftStatistic, **more: object) -> Drift:
    """An engine with a reference of a day, made for one request a second."""
    usual = {
        "engine": engine,
        "model": model,
        "reference": "chat.aieref 9b1f02c4d7e8",
        "traffic_class": "chat",
        "window_requests": 100,
        "windows_to_alarm": 5,
        "requests_per_second": 0.4,
        "run_length_requests": 3.1e6,
        "run_length_s": 7.75e6,
        "promised_s": 30 * 24 * HOUR_S,
        "promised_requests_per_second": 1.0,
        "recorded_s": 25.0 * HOUR_S,
    }
    return msgspec.convert({**usual, **more, "statistics": statistics}, Drift)


STEADY = compared(
    "smollm2",
    "smollm2",
    statistic("entropy", 0.071, windows_beyond=1),
    statistic("surprisal", 0.088),
    statistic("first_token_logsumexp", 0.102, consecutive=0),
    statistic("log_length", None, threshold_ratio=None, untested="9 distinct values, fewer than 20"),
    canaries=(canary(),),
)
ALARM = compared(
    "llama-70b",
    "llama-3.1-70b-instruct",
    statistic("entropy", 0.312, windows_beyond=7, consecutive=7, alarm_since_s=1.0),
    statistic("surprisal", 0.201, windows_beyond=3, consecutive=2),
    statistic("first_token_logsumexp", 0.064),
    statistic("log_length", 0.051),
    requests_per_second=8.0,
    run_length_s=3.875e5,
    canaries=(canary(last_nats=-5.0261, alarm_since_s=2.0),),
)
BEGINNING = compared("reranker", "reranker-base", statistic("entropy", None, requests=37, windows=0), run_length_s=None)
CANARY_ALONE = Drift(
    engine="embedder",
    model="bge-small",
    reason="no reference for the model 'bge-small' (there is one for: smollm2)",
    canaries=(canary(runs=7, level_nats=None, limit_nats=None),),
)
LEARNT_ANEW = msgspec.structs.replace(
    CANARY_ALONE, canaries=(canary(runs=7, level_nats=None, limit_nats=None, learnt_anew="the engine restarted"),)
)
SILENT = Drift(engine="plain", reason="no numbers of single requests: its hooks send none (docs/instrument-your-engine.md)")


def snapshot() -> Snapshot:
    """Five engines, each with one of these."""
    drift = (ALARM, BEGINNING, LEARNT_ANEW, SILENT, STEADY)
    engines = tuple(Engine(name=each.engine, state="up", model=each.model or None) for each in drift)
    return msgspec.structs.replace(fake.healthy(5), engines=engines, memory=(), drift=drift)
