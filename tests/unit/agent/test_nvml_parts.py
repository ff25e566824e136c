"""The pure parts of the NVML source: units, memory, counters, who is there, and what is asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.samples import Point
from aie_agent.sources.nvml import units
from aie_agent.sources.nvml.counters import Guard
from aie_agent.sources.nvml.devices import Identity
from aie_agent.sources.nvml.door import IMPLAUSIBLE, NOT_SUPPORTED, SENTINEL, Absent, Device, number
from aie_agent.sources.nvml.memory import PAGE_BYTES, Memory, balanced
from aie_agent.sources.nvml.meter import FIRST, Meter
from aie_agent.sources.nvml.plan import Number, plan
from aie_agent.sources.nvml.roster import Entry, Roster
from aie_agent.sources.nvml.rows import FIELDS, ROWS, Pace, Row
from aie_agent.sources.nvml.units import convert
from aie_agent.sources.nvml.unreached import may_be_lost

GIB = 1 << 30
UINT, ULONGLONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


@pytest.mark.parametrize(
    "nothing",
    [UINT, ULONGLONG, -1, 0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF3, 0x7FFFFFF0, math.nan, math.inf, 140737488355328.0, None, "N/A"],
)
def test_what_stands_for_no_value_is_none(nothing: object) -> None:
    assert number(nothing) is SENTINEL
    assert convert(nothing, units.PERCENT) is SENTINEL


@given(st.integers(0, 0x7FFFFFEF) | st.floats(0, 1e12))
def test_numbers_are_left_alone(value: float) -> None:
    assert number(value) == value


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, units.PERCENT, 0.0),
        (100, units.PERCENT, 1.0),
        (101, units.PERCENT, 1.0),
        (37100, units.PERCENT, None),
        (700_000, units.MILLIWATTS, 700.0),
        (1980, units.MEGAHERTZ, 1.98e9),
        (-5, units.CELSIUS, -5.0),
        (2, units.KIBIBYTES, 2048.0),
        (1_500_000_000, units.NANOSECONDS, 1.5),
        (32, units.STATE, None),
        (True, units.FLAG, 1.0),
        (2, units.FLAG, None),
        (2**50 + 1, units.BYTES, 2.0**50 + 1),  # NVLink 5 at full speed, after ten minutes
        (2**60, units.BYTES, 2.0**60),
    ],
)
def test_units(value: float, unit: units.Unit, expected: float | None) -> None:
    assert convert(value, unit) == expected


def test_memory_of_version_2_adds_up_whether_used_holds_what_is_reserved_or_not() -> None:
    total, reserved, used = 80 * GIB, GIB // 2, 10 * GIB
    free = total - reserved - used
    assert balanced(total, used, free, reserved) == Memory(total, used, free, reserved)
    assert balanced(total, used + reserved, free, reserved) == Memory(total, used, free, reserved)


@pytest.mark.parametrize("off", [-PAGE_BYTES - 1, PAGE_BYTES + 1, 1 << 20, -GIB // 2])
def test_what_does_not_add_up_within_a_page_is_not_made_to(off: int) -> None:
    """Half a percent of the memory of an H100 is a small model."""
    assert balanced(80 * GIB, 10 * GIB, 70 * GIB + off, None) is None
    assert balanced(80 * GIB, 10 * GIB, 69 * GIB + off, GIB) is None


@pytest.mark.parametrize("off", [-PAGE_BYTES, -1, 0, 1, PAGE_BYTES])
def test_a_page_is_nothing(off: int) -> None:
    assert balanced(80 * GIB, 10 * GIB, 69 * GIB + off, GIB) == Memory(80 * GIB, 10 * GIB, 69 * GIB, GIB)


def test_memory_of_version_1_is_not_split() -> None:
    assert balanced(80 * GIB, 11 * GIB, 69 * GIB, None) == Memory(80 * GIB, 11 * GIB, 69 * GIB)


@pytest.mark.parametrize(
    ("total", "used", "free", "reserved"),
    [
        (0, 0, 0, None),
        (80 * GIB, 90 * GIB, 0, None),
        (80 * GIB, 10 * GIB, 10 * GIB, None),
        (80 * GIB, 1 << 60, 0, 0),
        (80 * GIB, 40 * GIB, 60 * GIB, 0),
    ],
)
def test_memory_that_is_of_no_gpu_is_none(total: int, used: int, free: int, reserved: int | None) -> None:
    assert balanced(total, used, free, reserved) is None


@given(st.integers(1, 1 << 50), st.data())
def test_memory_adds_up_whatever_it_is(total: int, data: st.DataObject) -> None:
    used, free, reserved = (data.draw(st.integers(0, total)) for _ in range(3))
    found = balanced(total, used, free, data.draw(st.sampled_from([None, reserved])))
    if found is not None:
        assert found.used + found.free + (found.reserved or 0) == found.total == total
        assert min(found.used, found.free, found.reserved or 0) >= 0


def test_a_counter_that_falls_or_leaps_once_is_passed_over() -> None:
    guard = Guard()
    assert guard.take(100.0, 0.0, 10.0) == 100.0
    assert guard.take(0.0, 1.0, 10.0) is None
    assert guard.take(110.0, 2.0, 10.0) == 110.0
    assert guard.take(1e12, 3.0, 10.0) is None
    assert guard.take(120.0, 4.0, 10.0) == 120.0


def test_a_counter_that_stays_low_began_anew() -> None:
    guard = Guard()
    guard.take(100.0, 0.0, 10.0)
    assert [guard.take(value, time_s, 10.0) for value, time_s in ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0))] == [
        None,
        None,
        3.0,
        4.0,
    ]


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_a_counter_falls_only_after_three_readings_that_agree(values: list[float]) -> None:
    guard, last, passed = Guard(), 0.0, 0
    for time_s, value in enumerate(values):
        found = guard.take(value, float(time_s), math.inf)
        if found is None:
            passed += 1
            continue
        assert found >= last or passed >= 2
        last, passed = found, 0


def identity(letter: str) -> Identity:
    return Identity(f"GPU-{letter}", "NVIDIA H100", f"00000000:{letter}0:00.0", "Hopper", None)


def shown(entries: list[Entry]) -> list[tuple[int, str, str | None]]:
    return [(entry.index, entry.identity.uuid if entry.identity else "", entry.reason) for entry in entries]


def test_a_gpu_that_nvml_does_not_have_any_more_stays() -> None:
    roster = Roster()
    roster.update([Entry(0, identity("a"), None), Entry(1, identity("b"), None)])
    assert shown(roster.update([Entry(0, identity("a"), None)])) == [(0, "GPU-a", None), (1, "GPU-b", "lost")]
    assert roster.expected == 2


def test_its_index_is_given_to_who_has_it_now() -> None:
    roster = Roster()
    roster.update([Entry(0, identity("a"), None), Entry(1, identity("b"), None)])
    assert shown(roster.update([Entry(0, identity("b"), None)])) == [(0, "GPU-b", None), (1, "GPU-a", "lost")]


def test_who_does_not_say_who_it_is_is_who_was_there() -> None:
    roster = Roster()
    roster.update([Entry(0, identity("a"), None), Entry(1, identity("b"), None)])
    assert shown(roster.update([Entry(0, None, "lost"), Entry(1, identity("b"), None)])) == [
        (0, "GPU-a", "lost"),
        (1, "GPU-b", None),
    ]
    assert shown(Roster().update([Entry(0, None, "lost")])) == [(0, "", "lost")]


def test_a_board_that_is_put_in_for_another_is_not_one_more() -> None:
    roster = Roster()
    roster.update([Entry(0, identity("a"), None), Entry(1, identity("b"), None)])
    assert shown(roster.update([Entry(0, identity("b"), None)])) == [(0, "GPU-b", None), (1, "GPU-a", "lost")]
    assert shown(roster.update([Entry(0, identity("b"), None), Entry(1, identity("c"), None)])) == [
        (0, "GPU-b", None),
        (1, "GPU-c", None),
    ]
    assert roster.expected == 2
    assert shown(roster.update([Entry(0, identity("c"), None)])) == [(0, "GPU-c", None), (1, "GPU-b", "lost")]
    assert roster.expected == 2


def test_of_two_that_are_lost_the_one_whose_place_was_filled_is_forgotten() -> None:
    roster = Roster()
    roster.update([Entry(number, identity(letter), None) for number, letter in enumerate("abc")])
    in_place_of_b = identity("b")._replace(uuid="GPU-d")
    found = roster.update([Entry(0, identity("c"), None), Entry(1, in_place_of_b, None)])
    assert shown(found) == [(0, "GPU-c", None), (1, "GPU-d", None), (2, "GPU-a", "lost")]


def test_a_gpu_that_was_lost_before_the_agent_came_is_known_by_its_bus_id() -> None:
    roster = Roster()
    on_host = {"0000:a0:00": "NVIDIA H100", "0000:b0:00": "NVIDIA H100", "0000:c0:00": "NVIDIA H200"}
    found = roster.update([Entry(0, identity("a"), None), Entry(1, identity("c"), None)], on_host)
    assert shown(found) == [(0, "GPU-a", None), (1, "GPU-c", None), (2, "", "lost")]
    lost = found[2].identity
    assert lost is not None
    assert (lost.name, lost.pci_bus_id) == ("NVIDIA H100", "00000000:B0:00.0")
    assert roster.expected == 3
    everybody = [Entry(number, identity(letter), None) for number, letter in enumerate("abc")]
    assert shown(roster.update(everybody)) == [(0, "GPU-a", None), (1, "GPU-b", None), (2, "GPU-c", None)]
    assert roster.expected == 3


def test_a_gpu_that_was_lost_while_the_agent_watched_is_nobody_elses() -> None:
    """The driver still has it at its place: one row, by the name that it had."""
    roster = Roster()
    roster.update([Entry(0, identity("a"), None), Entry(1, identity("b"), None)])
    on_host = {"0000:a0:00": "NVIDIA H100", "0000:b0:00": "NVIDIA H100"}
    assert shown(roster.update([Entry(0, identity("a"), None)], on_host)) == [(0, "GPU-a", None), (1, "GPU-b", "lost")]
    assert roster.expected == 2


def test_where_one_does_not_say_who_it_is_nobody_is_made_up() -> None:
    on_host = {"0000:a0:00": "NVIDIA H100", "0000:b0:00": "NVIDIA H100"}
    assert shown(Roster().update([Entry(0, identity("a"), None), Entry(1, None, "error")], on_host)) == [
        (0, "GPU-a", None),
        (1, "", "error"),
    ]


INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 120
GPU UUID: \t GPU-????????-????-????-????-????????????
Bus Location: \t 0000:3b:00.0
Device Minor: \t 3
GPU Excluded:\t No
"""


