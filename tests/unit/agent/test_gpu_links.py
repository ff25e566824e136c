"""Links that are slower than they should be, and everything else that a GPU's page calls a problem."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.analysis.gpu_problems import faults
from aie_agent.analysis.links import (
    BUSY_FOR_S,
    Link,
    Moment,
    best_while_busy,
    card_lanes,
    generation_problem,
    slot_problem,
    width_problem,
)
from aie_agent.outputs.gpus import gpus
from aie_agent.samples import Batch, Point
from aie_agent.sources.nvml.slots import Slot, capped, generation, judged, lanes, read_slot
from aie_agent.store import Store
from aie_telemetry.api import GpuFault
from aie_telemetry.catalogue import CATALOGUE

FULL = Link(width=16, width_max=16, generation=5, generation_max=5)


def busy(generation_: int, seconds: int = 11, ratio: float = 0.9, state: int | None = 0) -> list[Moment]:
    return [Moment(float(second), generation_, ratio, state) for second in range(seconds)]


def test_a_link_as_it_should_be() -> None:
    assert width_problem(FULL) is None
    assert generation_problem(FULL, busy(5), 10.0) is None


@pytest.mark.parametrize(
    "link",
    [
        Link(),
        Link(width=8),
        Link(width_max=16),
        Link(width=0, width_max=16),
        Link(width=1, width_max=16, unified_memory=True),
        Link(width=16, width_max=8),
    ],
)
def test_no_width_finding_where_nothing_is_known_or_nothing_is_wrong(link: Link) -> None:
    assert width_problem(link) is None


def test_fewer_lanes_are_a_problem_also_when_idle() -> None:
    assert "8 lanes of 16" in (width_problem(FULL._replace(width=8)) or "")
    assert "reseat" in (width_problem(FULL._replace(width=8)) or "")


def test_a_wide_card_in_a_narrow_slot_is_the_slots_fault_and_one_fault() -> None:
    """NVML's own maximum is 8 there on some drivers: the kernel's is the card's."""
    link = Link(width=8, width_max=card_lanes(8, 16), port_width=8)
    assert "16 PCIe lanes, its slot 8" in (slot_problem(link) or "")
    assert width_problem(link) is None
    worse = link._replace(width=4)
    assert slot_problem(worse) is not None
    assert "4 lanes of 8" in (width_problem(worse) or ""), "and it does not even have those: two things are wrong"


@pytest.mark.parametrize(
    "link",
    [
        Link(width=8, width_max=card_lanes(8, 8), port_width=16),  # a narrow card in a wide slot
        Link(width=8, width_max=card_lanes(None, 8), port_width=8),  # a bifurcated slot: both have 8
        Link(width=16, width_max=card_lanes(16, 16), port_width=16),
        Link(width=16, width_max=card_lanes(16, 16), port_width=1),  # a hypervisor's port
        Link(width=16, width_max=card_lanes(16, None), port_width=None),
        Link(width=1, width_max=card_lanes(1, 16), port_width=1, unified_memory=True),
        Link(width=None, width_max=None, port_width=8),
    ],
)
def test_lanes_that_are_as_they_were_built(link: Link) -> None:
    assert slot_problem(link) is None
    assert width_problem(link) is None


@given(*[st.none() | st.sampled_from([1, 2, 4, 8, 16])] * 4)
def test_no_lanes_are_missed_that_nobody_has(width: int | None, nvml: int | None, kernel: int | None, port: int | None) -> None:
    link = Link(width=width, width_max=card_lanes(nvml, kernel), port_width=port)
    if width is not None and width >= max(nvml or 0, kernel or 0):
        assert width_problem(link) is None
        assert slot_problem(link) is None


def test_an_older_generation_while_busy() -> None:
    link = FULL._replace(generation=3)
    text = generation_problem(link, busy(3), 10.0)
    assert text is not None
    assert "generation 3 of 5" in text


def test_the_lesser_of_card_and_slot_is_what_can_be() -> None:
    assert generation_problem(Link(generation=4, generation_max=5, port_generation=4), busy(4), 10.0) is None
    assert "of 4" in (generation_problem(Link(generation=3, generation_max=5, port_generation=4), busy(3), 10.0) or "")
    hypervisors = Link(generation=4, generation_max=5, port_generation=1)
    assert "of 5" in (generation_problem(hypervisors, busy(4), 10.0) or ""), "a port cannot allow less than what runs"


