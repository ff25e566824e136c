"""Links that are slower than they should be, and everything else that a GPU's page calls a problem."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.analysis.gpu_problems import problems
from aie_agent.analysis.links import BUSY_FOR_S, Link, Moment, best_while_busy, generation_problem, width_problem
from aie_agent.outputs.gpus import gpus
from aie_agent.samples import Batch, Point
from aie_agent.sources.nvml.slots import Slot, capped, generation, lanes, read_slot
from aie_agent.store import Store
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
    assert "the slot has no more" in (width_problem(FULL._replace(width=8, port_width=8)) or "")


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


def sysfs(root: Path, card: tuple[str, str], port: tuple[str, str]) -> Path:
    """A card below a port, as /sys/devices has them, and the links of /sys/bus/pci/devices."""
    devices = root / "bus"
    devices.mkdir()
    upstream = root / "devices/pci0000:00/0000:00:01.0"
    place = upstream / "0000:3b:00.0"
    place.mkdir(parents=True)
    for directory, (speed, width) in ((upstream, port), (place, card)):
        (directory / "max_link_speed").write_text(speed)
        (directory / "max_link_width").write_text(width)
    (devices / "0000:3b:00.0").symlink_to(place)
    return devices


def test_the_slot_is_the_port_above(tmp_path: Path) -> None:
    root = sysfs(tmp_path, ("32.0 GT/s PCIe\n", "16\n"), ("16.0 GT/s PCIe\n", "8\n"))
    assert read_slot("0000:3b:00", root) == Slot(5, 16, 4, 8)
    assert read_slot("0000:99:00", root) is None


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
    found = {point.name: point.value for point in capped(points, Slot(5, 16, port, 16))}
    assert found == {"aie_gpu_pcie_link_generation": now, "aie_gpu_pcie_link_generation_max": expected}
    assert capped(points, None) == points


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
        ):
            self.set(name, value)
        self.set("aie_gpu_up", 1.0, reason="")
        self.set("aie_gpu_ecc_errors_total", 0.0, type="uncorrected", since="volatile")

    def set(self, name: str, value: float, **labels: str) -> None:
        self.values[name, tuple(labels.items())] = value

    def problems(self) -> tuple[str, ...]:
        for second in range(int(BUSY_FOR_S) + 2):
            points = [gauge(name, value, **dict(labels)) for (name, labels), value in self.values.items()]
            self.store.apply(Batch("nvml", 100.0 + second, points))
        return gpus(self.store, 100.0 + second, 60.0)[0].problems


def test_a_gpu_that_is_well_has_no_problems() -> None:
    assert World().problems() == ()


@pytest.mark.parametrize(
    ("name", "value", "labels", "expected"),
    [
        ("aie_gpu_pcie_link_width", 8.0, {}, "8 lanes of 16"),
        ("aie_gpu_pcie_link_generation", 3.0, {}, "generation 3 of 5"),
        ("aie_gpu_row_remap_pending", 1.0, {}, "waits to be replaced"),
        ("aie_gpu_row_remap_failed", 1.0, {}, "have the board replaced"),
        ("aie_gpu_power_limit_watts", 400.0, {}, "limited to 400 W of the board's 700 W"),
        ("aie_gpu_orphan_processes", 2.0, {}, "2 orphan processes hold memory 0.0 GiB"),
        ("aie_gpu_ecc_errors_total", 3.0, {"type": "uncorrected", "since": "volatile"}, "3 uncorrected ECC errors"),
    ],
)
def test_each_problem_alone(name: str, value: float, labels: dict[str, str], expected: str) -> None:
    world = World()
    world.set(name, value, **labels)
    found = world.problems()
    assert len(found) == 1
    assert expected in found[0]


def test_nothing_known_is_nothing_wrong() -> None:
    assert problems({}, 0.0) == ()