@pytest.mark.parametrize(
    ("information", "config", "device", "expected"),
    [
        (INFORMATION, b"\xff" * 64, None, {"0000:3b:00": "NVIDIA H100 80GB HBM3"}),  # it fell off the bus
        (INFORMATION, b"\xde\x10\x30\x23", "nvidia3", {"0000:3b:00": "NVIDIA H100 80GB HBM3"}),  # it failed
        ("", b"\xff" * 64, None, {"0000:3b:00": ""}),
        (INFORMATION, b"\xde\x10\x30\x23", "nvidia2", {}),  # another container's
        (INFORMATION, None, None, {}),
        (INFORMATION.replace("No", "Yes"), b"\xff" * 64, "nvidia3", {}),  # the driver was told to leave it alone
        (INFORMATION.replace("Excluded", "Blacklisted").replace("No", "Yes"), b"\xde\x10\x30\x23", "nvidia3", {}),
        ("", b"\xde\x10\x30\x23", "nvidia3", {}),
        ("\0\xff" * 9999, b"", "nvidia3", {}),
    ],
)
def test_which_of_the_drivers_gpus_may_be_lost(
    tmp_path: Path, information: str, config: bytes | None, device: str | None, expected: dict[str, str]
) -> None:
    name = "0000:3b:00.0"
    for directory in ("gpus", "pci", "dev"):
        (tmp_path / directory / name).mkdir(parents=True)
    (tmp_path / "gpus" / name / "information").write_text(information)
    if config is not None:
        (tmp_path / "pci" / name / "config").write_bytes(config)
    if device is not None:
        (tmp_path / "dev" / device).touch()
    found = may_be_lost(tmp_path / "gpus", [name, "no bus id", "0000:4b:00.0"], tmp_path / "pci", tmp_path / "dev")
    assert found == expected


