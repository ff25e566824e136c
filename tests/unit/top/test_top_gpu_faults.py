"""Faults of GPUs: each is one row under its own name, with its age, and heat near a limit has a sign that is no colour."""

from __future__ import annotations

import datetime
import re

import agent_api as fake
import agent_gpus as gpus
import pytest

from aie_telemetry.api import Gpu, GpuFault, Snapshot
from aie_top import format as fmt
from aie_top import gpu_words
from aie_top.columns.gpus import heat_text
from aie_top.gpu_problems import FINDING_BEGINS_S, gpu_problems
from aie_top.gpu_state import conditions, is_wrong
from aie_top.model import build_frame
from aie_top.report import render, report_lines
from aie_top.rows import AgentState, Frame, ProblemRow, View
from aie_top.views.gpu_page import gpu_page


def snapshot_of(*rows: Gpu) -> Snapshot:
    return fake.snapshot(gpus=rows, events=(gpus.xid_event(fake.TIME_S - 20),))


def frame_of(*rows: Gpu) -> Frame:
    state = AgentState(label="http://127.0.0.1:9465", phase="live", snapshot=snapshot_of(*rows), received_s=0.0)
    return build_frame([state], 0.0, datetime.UTC)


def problems_of(*rows: Gpu) -> list[ProblemRow]:
    return list(gpu_problems(snapshot_of(*rows)))


def report(*rows: Gpu, width: int = 80) -> str:
    return render(report_lines(frame_of(*rows), View(), width), colour=False)


def page(*rows: Gpu, at: int = 0, width: int = 100) -> str:
    frame = frame_of(*rows)
    return " ".join(" ".join(one.plain() for one in gpu_page(frame, frame.gpus[at].key, width)).split())


def test_a_link_is_judged_by_the_agent_which_knows_the_slot() -> None:
    slot = gpus.fault("gpu_slot_width", "the card has 16 PCIe lanes, its slot 8: move it to a slot with 16")
    (row,) = problems_of(gpus.faulty(0, 0, [slot], pcie_width=8))
    assert (row.summary, row.advice) == ("the card has 16 PCIe lanes, its slot 8", "Move it to a slot with 16.")
    (one,) = conditions(gpus.narrow(0))
    assert (one.cause, one.short) == ("gpu_link_width", "x8 link")
    assert problems_of(gpus.gpu(pcie_width=8)) == problems_of(gpus.unified(pcie_width=1, pcie_width_max=16)) == []


# What the agent says for each fault, what makes the row show it by itself too, and what stands in the row's cell.
FAULTS = {
    "gpu_row_remap_failed": (
        "a row of its memory could not be replaced: have the board replaced",
        {"remap_failed": True},
        "bad rows",
    ),
    "gpu_ecc": ("2 uncorrected ECC errors since the driver was loaded: reset the GPU", {"ecc_uncorrected": 2.0}, "ECC"),
    "gpu_row_remap": ("a row of its memory waits to be replaced: reset the GPU", {"remap_pending": True}, "remap"),
    "gpu_orphan": ("1 orphan process holds memory 31.0 GiB: end it", {"processes": (gpus.process(orphan=True),)}, "orphan"),
    "gpu_link_width": ("PCIe link has 8 lanes of 16: reseat the card", {"pcie_width": 8}, "x8 link"),
    "gpu_slot_width": ("the card has 16 PCIe lanes, its slot 8: move it", {"pcie_width": 8}, "narrow slot"),
    "gpu_link_generation": ("PCIe link runs as generation 3 of 5 while the GPU is busy: look", {"pcie_generation": 3}, "slow link"),
    "gpu_nvlink_inactive": ("2 of 18 NVLinks are not active: look at the bridges", {"nvlinks_active": 16}, "NVLink off"),
    "gpu_nvlink_errors": ("NVLink errors rise (replay 3.2/s): reseat", {"nvlink_errors": {"replay": 90.0}}, "NVLink err"),
    "gpu_power_limit": (
        "power is limited to 400 W of the board's 700 W: nvidia-smi -pl 700",
        {"power_limit_watts": 400.0},
        "low limit",
    ),
    "gpu_pid_namespace": ("processes cannot be told: run the agent with hostPID", {}, "host pids?"),
}


def test_the_causes_of_the_api_are_all_here() -> None:
    named = set(re.findall(r"gpu_[a-z_]+", GpuFault.__doc__ or ""))
    assert named == set(FAULTS) == set(gpu_words.FAULTS)


