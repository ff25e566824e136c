"""What canaries say, in sentences and as a finding of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aie_agent.analysis.drift.canary import CONSECUTIVE_RUNS, LEARNT, OF_RUNS, OFTEN, CanaryWatch
from aie_telemetry.api import Evidence, Finding

METRIC: Final = "aie_engine_canary_logprob_nats"

ADVICE: Final = (
    "One fixed prompt gives another number than it did, so it is the model that changed, not what is asked: weights, quantisation,"
    " kernels, driver, a GPU that computes wrong. Go back to the version before, or, where the change is wanted, set"
    " drift.canary_since to now and restart the agent."
)


def changed(canaries: Mapping[str, CanaryWatch]) -> dict[str, CanaryWatch]:
    """Those that say that the model is another."""
    return {name: watch for name, watch in sorted(canaries.items()) if watch.is_new}


def unchanged(canaries: Mapping[str, CanaryWatch]) -> dict[str, CanaryWatch]:
    """Those that say that it is the same: learnt, and in their last run as they were."""
    same = {}
    for name, watch in sorted(canaries.items()):
        if watch.level is None or watch.limit is None or watch.last is None or watch.is_new:
            continue
        if abs(watch.last - watch.level) <= watch.limit:
            same[name] = watch
    return same


def sentence(name: str, watch: CanaryWatch) -> Evidence:
    """Of one that alarms."""
    now = "is no number" if watch.last is None else f"is {watch.last:.5g}"
    text = f"canary {name}: the log-probability of a fixed token after a fixed prompt {now}; {_judged(watch)}"
    often = f"{CONSECUTIVE_RUNS} runs in a row, or {OFTEN} of {OF_RUNS}, are not"
    return Evidence(text=f"{text}, {often}", metric=METRIC)


def _judged(watch: CanaryWatch) -> str:
    if watch.level is None or watch.limit is None:
        return f"it has not given {LEARNT} that tell what it should be, but any number would be one"
    return f"{watch.level:.5g} is what its first {LEARNT} runs gave, {watch.limit:.2g} more or less is the same"


def same_sentence(name: str, watch: CanaryWatch) -> Evidence:
    """Of one that does not, beside a shift that is seen elsewhere."""
    gives = f"{watch.last or 0.0:.5g} as before ({watch.level or 0.0:.5g})"
    text = f"canary {name} gives {gives}: the weights are the same, so it is the prompts"
    return Evidence(text=text, metric=METRIC)


def canary_finding(engine: str, model: str, alarming: Mapping[str, CanaryWatch]) -> Finding:
    """Where a canary alone tells, because answers are not compared, or are not yet as many as it takes."""
    return Finding(
        cause="output_drift",
        subject=engine,
        severity="warning",
        since_s=min(watch.since_s or 0.0 for watch in alarming.values()),
        summary=f"engine {engine}, {model}: its canary gives another answer than it did (canary {', '.join(alarming)})",
        evidence=tuple(sentence(name, watch) for name, watch in alarming.items()),
        advice=ADVICE,
        model=model,
    )