def test_a_board_that_is_added_is_one_more() -> None:
    roster = Roster()
    roster.update([Entry(0, identity("a"), None)])
    roster.update([Entry(0, identity("a"), None), Entry(1, identity("b"), None)])
    assert roster.expected == 2


def test_what_the_configuration_expects_is_expected() -> None:
    roster = Roster(expected=8)
    roster.update([Entry(0, identity("a"), None)])
    assert roster.expected == 8


def test_rows_of_one_call_share_it_and_the_first_way_wins() -> None:
    device = Device(0, 1)
    made = plan(ROWS, device, {})
    calls = [(query.call, query.args) for part in made.values() for query in part.queries]
    assert len(calls) == len(set(calls))
    assert sum(call == "nvmlDeviceGetUtilizationRates" for call, _ in calls) == 1
    assert "nvmlDeviceGetPcieThroughput" not in dict(calls)
    device.unsupported |= {(FIELDS, (197, 0)), (FIELDS, (198, 0)), (FIELDS, (83, 0))}
    made = plan(ROWS, device, {})
    assert {query.call for query in made[Pace.APART].queries} == {"nvmlDeviceGetPcieThroughput"}
    assert "nvmlDeviceGetTotalEnergyConsumption" in {query.call for query in made[Pace.FAST].queries}