@pytest.mark.parametrize(
    "recent",
    [
        [],
        busy(1, seconds=3),
        busy(1, ratio=0.2),
        busy(1, state=8),
        [*busy(1, seconds=10), Moment(10.0, 5, 0.9, 0)],
        [*busy(1, seconds=10), Moment(10.0, 1, 0.0, 0)],
    ],
)
def test_what_proves_nothing(recent: list[Moment]) -> None:
    assert generation_problem(FULL._replace(generation=1), recent, 10.0) is None


def test_unified_memory_has_no_link_to_judge() -> None:
    """GB10 says Gen1 x1, and every tool called it degraded."""
    spark = Link(width=1, width_max=16, generation=1, generation_max=5, unified_memory=True)
    assert width_problem(spark) is None
    assert generation_problem(spark, busy(1), 10.0) is None


def test_a_day_of_idle_and_busy_times_brings_no_alarm() -> None:
    """The null: a good link that goes down to generation 1 whenever the GPU idles, and comes up a second after the work does."""
    dice = random.Random(7)
    recent: list[Moment] = []
    working, left = False, 0
    for second in range(86_400):
        if left == 0:
            working, left = not working, dice.randint(1, 120)
        left -= 1
        up = working and (not recent or recent[-1].utilization_ratio >= 0.5)
        recent.append(Moment(float(second), 5 if up else 1, dice.uniform(0.5, 1.0) if working else dice.uniform(0, 0.2), None))
        recent = recent[-12:]
        assert generation_problem(FULL._replace(generation=recent[-1].generation), recent, float(second)) is None, second


def test_readings_that_come_once_a_minute_are_judged_by_as_many() -> None:
    minutes = [moment._replace(time_s=60.0 * moment.time_s) for moment in busy(3, seconds=6)]
    assert "generation 3 of 5" in (generation_problem(FULL._replace(generation=3), minutes, 310.0) or "")
    assert generation_problem(FULL._replace(generation=3), minutes[:4], 190.0) is None
    rested = [*minutes[:3], minutes[3]._replace(utilization_ratio=0.1), *minutes[4:]]
    assert generation_problem(FULL._replace(generation=3), rested, 310.0) is None
    assert generation_problem(FULL._replace(generation=5), [*minutes[:3], minutes[3]._replace(generation=5)], 190.0) is None


def test_a_month_of_idle_and_busy_times_looked_at_once_a_minute_brings_no_alarm() -> None:
    """The null, where most of what the GPU does is not seen."""
    dice = random.Random(11)
    recent: list[Moment] = []
    begins_s, ends_s = 0.0, 0.0
    for minute in range(30 * 24 * 60):
        now_s = 60.0 * minute
        while ends_s <= now_s:
            begins_s = ends_s + dice.uniform(0.0, 30.0)
            ends_s = begins_s + dice.uniform(2.0, 300.0)
        working = now_s >= begins_s
        recent.append(Moment(now_s, 5 if now_s >= begins_s + 1.0 else 1, 0.9 if working else 0.1, None))
        recent = recent[-6:]
        assert generation_problem(FULL._replace(generation=recent[-1].generation), recent, now_s) is None, minute


@given(
    st.lists(st.builds(Moment, st.floats(0, 10), st.integers(1, 6), st.floats(0, 1), st.none() | st.integers(0, 15)), max_size=15)
)
def test_only_what_was_seen_is_claimed(recent: list[Moment]) -> None:
    best = best_while_busy(sorted(recent, key=lambda moment: moment.time_s))
    assert best is None or best in {moment.generation for moment in recent}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32.0 GT/s PCIe\n", 5),
        ("16.0 GT/s PCIe", 4),
        ("2.5 GT/s", 1),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("", None),
        ("9 GT/s", None),
    ],
)
def test_speeds_as_the_kernel_writes_them(text: str, expected: int | None) -> None:
    assert generation(text) == expected


def test_widths_as_the_kernel_writes_them() -> None:
    assert [lanes(text) for text in ("16\n", "8", "0", "255", "", "x")] == [16, 8, None, None, None, None]


