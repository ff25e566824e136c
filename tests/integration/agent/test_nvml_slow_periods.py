"""GPUs that are read as rarely as once a minute: what is told of the time between two looks is told then, too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from aie_agent.simulate import Controller
from aie_agent.sources.nvml import gpm
from aie_agent.sources.nvml.door import Device, Door
from tests.integration.agent import nvml_host as host


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Controller]:
    with host.simulated(tmp_path / "gpus", 1, "H100") as controller:
        host.quiet(controller, 1)
        yield controller


@pytest.mark.parametrize("period_s", [1.0, 20.0, 60.0])
def test_gpm_tells_as_often_as_it_is_asked(gpus: Controller, period_s: float) -> None:
    """And nothing after a time in which it was not."""
    pynvml.nvmlInit()
    device = Device(0, pynvml.nvmlDeviceGetHandleByIndex(0))
    reader = gpm.GpmReader(Door(pynvml), device, gpm.GPU_ROWS, period_s=period_s)
    assert reader.read(0.0) is None
    for look in range(1, 4):
        gpus.advance(period_s)
        numbers = reader.read(look * period_s)
        assert numbers is not None
        assert isinstance(numbers[1], float)
    assert reader.read(1000.0) is None
    reader.close()
    pynvml.nvmlShutdown()


async def test_what_is_read_apart_holds_until_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs that are read once a minute: PCIe's traffic is that of the look before."""
    with host.simulated(tmp_path / "a100", 1, "A100") as old:
        old.fix(0, "pcie_tx_kb_per_s", 1_000_000)
        for field in (197, 198):
            old.fail_field(field, pynvml.NVML_ERROR_NOT_SUPPORTED)
        at = host.source(host.section(period=60.0, slow_period=60.0))
        await host.look(at)
        at_s = time.monotonic()
        monkeypatch.setattr("aie_agent.sources.nvml.gpu.time.monotonic", lambda: at_s + 60.0)
        (gpu,) = at._session.gpus
        assert {dict(point.tags)["direction"]: point.value for point in gpu.apart()}["tx"] == 1e9
        monkeypatch.setattr("aie_agent.sources.nvml.gpu.time.monotonic", lambda: at_s + 200.0)
        assert gpu.apart() == []
        monkeypatch.undo()
        await at.close()
