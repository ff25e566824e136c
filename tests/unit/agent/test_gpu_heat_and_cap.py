"""A GPU near its heat limit that is at its power limit as well, now and then: who of the two is told to cost the clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes.agent_gpus import MHZ, gpu
from fakes.cause_world import CauseWorld

from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.gpu_causes.clocks import gpu_clocks
from aie_telemetry.api import Finding

CLOCK = "aie_gpu_clock_hertz gpu=0 clock=sm"
CAP = "aie_gpu_clock_event_active gpu=0 reason=sw_power_cap"
LOST = 1_320 * MHZ
"""Two thirds of the highest: less than heat may cost alone, and no more than the power limit may."""


@pytest.mark.parametrize(
    ("holds", "severity"),
    [
        (lambda second: second % 10 != 0, "info"),  # at nine of ten looks, as its power limit alone
        (lambda second: second % 20 < 12, "info"),  # for twelve of twenty seconds
        (lambda second: second % 95 < 60, "info"),  # long batches: at less than half of the looks of many a minute
        (lambda second: second % 95 >= 60, "warning"),
        (lambda second: second % 20 < 6, "warning"),
        (lambda second: second % 10 == 0, "warning"),  # at one of ten: it is the heat
        (lambda second: False, "warning"),
    ],
)
def test_a_power_cap_that_comes_and_goes_holds_at_half_of_the_looks(holds: Callable[[int], bool], severity: str) -> None:
    world = CauseWorld()
    world.live(100, {CLOCK: 1_980 * MHZ, CAP: 0.0})  # all was well before
    hot_s, diagnosis = world.now_s + 1, Diagnosis(engine_causes=(), subject_causes=(gpu_clocks,))
    shown: list[Finding] = []
    for second in range(400):
        world.live(1, {CLOCK: LOST, CAP: float(holds(second))})
        events = ("sw_thermal", "sw_power_cap") if holds(second) else ("sw_thermal",)
        world.gpus = (gpu(clock_events=events, clock_events_since_s=dict.fromkeys(events, hot_s), sm_clock_hertz=LOST),)
        shown += diagnosis.update(world.view, world.now_s)
    assert len(shown) == 395, "five seconds of it are none"
    assert {each.severity for each in shown[10:]} == {severity}
    limits = {each.evidence[1].text.partition(", 67% ")[2] for each in shown[10:]}
    assert limits <= {"(limit 75%)", "(limit 75%, 60% while its power limit holds it)"}, (
        "what is less would be none by its own words"
    )
    assert ("(limit 75%)" in limits) is (severity == "warning")