@pytest.mark.parametrize("cause", FAULTS)
def test_one_fault_is_one_row_under_its_own_name_and_says_since_when(cause: str) -> None:
    text, shows, short = FAULTS[cause]
    one = gpus.faulty(0, 0, [gpus.fault(cause, text, "warning", age_s=185.0)], **shows)
    assert [(found.cause, found.short) for found in conditions(one) if is_wrong(found)] == [(cause, short)]
    (row,) = problems_of(one)
    assert (row.age_s, row.subject) == (185.0, "GPU 0")
    assert row.advice
    assert "for 3 min" in page(one)
    alone = gpus.faulty(0, 0, [gpus.fault(cause, text)])
    assert len(problems_of(alone)) == 1, "also where the row does not show it by itself"


def test_numbers_that_move_are_not_in_the_line() -> None:
    (row,) = problems_of(gpus.faulty(0, 0, [gpus.fault("gpu_nvlink_errors", FAULTS["gpu_nvlink_errors"][0])]))
    assert (row.summary, row.why, row.advice) == ("NVLink errors rise", ("replay 3.2/s",), "Reseat.")


def test_a_cause_of_tomorrow_has_its_own_name() -> None:
    (one,) = conditions(gpus.faulty(0, 0, [gpus.fault("gpu_coolant_low", "coolant is low", "critical")]))
    assert (one.severity, one.cause, one.short, one.words, one.do) == (
        "critical",
        "gpu_coolant_low",
        "coolant low",
        "coolant is low",
        "",
    )


def test_the_sentences_of_an_agent_of_before_are_each_told_once() -> None:
    old = gpus.gpu(problems=("1 orphan process holds memory: end it",), processes=(gpus.process(orphan=True),), pcie_width=8)
    assert [row.summary for row in problems_of(old)] == ["1 orphan process holds memory: end it"]


def test_since_when_is_said_of_what_holds_and_how_long_ago_of_what_happened() -> None:
    rows = gpus.troubled(8)
    told = {
        row.subject: row.age_s for row in problems_of(*rows) if row.severity in ("critical", "warning") and "XID" not in row.summary
    }
    assert told == {"GPU 3": 185.0, "GPU 1": 44.0, "GPU 4": 1_260.0, "GPU 5": 7_500.0}
    assert "state ✖ LOST for 3 min" in page(*rows, at=3)
    assert "for 44 s)" in page(*rows, at=1)
    assert "20 s ago" in page(*rows, at=5)
    assert "✖ LOST for 3 min" in report(*rows)
    assert "for 44 s" in next(text for text in report(*rows, width=200).splitlines() if text.startswith(" 1 H100"))


def test_of_several_the_line_has_the_oldest_and_each_its_own_age() -> None:
    rows = [gpus.throttled(at, clock_events_since_s={"hw_thermal": fake.TIME_S - age_s}) for at, age_s in ((0, 3_000.0), (1, 15.0))]
    (row,) = problems_of(*rows)
    assert row.age_s == 3_000.0
    assert [why.rpartition(", ")[2] for why in row.why] == ["for 50 min", "for 15 s"]


def test_what_has_just_begun_is_left_to_the_agent() -> None:
    """Its findings begin after some seconds. One that has none by then does not have the cause."""
    for age_s, lines in ((0.0, 0), (FINDING_BEGINS_S - 0.1, 0), (FINDING_BEGINS_S, 1), (3_000.0, 1)):
        row = gpus.throttled(0, clock_events_since_s={"hw_thermal": fake.TIME_S - age_s})
        assert len(problems_of(row)) == lines


def test_a_clock_that_is_behind_is_now_and_what_is_not_known_is_not_said() -> None:
    (later,) = problems_of(gpus.throttled(0, clock_events_since_s={"hw_thermal": fake.TIME_S + 50}))
    (unknown,) = problems_of(gpus.throttled(0, clock_events_since_s={}))
    assert (later.age_s, unknown.age_s) == (0.0, None)