def sysfs(root: Path, card: tuple[str, str], port: tuple[str, str], vendor: str = "0x8086\n") -> Path:
    """A card below a port of this vendor, as /sys/devices has them, and the links of /sys/bus/pci/devices."""
    devices = root / "bus"
    devices.mkdir()
    upstream = root / "devices/pci0000:00/0000:00:01.0"
    place = upstream / "0000:3b:00.0"
    place.mkdir(parents=True)
    for directory, (speed, width) in ((upstream, port), (place, card)):
        (directory / "max_link_speed").write_text(speed)
        (directory / "max_link_width").write_text(width)
    (upstream / "vendor").write_text(vendor)
    (devices / "0000:3b:00.0").symlink_to(place)
    return devices


def test_the_slot_is_the_port_above(tmp_path: Path) -> None:
    root = sysfs(tmp_path, ("32.0 GT/s PCIe\n", "16\n"), ("16.0 GT/s PCIe\n", "8\n"))
    assert read_slot("0000:3b:00", root) == Slot(5, 16, 4, 8)
    assert read_slot("0000:99:00", root) is None


@pytest.mark.parametrize(
    ("port", "vendor"),
    [
        (("16.0 GT/s PCIe", "32"), "0x8086\n"),  # no board has such a slot
        (("32.0 GT/s PCIe", "16"), "0x1b36\n"),
        (("2.5 GT/s PCIe", "1"), "0x1b36\n"),
        (("8.0 GT/s PCIe", "16"), "0x1af4\n"),
        (("5.0 GT/s PCIe", "32"), "0x15ad\n"),
    ],
)
def test_what_a_hypervisors_port_claims_is_not_believed(tmp_path: Path, port: tuple[str, str], vendor: str) -> None:
    """Also while the link idles, when it does no more than the port claims."""
    slot = read_slot("0000:3b:00", sysfs(tmp_path, ("32.0 GT/s PCIe", "16"), port, vendor))
    assert slot == Slot(5, 16, None, None, is_virtual=True)
    points = [gauge("aie_gpu_pcie_link_generation", 1.0), gauge("aie_gpu_pcie_link_generation_max", 5.0)]
    assert capped(points, slot) == points


def test_a_port_that_was_proved_wrong_is_not_believed_when_the_link_idles_again() -> None:
    """Else the highest generation would go up and down with the load."""
    slot, most = Slot(5, 16, 1, 16), []
    for now in (1.0, 5.0, 1.0, 5.0, 1.0):
        points = [gauge("aie_gpu_pcie_link_generation", now), gauge("aie_gpu_pcie_link_generation_max", 5.0)]
        slot = judged(slot, points)
        most += [point.value for point in capped(points, slot) if point.name == "aie_gpu_pcie_link_generation_max"]
    assert most == [1.0, 5.0, 5.0, 5.0, 5.0]
    assert slot.is_virtual


def test_a_port_with_fewer_lanes_than_the_link_is_not_believed_in_its_generation() -> None:
    points = [
        gauge("aie_gpu_pcie_link_generation", 1.0),
        gauge("aie_gpu_pcie_link_generation_max", 5.0),
        gauge("aie_gpu_pcie_link_width", 16.0),
    ]
    assert capped(points, Slot(5, 16, 1, 1)) == points


@given(
    st.sampled_from([None, 1, 2, 3, 4, 5]), st.sampled_from([None, 1, 4, 8, 16]), st.integers(1, 5), st.sampled_from([1, 4, 8, 16])
)
def test_a_real_port_is_believed_whatever_the_link_does(port: int | None, lanes_: int | None, generation_: int, width: int) -> None:
    """The null: a link does no more than its port."""
    slot = Slot(5, 16, port, lanes_)
    assert slot.judged(min(width, lanes_ or 16), min(generation_, port or 5)) is slot


def test_a_card_on_a_root_bus_has_no_port(tmp_path: Path) -> None:
    place = tmp_path / "devices/pci0000:00/0000:3b:00.0"
    place.mkdir(parents=True)
    (tmp_path / "0000:3b:00.0").symlink_to(place)
    assert read_slot("0000:3b:00", tmp_path) == Slot(None, None, None, None)


