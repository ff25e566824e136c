"""What the API tells of a GPU's age and ailments, through the real source, on the stand-in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aie_agent.outputs.gpus import gpus as rows_of
from aie_agent.simulate import MIB, Controller, MigInstance
from aie_agent.sources.nvml.source import NvmlSource
from aie_agent.store import Store
from aie_telemetry.api import Gpu
from tests.integration.agent import nvml_host as host

HW_THERMAL = 0x40
WINDOW_S = 60.0


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Controller]:
    with host.simulated(tmp_path / "gpus", 2, "H100") as controller:
        host.quiet(controller, 2)
        yield controller


async def row(at: NvmlSource, store: Store, is_so: Callable[[Gpu], bool] = lambda gpu: True) -> Gpu:
    """The first GPU's, once it is as wanted. The slow calls are made in a later collection than the fast ones."""
    deadline_s = time.monotonic() + 60.0
    while True:
        for _ in range(2):
            batch = await at.collect(time.time())
            await at._end_apart()
            store.apply(batch)
        found = rows_of(store, time.time(), WINDOW_S)[0]
        if is_so(found):
            return found
        assert time.monotonic() < deadline_s, "waited in vain"
        await asyncio.sleep(0.02)


async def test_counts_of_errors_and_wear(simulated: Controller) -> None:
    store, at = Store(max_series=2000, retention_s=300), host.source()
    before = await row(at, store, lambda gpu: bool(gpu.remapped_rows))
    assert before.pcie_replays == 0
    assert (before.ecc_corrected, before.ecc_uncorrected, before.ecc_corrected_lifetime) == (0, 0, 0)
    assert before.nvlink_errors == {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}
    assert before.remapped_rows == {"corrected": 0, "uncorrected": 0}
    assert (before.remap_pending, before.remap_failed) == (False, False)
    with simulated.edit() as config:
        config.gpus[0].pcie_replays = 12
    found = await row(at, store, lambda gpu: gpu.pcie_replays == 12)
    assert found.pcie_replays_per_second is not None
    assert found.pcie_replays_per_second > 0
    await at.close()


async def test_energy_and_throttled_time_are_those_of_the_driver(simulated: Controller) -> None:
    store, at = Store(max_series=2000, retention_s=300), host.source()
    simulated.throttle(0, HW_THERMAL)
    before = await row(at, store, lambda gpu: "thermal" in gpu.throttled_seconds and gpu.energy_joules is not None)
    simulated.advance(30.0)
    found = await row(at, store, lambda gpu: gpu.throttled_seconds["thermal"] > before.throttled_seconds["thermal"])
    assert before.energy_joules is not None
    assert found.energy_joules is not None
    assert found.energy_joules > before.energy_joules
    assert found.throttled_seconds["thermal"] - before.throttled_seconds["thermal"] == pytest.approx(30.0, abs=0.1)
    assert found.throttled_seconds["power"] == before.throttled_seconds["power"]
    assert found.throttled_ratio["thermal"] == 1.0, "thirty seconds of the driver's within a moment of the agent's: all of it"
    assert found.throttled_ratio["power"] == 0.0
    await at.close()


async def test_mig_instances_with_memory(simulated: Controller) -> None:
    store, at = Store(max_series=2000, retention_s=300), host.source()
    assert (await row(at, store)).mig == ()
    simulated.set_mig(0, [MigInstance("1g.10gb", number, 9728 * MIB, 16, load_ratio=0.5) for number in (7, 8)])
    first, second = (await row(at, store, lambda gpu: len(gpu.mig) == 2)).mig
    assert (first.mig, second.mig, first.profile) == ("7/0", "8/0", "1g.10gb")
    assert first.memory_total_bytes == 9728 * MIB
    assert first.memory_used_bytes is not None
    assert first.uuid.startswith("MIG-")
    await at.close()


async def test_of_a_lost_gpu_no_count_is_told(simulated: Controller) -> None:
    store, at = Store(max_series=2000, retention_s=300), host.source()
    await row(at, store)
    simulated.lose(0)
    found = await row(at, store, lambda gpu: not gpu.up)
    assert (found.energy_joules, found.pcie_replays, found.throttled_seconds, found.mig) == (None, None, {}, ())
    await at.close()