@pytest.mark.parametrize(
    ("celsius", "written"), [(85.0, "85°C"), (86.0, "▲86°C"), (88.9, "▲89°C"), (89.0, "✖89°C"), (104.0, "✖104°C")]
)
def test_heat_near_the_limit_has_a_sign_that_is_no_colour(celsius: float, written: str) -> None:
    hot = gpus.gpu(0, temperature_celsius=celsius)
    assert heat_text(hot) == written
    assert len(written) <= fmt.CELSIUS_WIDTH + 1
    assert f" {written} " in report(hot)
    assert heat_text(gpus.gpu(0, temperature_celsius=celsius, slowdown_celsius=None)) == f"{celsius:.0f}°C", "no limit, no sign"
    assert heat_text(gpus.gpu(0, temperature_celsius=None)) == fmt.UNKNOWN


def numbers(*rows: Gpu, width: int = 100) -> list[str]:
    frame = frame_of(*rows)
    return [one.plain() for one in gpu_page(frame, frame.gpus[0].key, width)]


def test_the_page_has_wear_energy_occupancy_and_the_time_that_clocks_were_held_down() -> None:
    text = page(gpus.throttled(0, fan_speed_ratio=0.4, retired_pages={"single_bit": 4.0, "double_bit": 0.0}))
    for part in (
        "SM occupancy",
        "energy 406 kWh so far",
        "fans 40.0% of their highest speed",
        "held down for thermal 15 min (73.0% of the last 30 s), power 2 min (2.0% of the last 30 s); since the driver was loaded",
        "PCIe replays 3 ",
        "NVLink in 37.3 GiB/s",
        "NVLink errors none",
        "ECC corrected 2 (17 ever)",
        "ECC uncorrected 0 (0 ever)",
        "rows replaced 1 corrected",
        "pages retired 4 single bit",
    ):
        assert part in text, part
    rising = page(gpus.gpu(0, pcie_replays=310.0, pcie_replays_per_second=2.5, nvlink_errors={"replay": 3.0, "crc_flit": 1.0}))
    assert "PCIe replays 310, now 2.50/s" in rising
    assert "NVLink errors 3 replay, 1 crc flit" in rising


def test_the_page_of_a_gpu_that_tells_none_of_it_invents_nothing() -> None:
    text = page(gpus.unknown(0))
    for part in ("energy", "fans", "held down for", "NVLink errors", "rows replaced", "pages retired", "MIG"):
        assert part not in text, part
    assert "PCIe replays - " in text
    assert "ECC corrected - " in text
    assert "no time since the driver was loaded" in page(gpus.gpu(0, throttled_seconds={"power": 0.0}, throttled_ratio={}))


def test_mig_instances_have_their_memory_and_their_share() -> None:
    rows = [text for text in numbers(gpus.divided(0), width=120) if "g." in text and "gb" in text]
    assert [text.split()[:2] for text in rows] == [["1/0", "3g.40gb"], ["2/0", "2g.20gb"], ["3/0", "1g.10gb"]]
    assert "12.1/40 GiB" in rows[0]
    assert "62.0%" in rows[0]
    assert rows[2].split()[-2:] == [fmt.UNKNOWN, "MIG-51a1a7ed-0000-5000-8000-000000000003"], "before Hopper nobody tells"
    assert not any("MIG-" in text for text in numbers(gpus.divided(0), width=80)), "half a UUID names nothing"
    assert "▲" not in "".join(rows)
    older = numbers(gpus.divided(0, mig=()))
    assert any("3g.40gb" in text for text in older), "an agent of before tells their names"


@pytest.mark.parametrize(
    ("joules", "written"),
    [
        (None, "-"),
        (0.0, "0.00 Wh"),
        (3_600.0, "1.00 Wh"),
        (1.46e9, "406 kWh"),
        (9e15, ">999 GWh"),
        (float("nan"), "-"),
        (-1.0, "-"),
    ],
)
def test_energy_is_in_watt_hours(joules: float | None, written: str) -> None:
    assert fmt.energy(joules) == written


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_pod_stands_beside_the_container_where_there_is_room_and_any_process_has_one(width: int) -> None:
    def table(*rows: Gpu) -> list[str]:
        lines = report(*rows, width=width).splitlines()
        return lines[next(at for at, text in enumerate(lines) if "GPU PROC." in text) :]

    head, row = table(*gpus.healthy(1))[:2]
    assert ("POD" in head) == (width >= 120)
    assert ("b1946a" in row and "f0d1c7" in row) == (width >= 120)
    if width >= 200:
        assert "3f2a91c07be4" in row
        assert "b1946ac9-2492-4d23-8d61-8ff3a2f0d1c7" in row
    assert "POD" not in table(gpus.gpu(0, processes=(gpus.process(pod=None),)))[0]