def gauge(name: str, value: float, **labels: str) -> Point:
    return Point(name, CATALOGUE[name].kind, tuple(sorted((labels | {"gpu": "0"}).items())), value)


@pytest.mark.parametrize(
    ("port", "now", "expected"), [(4, 4.0, 4.0), (4, 1.0, 4.0), (1, 4.0, 5.0), (None, 4.0, 5.0), (6, 4.0, 5.0)]
)
def test_the_highest_generation_is_what_card_and_slot_have_in_common(port: int | None, now: float, expected: float) -> None:
    points = [gauge("aie_gpu_pcie_link_generation", now), gauge("aie_gpu_pcie_link_generation_max", 5.0)]
    found = {point.name: point.value for point in capped(points, Slot(5, 16, port, None))}
    assert found == {"aie_gpu_pcie_link_generation": now, "aie_gpu_pcie_link_generation_max": expected}
    assert capped(points, None) == points


@pytest.mark.parametrize(
    ("slot", "width", "nvml", "expected"),
    [
        (Slot(5, 16, 5, 8), 8.0, 8.0, {"aie_gpu_pcie_link_width_max": 16.0, "aie_gpu_pcie_slot_width": 8.0}),
        (Slot(5, 8, 5, 16), 8.0, 8.0, {"aie_gpu_pcie_link_width_max": 8.0, "aie_gpu_pcie_slot_width": 16.0}),
        (Slot(5, None, 5, None), 8.0, 16.0, {"aie_gpu_pcie_link_width_max": 16.0}),
        (Slot(5, 16, 1, 1), 16.0, 16.0, {"aie_gpu_pcie_link_width_max": 16.0}),
        (None, 8.0, 16.0, {"aie_gpu_pcie_link_width_max": 16.0}),
    ],
)
def test_the_lanes_of_the_card_are_its_own_and_the_slots_stand_beside(
    slot: Slot | None, width: float, nvml: float, expected: dict[str, float]
) -> None:
    points = [gauge("aie_gpu_pcie_link_width", width), gauge("aie_gpu_pcie_link_width_max", nvml)]
    found = {point.name: point.value for point in capped(points, slot)}
    assert found == {"aie_gpu_pcie_link_width": width} | expected
    assert all(point.tags == (("gpu", "0"),) for point in capped(points, slot))


class World:
    """A store with one GPU that is well, to which a test does something."""

    def __init__(self) -> None:
        self.store = Store(max_series=1000, retention_s=300)
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for name, value in (
            ("aie_gpu_pcie_link_width", 16.0),
            ("aie_gpu_pcie_link_width_max", 16.0),
            ("aie_gpu_pcie_link_generation", 5.0),
            ("aie_gpu_pcie_link_generation_max", 5.0),
            ("aie_gpu_utilization_ratio", 0.9),
            ("aie_gpu_performance_state", 0.0),
            ("aie_gpu_row_remap_pending", 0.0),
            ("aie_gpu_row_remap_failed", 0.0),
            ("aie_gpu_power_limit_watts", 700.0),
            ("aie_gpu_power_limit_default_watts", 700.0),
            ("aie_gpu_orphan_processes", 0.0),
            ("aie_gpu_orphan_memory_bytes", 0.0),
            ("aie_gpu_memory_unified", 0.0),
            ("aie_gpu_pcie_slot_width", 16.0),
        ):
            self.set(name, value)
        self.set("aie_gpu_up", 1.0, reason="")
        self.set("aie_gpu_nvlink_links", 18.0, state="active")
        self.set("aie_gpu_nvlink_links", 0.0, state="inactive")
        self.set("aie_gpu_ecc_errors_total", 0.0, type="uncorrected", since="volatile")

    def set(self, name: str, value: float, **labels: str) -> None:
        self.values[name, tuple(labels.items())] = value

    def faults(self, climb: float = 0.0, period_s: float = 1.0) -> tuple[GpuFault, ...]:
        """What is wrong after some readings, at each of which NVLink's replays have risen by `climb`."""
        now_s = 100.0
        for number in range(int(BUSY_FOR_S) + 2):
            points = [gauge(name, value, **dict(labels)) for (name, labels), value in self.values.items()]
            points.append(gauge("aie_gpu_nvlink_errors_total", 7.0 + climb * number, kind="replay"))
            now_s += period_s
            self.store.apply(Batch("nvml", now_s, points, period_s=period_s))
        (gpu,) = gpus(self.store, now_s, 60.0)
        assert gpu.problems == tuple(fault.text for fault in gpu.faults)
        return gpu.faults


