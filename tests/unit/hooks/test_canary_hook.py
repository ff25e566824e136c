"""The canary of any engine: what is reported reaches the socket, and what is no number is told as such."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hook_receivers import UnixReceiver, levels, manual_emitter, totals

from aie_hooks import Canary

OWN = (("canary", "default"), ("engine", "chat"), ("model", "m"))


def _runs(receiver: UnixReceiver, samples: list[Any]) -> dict[str, float]:
    came = {
        dict(tags)["outcome"]: value for (name, tags), value in totals(samples).items() if name == "aie_engine_canary_runs_total"
    }
    return {outcome: value for outcome, value in came.items() if value}


def test_a_report_is_a_level_and_a_run(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    canary = Canary(emitter, model="m")
    canary.report(-4.25)
    emitter.flush()
    samples = receiver.samples()
    assert {tuple(sorted(tags)): value for (name, tags), value in levels(samples).items() if name.endswith("logprob_nats")} == {
        OWN: -4.25
    }
    assert [value for (name, _), value in levels(samples).items() if name.endswith("noise_nats")] == [0.25]
    assert _runs(receiver, samples) == {"ok": 1.0}


@pytest.mark.parametrize("noise_nats", [math.nan, math.inf, 0.0, -0.02, 1.5])
def test_noise_that_can_be_none_is_refused(socket_path: Path, noise_nats: float) -> None:
    with pytest.raises(ValueError, match="noise_nats"):
        Canary(manual_emitter(f"unix://{socket_path}"), model="m", noise_nats=noise_nats)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "x"])
def test_what_is_no_number_is_a_run_without_a_level(receiver: UnixReceiver, socket_path: Path, value: Any) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    canary = Canary(emitter, model="m")
    canary.report(value)
    canary.failed()
    canary.skipped()
    emitter.flush()
    samples = receiver.samples()
    assert not [name for name, _ in levels(samples) if name.endswith("logprob_nats")]
    assert _runs(receiver, samples) == {"nonfinite": 1.0, "failed": 1.0, "skipped": 1.0}