def test_a_function_that_is_not_there_takes_all_its_rows_with_it() -> None:
    device = Device(0, 1, unsupported={(FIELDS, ())})
    assert not any(part.fields for part in plan(ROWS, device, {}).values())


def test_a_series_goes_on_when_others_are_planned_anew() -> None:
    meters: dict[Number, Meter] = {}
    device = Device(0, 1)
    plan(ROWS, device, meters)
    kept = meters["aie_gpu_power_watts", ()]
    device.unsupported.add((FIELDS, (83, 0)))
    plan(ROWS, device, meters)
    assert meters["aie_gpu_power_watts", ()] is kept


def take(meter: Meter, *answers: Any, step_s: float = 1.0) -> list[float | Absent]:
    found = [meter.take(answer, number * step_s) for number, answer in enumerate(answers)]
    return [point.value if isinstance(point, Point) else point for point in found]


def test_a_rate_needs_two_answers_and_no_fall() -> None:
    row = next(row for row in ROWS if row.per_second)
    assert take(Meter(row, "0"), 1000, 3000, 1000, 2000) == [FIRST, 2000.0, FIRST, 1000.0]
    assert take(Meter(row, "0"), 1000, 3000, step_s=0.05) == [FIRST, FIRST]


def test_a_rate_that_no_link_has_is_none() -> None:
    row = next(row for row in ROWS if row.per_second)
    assert row.unit.per_second == 2.0**44
    assert take(Meter(row, "0"), 0, 2**44, 2**46, 2**46 + 500) == [FIRST, 2.0**44, IMPLAUSIBLE, 500.0], "it goes on from there"
    assert take(Meter(row, "0"), 1000, 2**60, 3000, 4000) == [FIRST, IMPLAUSIBLE, FIRST, 1000.0], "garbage for a moment"


def test_what_did_not_change_is_the_same_point() -> None:
    meter = Meter(Row("aie_gpu_power_watts", "nvmlDeviceGetPowerUsage", units.MILLIWATTS), "3")
    first = meter.take(70_000, 0.0)
    assert meter.take(70_000, 1.0) is first
    assert take(meter, NOT_SUPPORTED, UINT, 10**9, 70_000) == [NOT_SUPPORTED, SENTINEL, IMPLAUSIBLE, 70.0]