def test_a_gpu_that_is_well_has_no_faults() -> None:
    """With replays of NVLink from long ago, all links active, lanes as the slot has them."""
    assert World().faults() == ()


@pytest.mark.parametrize("period_s", [1.0, 2.0, 2.5, 10.0, 60.0])
def test_an_old_generation_is_a_fault_however_rarely_it_is_read(period_s: float) -> None:
    world = World()
    world.set("aie_gpu_pcie_link_generation", 3.0)
    (fault,) = world.faults(period_s=period_s)
    assert fault.cause == "gpu_link_generation"
    assert World().faults(period_s=period_s) == ()


def test_nvlink_replays_that_rise_are_a_fault_as_long_as_they_do() -> None:
    (fault,) = World().faults(climb=2.0)
    assert (fault.cause, fault.severity) == ("gpu_nvlink_errors", "warning")
    assert "replay" in fault.text


@pytest.mark.parametrize(
    ("name", "value", "labels", "cause", "expected"),
    [
        ("aie_gpu_pcie_link_width", 8.0, {}, "gpu_link_width", "8 lanes of 16"),
        ("aie_gpu_pcie_link_width_max", 32.0, {}, "gpu_slot_width", "32 PCIe lanes, its slot 16"),
        ("aie_gpu_pcie_link_generation", 3.0, {}, "gpu_link_generation", "generation 3 of 5"),
        ("aie_gpu_nvlink_links", 2.0, {"state": "inactive"}, "gpu_nvlink_inactive", "2 of 20 NVLinks"),
        ("aie_gpu_row_remap_pending", 1.0, {}, "gpu_row_remap", "waits to be replaced"),
        ("aie_gpu_row_remap_failed", 1.0, {}, "gpu_row_remap_failed", "have the board replaced"),
        ("aie_gpu_power_limit_watts", 400.0, {}, "gpu_power_limit", "limited to 400 W of the board's 700 W"),
        ("aie_gpu_orphan_processes", 2.0, {}, "gpu_orphan", "2 orphan processes hold memory 0.0 GiB"),
        ("aie_gpu_ecc_errors_total", 3.0, {"type": "uncorrected", "since": "volatile"}, "gpu_ecc", "3 uncorrected ECC errors"),
    ],
)
def test_each_fault_alone_and_by_its_cause(name: str, value: float, labels: dict[str, str], cause: str, expected: str) -> None:
    world = World()
    world.set(name, value, **labels)
    found = world.faults()
    assert [fault.cause for fault in found] == [cause]
    assert expected in found[0].text


@pytest.mark.parametrize(
    ("cause", "name", "value", "labels"),
    [
        ("gpu_ecc", "aie_gpu_ecc_errors_total", 5000.0, {"type": "corrected", "since": "volatile"}),
        ("gpu_ecc", "aie_gpu_ecc_errors_total", 3.0, {"type": "uncorrected", "since": "aggregate"}),  # before its last reset
        ("gpu_row_remap", "aie_gpu_remapped_rows", 2.0, {"type": "uncorrected"}),  # they are replaced
        ("gpu_row_remap_failed", "aie_gpu_row_remap_pending", 1.0, {}),  # a reset will do
        ("gpu_power_limit", "aie_gpu_power_limit_watts", 693.0, {}),  # as the board rounds it
        ("gpu_power_limit", "aie_gpu_power_limit_watts", 750.0, {}),
        ("gpu_orphan", "aie_gpu_processes", 200.0, {}),
    ],
)
def test_what_is_nearest_to_a_fault_is_not_called_one(cause: str, name: str, value: float, labels: dict[str, str]) -> None:
    world = World()
    world.set(name, value, **labels)
    assert cause not in [fault.cause for fault in world.faults()]


def test_nothing_known_is_nothing_wrong() -> None:
    assert faults({}, 0.0) == ()
