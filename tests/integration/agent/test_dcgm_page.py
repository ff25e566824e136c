"""The page with dcgm-exporter's names: the stand-in's numbers, in its units, as boards and rules in the field ask for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from aie_agent import simulate
from aie_agent.config import GpuSection
from aie_agent.outputs.dcgm import ROWS, DcgmPage
from aie_agent.samples import Batch, Point
from aie_agent.sources.kernel_log import KernelLog
from aie_agent.sources.nvml.source import NvmlSource
from aie_agent.sources.nvml.xids import Xids
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE, Kind

AIE_AGENT = [str(Path(sys.executable).parent / "aie-agent")]

# What board 12239 asks for, and the alerts that AWS ships for HyperPod.
ASKED_FOR = (
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_POWER_VIOLATION",
)


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[simulate.Controller]:
    controller = simulate.install(2, "H100", state_file=tmp_path / "gpus")
    controller.freeze()
    controller.set_load(0, 0.73)
    controller.set_processes(0, [simulate.Process(4_000_000, (12 << 30) + 12345)])
    yield controller
    controller.close()


class World:
    """A store that the source of GPUs fills."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = Store(max_series=5000, retention_s=300)
        self.xids = Xids(kernel_log=KernelLog(tmp_path / "none"))
        self.source = NvmlSource(GpuSection(), lambda: None, self.xids)
        self.page = DcgmPage(self.store, 'host "7"')
        self.now_s = 1000.0

    async def cycles(self, gpus: simulate.Controller, number: int) -> None:
        for _ in range(number):
            self.now_s += 1.0
            gpus.advance(1.0)
            self.store.apply(await self.source.collect(self.now_s))

    def families(self) -> dict[str, Metric]:
        return {family.name: family for family in text_string_to_metric_families(self.page.render(self.now_s))}


def values(family: Metric) -> dict[str, float]:
    return {sample.labels["gpu"]: sample.value for sample in family.samples}


async def test_every_number_is_the_drivers_own(gpus: simulate.Controller, tmp_path: Path) -> None:
    world = World(tmp_path)
    deadline = time.monotonic() + 60
    while "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" not in world.families():  # GPM needs two samples some time apart
        assert time.monotonic() < deadline
        await world.cycles(gpus, 1)
        await asyncio.sleep(0.02)
    found = world.families()
    assert set(ASKED_FOR) <= {name for family in found.values() for name in {sample.name for sample in family.samples}} | set(found)
    pynvml.nvmlInit()
    for gpu in ("0", "1"):
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        expected = {
            "DCGM_FI_DEV_SM_CLOCK": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "DCGM_FI_DEV_MEM_CLOCK": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "DCGM_FI_DEV_GPU_TEMP": pynvml.nvmlDeviceGetTemperature(handle, 0),
            "DCGM_FI_DEV_POWER_USAGE": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
            "DCGM_FI_DEV_GPU_UTIL": rates.gpu,
            "DCGM_FI_DEV_MEM_COPY_UTIL": rates.memory,
            "DCGM_FI_DEV_FB_USED": memory.used >> 20,
            "DCGM_FI_DEV_FB_FREE": memory.free >> 20,
            "DCGM_FI_DEV_FB_RESERVED": memory.reserved >> 20,
            "DCGM_FI_DEV_FB_TOTAL": memory.total >> 20,
            "DCGM_FI_DEV_PCIE_LINK_WIDTH": pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        }
        assert {name: values(found[name])[gpu] for name in expected} == pytest.approx(expected, abs=0), gpu
    pynvml.nvmlShutdown()
    await world.source.close()
    world.xids.close()


