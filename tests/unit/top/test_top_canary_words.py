"""What the table of drift says of canaries, in a word or two."""

from __future__ import annotations

import agent_drift
import msgspec
import pytest

from aie_telemetry.api import Drift, DriftCanary
from aie_top.columns.drift import DRIFT_COLUMNS
from aie_top.rows import DriftRow

ANEW = "its runs went from -4.875 to -5.025"
LEARNING = {"runs": 7, "level_nats": None, "limit_nats": None}

CANARIES: dict[str, tuple[tuple[DriftCanary, ...], str, str]] = {
    "none": ((), "-", "dim"),
    "as it was": ((agent_drift.canary(),), "same", "good"),
    "as it was since it was learnt anew": ((agent_drift.canary(learnt_anew=ANEW),), "same (anew)", "normal"),
    "one of two learnt anew": ((agent_drift.canary(), agent_drift.canary(name="b", learnt_anew=ANEW)), "same (anew)", "normal"),
    "learnt": ((agent_drift.canary(**LEARNING),), "learning 7/20", "normal"),
    "learnt anew": ((agent_drift.canary(**LEARNING, learnt_anew=ANEW),), "anew 7/20", "normal"),
    "changed": ((agent_drift.canary(learnt_anew=ANEW, alarm_since_s=2.0),), "CHANGED", "bad"),
}


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary(name: str) -> None:
    canaries, text, tone = CANARIES[name]
    row = DriftRow(agent="a", drift=msgspec.structs.replace(Drift(engine="e"), canaries=canaries), host="", stale_s=None)
    column = next(each for each in DRIFT_COLUMNS if each.key == "canary")
    (span,) = column.spans(row, column.width)
    assert (span.text.strip(), span.tone) == (text, tone)
