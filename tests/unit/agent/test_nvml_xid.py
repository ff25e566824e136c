"""XIDs: what a line of the log says, and that each error is counted once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.sources.kernel_log import Record, parse
from aie_agent.sources.nvml.bus_id import bus_id, sysfs_name
from aie_agent.sources.nvml.xid import (
    MATCH_WITHIN_S,
    MAX_GPUS,
    MAX_NUMBERS_OF_A_GPU,
    XidCounter,
    XidReport,
    from_kernel_log,
    from_tracepoint,
)
from aie_telemetry.xids import BY_NUMBER, COMMON, XIDS, describe

BUS = "0000:3b:00"


def record(text: str) -> Record:
    return Record(0, 4, 1, 1, text)


def report(source: str, time_s: float, xid: int = 79, bus: str = BUS) -> XidReport:
    return XidReport(bus, xid, time_s, source)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", (79, 1234)),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", (79, None)),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid='4242', name=python3, Graphics SM Warp Exception", (13, 4242)),
        ("NVRM: Xid (PCI:0000:3B:00 GPU-I:05 GPU-CI:00): 43, pid=7, name=x, Ch 00000008", (43, 7)),
        ("NVRM: Xid (PCI:0000:3b:00): 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!", (119, None)),
        ("NVRM: Xid (0000:3b:00): 14, Channel 00000001", (14, None)),
        ("NVRM: Xid (PCI:0000:3b:00): 154", (154, None)),
    ],
)
def test_lines_of_the_driver(text: str, expected: tuple[int, int | None]) -> None:
    found = from_kernel_log(record(text), 5.0)
    assert found is not None
    assert (found.bus, found.xid, found.pid, found.time_s, found.source) == (BUS, *expected, 5.0, "kernel_log")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: GPU at PCI:0000:3b:00: GPU-0b32a29e",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 11001, Fatal",  # a switch, not a GPU
        "somebody said NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        "NVRM: Xid (PCI:nonsense): 79, pid=1",
        "NVRM: Xid (PCI:0000:3b:00): many",
        "NVRM: Xid (PCI:0000:3b:00): 123456789, pid=1",
        "Out of memory: Killed process 1234 (python)",
    ],
)
def test_what_is_no_xid(text: str) -> None:
    assert from_kernel_log(record(text), 5.0) is None


@given(st.text())
def test_no_text_raises(text: str) -> None:
    for line in (text, f"NVRM: Xid ({text}): 79, pid=1", f"NVRM: Xid (PCI:0000:3b:00): {text}"):
        found = from_kernel_log(record(line), 1.0)
        assert found is None or found.xid >= 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", BUS),
        ("PCI:0000:3b:00", BUS),
        ("0000:3b:00.0", BUS),
        ("00010000:01:00.0", "10000:01:00"),
        ("3b:00.0", BUS),
        ("", None),
        ("GPU-0b32a29e", None),
    ],
)
def test_bus_ids_in_everybody_s_spelling(text: str, expected: str | None) -> None:
    assert bus_id(text) == expected
    if expected is not None:
        assert bus_id(sysfs_name(expected)) == expected


def test_a_record_of_the_kernel() -> None:
    found = parse(b"4,1234,987654321,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
    assert found == Record(0, 4, 1234, 987654321, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1")
    user = parse(b"12,1235,987654322,-;NVRM: Xid (PCI:0000:3b:00): 79\n")
    assert user is not None
    assert (user.facility, user.level) == (1, 4)
    escaped = parse(b"6,1,2,c,caller=T1;tab\\x09 and \\xff\n")
    assert escaped is not None
    assert escaped.text == "tab\t and \N{REPLACEMENT CHARACTER}"


@given(st.binary())
def test_any_bytes_are_a_record_or_none(content: bytes) -> None:
    found = parse(content)
    assert found is None or found.facility >= 0


def test_the_same_error_from_both_sources_is_one() -> None:
    counter = XidCounter()
    assert counter.add(report("nvml_events", 100.0))
    assert not counter.add(report("kernel_log", 101.0))
    assert counter.add(report("kernel_log", 102.0)), "the log tells of a second one"
    assert not counter.add(report("nvml_events", 102.5))
    assert counter.counts(BUS) == {"79": 2.0}


def test_the_same_error_twice_from_one_source_is_two() -> None:
    counter = XidCounter()
    assert [counter.add(report("kernel_log", 100.0)) for _ in range(3)] == [True, True, True]
    assert counter.counts(BUS) == {"79": 3.0}


def test_what_lies_further_apart_is_another_error() -> None:
    counter = XidCounter()
    counter.add(report("nvml_events", 100.0))
    assert counter.add(report("kernel_log", 100.0 + MATCH_WITHIN_S + 0.1))
    assert counter.counts(BUS) == {"79": 2.0}


def test_gpus_and_numbers_do_not_mix() -> None:
    counter = XidCounter()
    counter.add(report("nvml_events", 100.0, xid=48))
    assert counter.add(report("kernel_log", 100.0, xid=63))
    assert counter.add(report("kernel_log", 100.0, xid=48, bus="0000:86:00"))


@given(st.lists(st.tuples(st.sampled_from(["nvml_events", "kernel_log"]), st.floats(0, MATCH_WITHIN_S)), max_size=60))
def test_within_the_window_the_louder_source_is_believed(told: list[tuple[str, float]]) -> None:
    """The oracle: of n reports of one source and m of the other, max(n, m) errors, in whatever order they come."""
    counter = XidCounter()
    for source, time_s in told:
        counter.add(report(source, time_s))
    per_source = Counter(source for source, _ in told)
    assert counter.counts(BUS).get("79", 0.0) == max(per_source.values(), default=0)


def test_common_ones_stand_at_zero_before_anything_happens() -> None:
    counter = XidCounter()
    counter.expect([BUS])
    points = {point.tags: point.value for point in counter.points({BUS: "0"}) if point.name == "aie_gpu_xid_errors_total"}
    assert points == {(("gpu", "0"), ("xid", str(xid))): 0.0 for xid in COMMON}
    assert counter.counts(BUS) == {}
    assert not [point for point in counter.points({BUS: "0"}) if point.name == "aie_gpu_xid_last_timestamp_seconds"]


def test_what_was_before_the_agent_is_seen_and_not_counted() -> None:
    counter = XidCounter()
    counter.note_old(report("kernel_log", 50.0))
    values = {point.name: point.value for point in counter.points({BUS: "0"})}
    assert values == {"aie_gpu_xid_errors_total": 0.0, "aie_gpu_xid_last_timestamp_seconds": 50.0}
    assert counter.add(report("nvml_events", 51.0)), "it does not stand for one that comes now"


def test_a_gpu_that_nvml_never_showed_goes_by_its_bus_id() -> None:
    counter = XidCounter()
    counter.add(report("kernel_log", 1.0))
    assert {dict(point.tags)["gpu"] for point in counter.points({})} == {BUS}
    assert {dict(point.tags)["gpu"] for point in counter.points({BUS: "3"})} == {"3"}, "and by its index once it is known"


def test_a_flood_of_numbers_and_boards_is_bounded() -> None:
    counter = XidCounter()
    for number in range(3 * MAX_NUMBERS_OF_A_GPU):
        counter.add(report("kernel_log", 1.0, xid=number))
    for board in range(3 * MAX_GPUS):
        counter.add(report("kernel_log", 1.0, bus=f"{board:04x}:00:00"))
    assert len({point.tags for point in counter.points({})}) <= MAX_NUMBERS_OF_A_GPU + MAX_GPUS * len(COMMON)
    assert counter.refused >= 2 * MAX_NUMBERS_OF_A_GPU


def test_the_catalogue_is_in_order_and_says_what_to_do() -> None:
    numbers = [xid.number for xid in XIDS]
    assert numbers == sorted(set(numbers))
    assert {13, 31, 43, 45, 48, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95, 119, 120} <= set(COMMON)
    assert all(xid.meaning and xid.action.endswith(".") for xid in XIDS)
    assert describe(79) == f"XID 79: {BY_NUMBER[79].meaning}"
    assert describe(9999) == "XID 9999"


def test_what_the_drivers_tracepoint_tells() -> None:
    """Its device is written as in the log; a device that is no GPU is none of ours."""
    told = from_tracepoint("0000:3b:00", 31, "pid='4242', name=python, Ch 00000008", 5.0)
    assert told == XidReport("0000:3b:00", 31, 5.0, "tracepoint", 4242, "pid='4242', name=python, Ch 00000008")
    assert from_tracepoint("nvswitch0", 31, "", 5.0) is None
