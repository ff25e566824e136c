"""What the API says is wrong with a GPU, from the driver and the kernel to the row: the stand-in's NVML, and a tree like sysfs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from aie_agent.outputs.gpu_since import Since
from aie_agent.outputs.gpus import gpus as rows_of
from aie_agent.simulate import Controller
from aie_agent.sources.nvml.bus_id import bus_id, sysfs_name
from aie_agent.sources.nvml.source import NvmlSource
from aie_agent.store import Store
from aie_telemetry.api import Gpu, GpuFault
from tests.integration.agent import nvml_host as host

WINDOW_S = 60.0
GPUS = 2


class Place:
    """Two GPUs in slots, the store of an agent that watches them, and what it shows."""

    def __init__(self, controller: Controller, sysfs: Path) -> None:
        self.controller = controller
        self.sysfs = sysfs
        self.store = Store(max_series=2000, retention_s=300)
        self.source: NvmlSource = host.source()
        self.since = Since()

    def slot(self, gpu: int, card: int, port: int) -> None:
        """Puts a GPU below a port of so many lanes, as /sys/bus/pci/devices has it."""
        pynvml.nvmlInit()
        bus = bus_id(pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu)).busId)
        pynvml.nvmlShutdown()
        assert bus is not None
        upstream = self.sysfs / f"devices/0000:0{gpu}:01.0"
        place = upstream / sysfs_name(bus)
        place.mkdir(parents=True)
        for directory, width in ((upstream, port), (place, card)):
            (directory / "max_link_speed").write_text("32.0 GT/s PCIe\n")
            (directory / "max_link_width").write_text(f"{width}\n")
        (self.sysfs / sysfs_name(bus)).symlink_to(place)

    async def row(self, gpu: int) -> Gpu:
        batch = await self.source.collect(time.time())
        await self.source._end_apart()
        self.store.apply(batch)
        return rows_of(self.store, batch.time_s, WINDOW_S, self.source, self.since)[gpu]

    async def faults(self, gpu: int, cause: str | None = None) -> tuple[GpuFault, ...]:
        """Of a GPU; those after `cause` has come up, if one is waited for."""
        deadline_s = time.monotonic() + 60.0
        while True:
            found = (await self.row(gpu)).faults
            if cause is None or cause in {fault.cause for fault in found}:
                return found
            assert time.monotonic() < deadline_s, f"waited in vain for {cause}: {found}"
            await asyncio.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    (tmp_path / "sysfs").mkdir()
    monkeypatch.setattr("aie_agent.sources.nvml.slots.PCI_DEVICES", tmp_path / "sysfs")
    with host.simulated(tmp_path / "gpus", GPUS, "H100") as controller:
        host.quiet(controller, GPUS)
        yield Place(controller, tmp_path / "sysfs")


async def test_a_wide_card_in_a_narrow_slot_whose_driver_tells_the_lesser(place: Place) -> None:
    """NVML's maximum is 8 of card and slot together, so that NVML alone finds nothing. The other GPU is a narrow card in a wide
    slot, and has nothing wrong."""
    for gpu in range(GPUS):
        place.controller.set(gpu, pcie_width=8, pcie_max_width=8)
    place.slot(0, card=16, port=8)
    place.slot(1, card=8, port=16)
    (fault,) = await place.faults(0, "gpu_slot_width")
    assert "16 PCIe lanes, its slot 8" in fault.text
    assert await place.faults(1) == ()
    row = await place.row(0)
    assert (row.pcie_width, row.pcie_width_max) == (8, 16)
    assert row.problems == (fault.text,)
    await place.source.close()


async def test_where_the_kernel_tells_nothing_nothing_is_claimed(place: Place) -> None:
    place.controller.set(0, pcie_width=8, pcie_max_width=8)
    assert await place.faults(0) == ()
    await place.source.close()


async def test_a_fault_keeps_the_time_at_which_it_was_seen_first(place: Place) -> None:
    await place.row(0)
    before_s = time.time()
    place.controller.set_link(0, width=4)
    (first,) = await place.faults(0, "gpu_link_width")
    assert first.since_s is not None
    assert before_s <= first.since_s <= time.time()
    (later,) = await place.faults(0)
    assert later == first
    await place.source.close()


async def test_nvlinks_that_go_and_replays_that_rise(place: Place) -> None:
    assert await place.faults(0) == ()
    with place.controller.edit() as state:
        state.gpus[0].links[3].active = 0
    (fault,) = await place.faults(0, "gpu_nvlink_inactive")
    assert "1 of 18 NVLinks" in fault.text
    with place.controller.edit() as state:
        state.gpus[0].links[0].replay_errors = 5
    errors, _ = await place.faults(0, "gpu_nvlink_errors")
    assert "replay" in errors.text
    assert await place.faults(1) == (), "and the other GPU has nothing"
    await place.source.close()
