"""Clocks that are held down: the agent's finding, the GPU's row in aie-top and `aie-agent check` call the same GPU wrong."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from fakes import agent_api
from fakes.agent_gpus import MHZ, gpu
from fakes.cause_world import BEGIN_S, CauseWorld

from aie_agent.analysis.gpu_causes.clocks import gpu_clocks
from aie_agent.analysis.gpu_checklist import Check, check_gpu
from aie_agent.sources.nvml.facts import GpuFacts
from aie_agent.sources.nvml.rows import CLOCK_EVENTS as ROW_EVENTS
from aie_telemetry.api import Finding, Gpu
from aie_telemetry.clock_events import CLOCK_EVENTS
from aie_top.gpu_state import conditions, is_wrong
from aie_top.model import build_frame
from aie_top.rows import AgentState

WARM, CAPPED = ("sw_thermal",), ("sw_thermal", "sw_power_cap")


def held(*events: str, **changes: Any) -> Gpu:
    """For a minute, on a GPU that is at work (82 %), of 1980 MHz at most."""
    return gpu(clock_events=events, clock_events_since_s=dict.fromkeys(events, BEGIN_S - 60.0), **changes)


def found(one: Gpu) -> list[Finding]:
    return list(CauseWorld(gpus=[one]).subjects(gpu_clocks))


def checked(one: Gpu) -> list[Check]:
    """What `aie-agent check` says of its clocks; nothing where it cannot be told."""
    now, most = (None if hertz is None else hertz / MHZ for hertz in (one.sm_clock_hertz, one.sm_clock_max_hertz))
    facts = GpuFacts(
        index=0,
        name="?",
        sm_clock_mhz=now,
        sm_clock_max_mhz=most,
        clock_events=one.clock_events,
        utilization_ratio=one.utilization_ratio,
    )
    return [check for check in check_gpu(facts, 1) if check.what == "clocks"]


@pytest.mark.parametrize(
    ("events", "changes", "severity"),
    [
        (WARM, {"sm_clock_hertz": 1_950 * MHZ}, "info"),  # 1.5 % of it
        (WARM, {"sm_clock_hertz": 1_500 * MHZ}, "info"),
        (WARM, {"sm_clock_hertz": 1_480 * MHZ}, "warning"),
        (WARM, {"sm_clock_hertz": 1_480 * MHZ, "utilization_ratio": None}, "warning"),  # in MIG mode
        (WARM, {"sm_clock_hertz": 1_480 * MHZ, "utilization_ratio": 0.5}, "warning"),
        (WARM, {"sm_clock_hertz": 1_480 * MHZ, "utilization_ratio": 0.49}, "info"),  # little is asked of it
        (WARM, {"sm_clock_hertz": 345 * MHZ, "utilization_ratio": 0.1}, "info"),  # it idles
        (CAPPED, {"sm_clock_hertz": 1_400 * MHZ}, "info"),  # as its power limit alone
        (CAPPED, {"sm_clock_hertz": 1_100 * MHZ}, "warning"),
        (WARM, {"sm_clock_hertz": None}, "info"),
        (WARM, {"sm_clock_max_hertz": None}, "info"),
    ],
)
def test_what_heat_near_the_limit_costs_decides(events: tuple[str, ...], changes: dict[str, Any], severity: str) -> None:
    warm = held(*events, **changes)
    assert [(each.cause, each.subject, each.severity) for each in found(warm)] == [("gpu_thermal", "gpu0", severity)]
    assert [(one.cause, one.severity) for one in conditions(warm) if one.severity is not None] == [("gpu_thermal", severity)]
    is_told = warm.sm_clock_hertz is not None and warm.sm_clock_max_hertz is not None
    assert [check.ok for check in checked(warm)] == ([severity == "info"] if is_told else [])
    assert all("sw_thermal" in check.found for check in checked(warm)), "also where it is not wrong"


@pytest.mark.parametrize("reason", [*ROW_EVENTS, "other"])
def test_every_reason_is_judged_alike(reason: str) -> None:
    assert reason in CLOCK_EVENTS
    one = held(reason)
    (check,) = checked(one)
    wrong = any(each.severity in ("warning", "critical") for each in found(one))
    assert (any(map(is_wrong, conditions(one))), not check.ok) == (wrong, wrong)


@pytest.mark.parametrize("severity", ["info", "warning"])
def test_a_row_calls_heat_as_bad_as_the_finding_that_has_its_mean(severity: Any) -> None:
    """A power limit that comes and goes with each batch, or one slow second, does not come and go as an alarm."""
    for hertz in (1_950 * MHZ, 1_320 * MHZ):
        for events in (WARM, CAPPED):
            warm = held(*events, sm_clock_hertz=hertz)
            finding = msgspec.structs.replace(found(warm)[0], severity=severity)
            snapshot = agent_api.snapshot(gpus=(warm,), findings=(finding,))
            state = AgentState(label="a", phase="live", snapshot=snapshot, received_s=0.0)
            (row,) = build_frame([state], 0.0, datetime.UTC).gpus
            assert [one.severity for one in row.found if one.cause == "gpu_thermal"] == [severity]