async def test_labels_are_those_of_4_8_and_simulated_gpus_say_so(gpus: simulate.Controller, tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.cycles(gpus, 1)
    labels = world.families()["DCGM_FI_DEV_GPU_TEMP"].samples[0].labels
    assert set(labels) == {
        "gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "hostname", "DCGM_FI_DRIVER_VERSION", "simulated"
    }  # fmt: skip
    assert labels["UUID"].startswith("GPU-")
    assert (labels["device"], labels["Hostname"], labels["simulated"]) == ("nvidia0", 'host "7"', "true")
    assert labels["modelName"].startswith("NVIDIA H100")
    await world.source.close()
    world.xids.close()


async def test_the_last_xid_is_shown_until_another_comes(gpus: simulate.Controller, tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.cycles(gpus, 1)
    deadline = time.monotonic() + 60
    while "nvml_events" in world.xids.problems:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await world.cycles(gpus, 1)
    assert values(world.families()["DCGM_FI_DEV_XID_ERRORS"]) == {"0": 0.0, "1": 0.0}
    gpus.push_xid(1, 79)
    while values(world.families()["DCGM_FI_DEV_XID_ERRORS"]) != {"0": 0.0, "1": 79.0}:
        assert time.monotonic() < deadline
        await world.cycles(gpus, 1)
        await asyncio.sleep(0.01)
    labels = world.families()["DCGM_FI_DEV_XID_ERRORS"].samples[1].labels
    assert (labels["err_code"], labels["err_msg"]) == ("79", "the GPU has fallen off the bus")
    await world.source.close()
    world.xids.close()


async def test_a_lost_gpu_has_no_numbers(gpus: simulate.Controller, tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.cycles(gpus, 1)
    gpus.lose(1)
    await world.cycles(gpus, 10)
    assert set(values(world.families()["DCGM_FI_DEV_GPU_TEMP"])) == {"0"}
    await world.source.close()
    world.xids.close()


def test_promtool_finds_nothing_but_what_dcgm_calls_its_metrics(gpus: simulate.Controller, tmp_path: Path, promtool: str) -> None:
    async def run() -> str:
        world = World(tmp_path)
        await world.cycles(gpus, 12)
        page = world.page.render(world.now_s)
        await world.source.close()
        world.xids.close()
        return page

    page = asyncio.run(run())
    done = subprocess.run([promtool, "check", "metrics"], input=page.encode(), capture_output=True, check=False, timeout=60)
    complaints = [line for line in (done.stdout + done.stderr).decode().splitlines() if line.strip()]
    allowed = (
        'counter metrics should have "_total" suffix',
        "label names should be written in 'snake_case'",
        "should not include type 'counter'",
    )
    assert [line for line in complaints if not any(words in line for words in allowed)] == []


def test_nothing_known_is_an_empty_page() -> None:
    assert DcgmPage(Store(max_series=100, retention_s=300), "h").render(1.0) == ""


def test_every_row_is_of_a_metric_and_labels_that_exist() -> None:
    for row in ROWS:
        metric = CATALOGUE[row.metric]
        assert {label for label, _ in row.labels} | {"gpu"} == set(metric.labels), row.name
        assert row.name.isupper()
        if row.kind is Kind.COUNTER:
            assert metric.kind is Kind.COUNTER or row.metric == "aie_gpu_remapped_rows", row.name
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_base_units_become_dcgms_exactly() -> None:
    """What the driver said in whole units comes out as the same whole number, for every value it may have."""
    convert = {row.name: row.convert for row in ROWS}
    for percent in range(101):
        assert convert["DCGM_FI_DEV_GPU_UTIL"](percent * 0.01) == percent
    for mhz in range(0, 20_000, 7):
        assert convert["DCGM_FI_DEV_SM_CLOCK"](mhz * 1e6) == mhz
    for millijoules in (0, 1, 999, 1001, 123_456_789_012, 9_007_199_254_740):
        assert convert["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"](millijoules * 1e-3) == millijoules
        assert convert["DCGM_FI_DEV_POWER_VIOLATION"](millijoules * 1e-9) == millijoules


def test_series_of_gpus_that_nobody_described_are_left_out() -> None:
    store = Store(max_series=100, retention_s=300)
    store.apply(Batch("nvml", 1.0, [Point("aie_gpu_power_watts", Kind.GAUGE, (("gpu", "5"),), 100.0)]))
    assert DcgmPage(store, "h").render(1.0) == ""


@pytest.mark.parametrize("asked_for", [True, False])
def test_the_agent_serves_it_only_when_asked(tmp_path: Path, asked_for: bool) -> None:
    arguments = [*AIE_AGENT, "run", "--no-bpf", "--listen", "127.0.0.1:0", "--simulate-gpus", "1:H100", "--no-discovery"]
    config = tmp_path / "agent.toml"
    config.write_text(f'[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n')
    extra = ["--dcgm"] if asked_for else []
    with subprocess.Popen([*arguments, "--config", str(config), *extra], stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            base = agent.stdout.readline().rsplit(" ", 1)[-1].strip()
            if asked_for:
                deadline = time.monotonic() + 60
                while (
                    'DCGM_FI_DEV_GPU_TEMP{gpu="0"' not in urllib.request.urlopen(f"{base}/metrics/dcgm", timeout=60).read().decode()
                ):
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert b"DCGM_FI" not in urllib.request.urlopen(f"{base}/metrics", timeout=60).read()
            else:
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(f"{base}/metrics/dcgm", timeout=60)
        finally:
            agent.terminate()
    assert agent.returncode == 0
