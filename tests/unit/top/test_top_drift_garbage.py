"""Whatever an agent says of drift, aie-top and diagnose show something, aie-top within its width, and raise nothing."""

from __future__ import annotations

import datetime

import agent_api as fake
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_agent.commands.diagnose import report
from aie_telemetry.api import Drift, DriftCanary, DriftStatistic
from aie_top.decode import decode_snapshot
from aie_top.model import build_frame
from aie_top.report import report_lines
from aie_top.rows import AgentState, View
from aie_top.text import cell_width
from aie_top.views.drift import drift_lines, drift_page
from aie_top.views.pages import engine_page
from aie_top.views.tables import Place

known = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-1.0, 0.0, 1e300, -1e300])
number = st.none() | known
whole = st.integers(-5, 1 << 62)
text = st.text(max_size=40)

statistic = st.fixed_dictionaries(
    {
        "name": text,
        **dict.fromkeys(("requests", "windows", "windows_beyond", "consecutive"), whole),
        **dict.fromkeys(("distance_ratio", "running_distance_ratio", "threshold_ratio", "alarm_since_s"), number),
        "untested": st.just("") | text,
    }
)
canary = st.fixed_dictionaries(
    {
        "name": text,
        "runs": whole,
        "runs_to_learn": whole,
        "last_run_age_s": known,
        **dict.fromkeys(("last_nats", "level_nats", "limit_nats", "alarm_since_s"), number),
        "too_noisy": st.booleans(),
        "learnt_anew": text,
    }
)
drift = st.fixed_dictionaries(
    {
        "engine": st.sampled_from(["e0", "e1", "gone"]),
        **dict.fromkeys(("model", "reference", "traffic_class", "reason"), text),
        **dict.fromkeys(("window_requests", "windows_to_alarm"), whole),
        **dict.fromkeys(
            (
                *("requests_per_second", "run_length_requests", "run_length_s"),
                *("promised_s", "promised_requests_per_second", "recorded_s"),
            ),
            number,
        ),
        "statistics": st.lists(statistic, max_size=5),
        "canaries": st.lists(canary, max_size=3),
    }
)


@settings(max_examples=1)
@given(drift, statistic, canary)
def test_every_field_is_drawn(of_drift: dict[str, object], of_statistic: dict[str, object], of_canary: dict[str, object]) -> None:
    for kind, values in ((Drift, of_drift), (DriftStatistic, of_statistic), (DriftCanary, of_canary)):
        assert set(values) == set(kind.__struct_fields__)


@settings(max_examples=100, deadline=None)
@given(st.lists(drift, max_size=4), st.integers(4, 200), st.integers(1, 60))
def test_all_that_is_said_of_drift_keeps_to_its_width(drifts: list[dict[str, object]], width: int, height: int) -> None:
    told = msgspec.to_builtins(fake.snapshot())
    told["engines"] = [{"name": f"e{at}", "state": "up"} for at in range(2)]
    told["drift"] = drifts
    snapshot = decode_snapshot(msgspec.json.encode(told))
    frame = build_frame([AgentState(label="x", phase="live", snapshot=snapshot, received_s=0.0)], 0.0, datetime.UTC)
    shown = [*drift_lines(frame, View(), Place(width, height)), *drift_page(frame, width)]
    for row in frame.engines:
        shown += engine_page(frame, row.key, width)
    assert all(cell_width(one.plain()) <= width for one in shown)
    assert all(cell_width(one.plain()) <= 80 for one in report_lines(frame, View()))
    lines = list(report(snapshot, 0.0))
    assert sum(line.startswith("drift: ") for line in lines) == len(drifts)
    assert all("\n" not in line for line in lines)
