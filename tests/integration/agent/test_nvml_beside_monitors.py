"""What the agent exports beside what nvitop and gpustat, unmodified, say of the same simulated host, field by field."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aie_agent import simulate
from tests.fakes.stand_in import needs_compiler
from tests.integration.agent.nvml_agent import DEADLINE_S, Running, agent

pytestmark = needs_compiler

GIB = 1 << 30
GPUS = 2
GPUSTAT = Path(sys.executable).with_name("gpustat")
Page = Mapping[tuple[str, ...], float]
"""The page's numbers, by metric, GPU and the values of the other labels."""

# The busy GPU's, each its own: what is swapped shows.
READINGS: Final = {
    "gpu_percent": 71,
    "memory_percent": 42,
    "encoder_percent": 13,
    "decoder_percent": 14,
    "temperature_c": 63,
    "memory_temperature_c": 77,
    "power_mw": 512_000,
    "sm_mhz": 1755,
    "graphics_mhz": 1740,
    "memory_mhz": 2610,
    "video_mhz": 1455,
    "pcie_tx_kb_per_s": 1_000_000,
    "pcie_rx_kb_per_s": 3_000_000,
    "nvlink_tx_kib_per_s": 5_000_000,
    "nvlink_rx_kib_per_s": 50_000_000,
    "performance_state": 2,
    "fan_percent": 44,
}

# The agent's series, what gpustat calls it, and how many of gpustat's units are one of the agent's.
OF_GPUSTAT: Final[tuple[tuple[tuple[str, ...], str, float], ...]] = (
    (("aie_gpu_utilization_ratio",), "utilization.gpu", 100),
    (("aie_gpu_encoder_utilization_ratio",), "utilization.enc", 100),
    (("aie_gpu_decoder_utilization_ratio",), "utilization.dec", 100),
    (("aie_gpu_temperature_celsius", "gpu"), "temperature.gpu", 1),
    (("aie_gpu_fan_speed_ratio",), "fan.speed", 100),
    (("aie_gpu_power_watts",), "power.draw", 1),
    (("aie_gpu_power_limit_watts",), "enforced.power.limit", 1),
    (("aie_gpu_memory_used_bytes",), "memory.used", 1 / simulate.MIB),
    (("aie_gpu_memory_total_bytes",), "memory.total", 1 / simulate.MIB),
)
OF_NVITOP: Final[tuple[tuple[tuple[str, ...], str, float], ...]] = (
    (("aie_gpu_utilization_ratio",), "gpu_utilization", 100),
    (("aie_gpu_memory_utilization_ratio",), "memory_utilization", 100),
    (("aie_gpu_encoder_utilization_ratio",), "encoder_utilization", 100),
    (("aie_gpu_decoder_utilization_ratio",), "decoder_utilization", 100),
    (("aie_gpu_temperature_celsius", "gpu"), "temperature", 1),
    (("aie_gpu_fan_speed_ratio",), "fan_speed", 100),
    (("aie_gpu_power_watts",), "power_usage", 1000),
    (("aie_gpu_power_limit_watts",), "power_limit", 1000),
    (("aie_gpu_memory_used_bytes",), "memory_used", 1),
    (("aie_gpu_memory_free_bytes",), "memory_free", 1),
    (("aie_gpu_memory_total_bytes",), "memory_total", 1),
    (("aie_gpu_memory_reserved_bytes",), "memory_reserved", 1),
    (("aie_gpu_clock_hertz", "graphics"), "clock_graphics", 1e-6),
    (("aie_gpu_clock_hertz", "sm"), "clock_sm", 1e-6),
    (("aie_gpu_clock_hertz", "memory"), "clock_memory", 1e-6),
    (("aie_gpu_clock_hertz", "video"), "clock_video", 1e-6),
    (("aie_gpu_clock_max_hertz", "graphics"), "max_clock_graphics", 1e-6),
    (("aie_gpu_clock_max_hertz", "sm"), "max_clock_sm", 1e-6),
    (("aie_gpu_clock_max_hertz", "memory"), "max_clock_memory", 1e-6),
    (("aie_gpu_clock_max_hertz", "video"), "max_clock_video", 1e-6),
    (("aie_gpu_performance_state",), "performance_state", 1),
    (("aie_gpu_persistence_mode",), "persistence_mode", 1),
    (("aie_gpu_mig_mode",), "mig_mode", 1),
    (("aie_gpu_ecc_errors_total", "volatile", "uncorrected"), "ecc_uncorrected", 1),
)
# Means over some time: near, not the same.
RATES: Final[tuple[tuple[tuple[str, ...], str, float], ...]] = (
    (("aie_gpu_pcie_bytes_per_second", "tx"), "pcie_tx", 1e-3),
    (("aie_gpu_pcie_bytes_per_second", "rx"), "pcie_rx", 1e-3),
)

# The agent's page has counters: this is what its snapshot makes of them, which takes some seconds to be near.
NVLINKS: Final = (("nvlink_tx_bytes_per_second", "nvlink_tx", 1 / 1024), ("nvlink_rx_bytes_per_second", "nvlink_rx", 1 / 1024))

NVITOP = """
import json
from nvitop import NA, Device
def plain(value):
    return None if value is NA else value
def of(device):
    memory, clocks, most = device.memory_info(), device.clock_infos(), device.max_clock_infos()
    nvlinks = device.nvlink_throughput(0.5)
    shown = {
        "uuid": device.uuid(), "name": device.name(), "bus_id": device.bus_id(),
        "gpu_utilization": device.gpu_utilization(), "memory_utilization": device.memory_utilization(),
        "encoder_utilization": device.encoder_utilization(), "decoder_utilization": device.decoder_utilization(),
        "temperature": device.temperature(), "fan_speed": device.fan_speed(),
        "power_usage": device.power_usage(), "power_limit": device.power_limit(),
        "memory_used": memory.used, "memory_free": memory.free, "memory_total": memory.total, "memory_reserved": memory.reserved,
        "performance_state": int(device.performance_state()[1:]),
        "persistence_mode": int(device.persistence_mode() == "Enabled"), "mig_mode": int(device.mig_mode() == "Enabled"),
        "ecc_uncorrected": device.total_volatile_uncorrected_ecc_errors(),
        "pcie_tx": device.pcie_tx_throughput(), "pcie_rx": device.pcie_rx_throughput(),
        "nvlink_count": device.nvlink_link_count(),
        **{
            "nvlink_" + way: sum(getattr(link, way) for link in nvlinks) if nvlinks and NA not in nvlinks[0] else None
            for way in ("tx", "rx")
        },
        **{"clock_" + name: getattr(clocks, name) for name in clocks._fields},
        **{"max_clock_" + name: getattr(most, name) for name in most._fields},
    }
    shown = {key: plain(value) for key, value in shown.items()}
    shown["processes"] = {
        pid: [plain(process.gpu_memory()), plain(process.gpu_sm_utilization())] for pid, process in device.processes().items()
    }
    return shown
print(json.dumps([of(device) for device in Device.all()]))
"""


@pytest.fixture(name="host", params=["A100", "H100", "B200"])
def fixture_host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[simulate.Controller]:
    """Two GPUs: one at rest, and one at work with figures of its own. Time runs, and they stay."""
    with simulate.Controller.create(tmp_path / "state", GPUS, request.param) as controller:
        for reading, value in READINGS.items():
            controller.fix(1, reading, value)
        controller.set(1, power_limit_mw=350_000, ecc_uncorrected_volatile=5, fans=1)
        processes = [
            simulate.Process(os.getpid(), 20 * GIB, sm_percent=33),
            simulate.Process(os.getppid(), 8 * GIB, sm_percent=21),
        ]
        controller.set_processes(1, processes)
        yield controller


def run(host: simulate.Controller, *command: str) -> Any:
    environment = {**os.environ, **simulate.environment(host.path), "LOGLEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def page_of(running: Running) -> Page:
    found = {}
    for family in text_string_to_metric_families(running.get("/metrics")):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("aie_gpu_") and "gpu" in labels:
                gpu = labels.pop("gpu")
                found[sample.name, gpu, *(labels[name] for name in sorted(labels))] = sample.value
    return found


def whole_page(running: Running) -> Page:
    """Once everything has come that takes two readings."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        page = page_of(running)
        if all(number(page, series, gpu) is not None for series, _, _ in RATES for gpu in range(GPUS)):
            return page
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def number(page: Page, series: tuple[str, ...], gpu: int) -> float | None:
    return page.get((series[0], str(gpu), *series[1:]))


def described(running: Running, gpu: int) -> dict[str, Any]:
    """What the snapshot has of a GPU, once it knows how busy each process is, which takes two readings."""
    snapshot = running.until(lambda found: all(row["sm_ratio"] is not None for row in found["gpus"][gpu]["processes"]))
    found: dict[str, Any] = snapshot["gpus"][gpu]
    return found


def is_near(snapshot: Any, gpu: int, field: str, expected: float) -> bool:
    return bool(snapshot["gpus"][gpu][field] == pytest.approx(expected, rel=0.2, abs=1))


def test_the_agent_says_what_gpustat_and_nvitop_say(host: simulate.Controller, tmp_path: Path) -> None:
    with agent(tmp_path, environment=simulate.environment(host.path)) as running:
        page = whole_page(running)
        of_gpustat = run(host, str(GPUSTAT), "--json")["gpus"]
        of_nvitop = run(host, sys.executable, "-c", NVITOP)
        for gpu in range(GPUS):
            for fields, theirs in ((OF_GPUSTAT, of_gpustat[gpu]), (OF_NVITOP, of_nvitop[gpu])):
                ours = {
                    key: (None if (found := number(page, series, gpu)) is None else found * scale) for series, key, scale in fields
                }
                # Where they say that there is no such thing (None), the agent has no series.
                assert {key: value for key, value in ours.items() if value is not None} == pytest.approx(
                    {key: theirs[key] for key in ours if theirs[key] is not None}, rel=1e-9
                )
            for series, key, scale in RATES:
                found = number(page, series, gpu)
                assert found is not None
                assert found * scale == pytest.approx(of_nvitop[gpu][key], rel=0.05, abs=1)
            shown = described(running, gpu)
            for field, key, scale in NVLINKS:
                # Of links of the fifth generation, which are counted in another way, nvitop says nothing.
                set_to = READINGS[f"{key}_kib_per_s"] if gpu == 1 else 0
                theirs = of_nvitop[gpu][key] if of_nvitop[gpu][key] is not None else set_to
                assert gpu == 0 or theirs == pytest.approx(set_to, rel=0.05)
                running.until(partial(is_near, gpu=gpu, field=field, expected=theirs / scale))
            links = [number(page, ("aie_gpu_nvlink_links", state), gpu) or 0 for state in ("active", "inactive")]
            assert sum(links) == of_nvitop[gpu]["nvlink_count"] > 0
            assert shown["nvlinks_active"] == links[0]
            assert shown["uuid"] == of_gpustat[gpu]["uuid"] == of_nvitop[gpu]["uuid"]
            assert shown["name"] == of_gpustat[gpu]["name"] == of_nvitop[gpu]["name"]
            assert shown["pci_bus_id"] == of_nvitop[gpu]["bus_id"]
            processes = {row["tgid"]: (row["memory_bytes"], row["sm_ratio"]) for row in shown["processes"]}
            assert {tgid: used // simulate.MIB for tgid, (used, _) in processes.items()} == {
                row["pid"]: row["gpu_memory_usage"] for row in of_gpustat[gpu]["processes"]
            }
            in_percent = {str(tgid): [used, round(100 * busy)] for tgid, (used, busy) in processes.items()}
            assert in_percent == of_nvitop[gpu]["processes"]
        assert of_nvitop[1]["processes"], "or the comparison was of nothing"
        assert number(page, ("aie_gpu_fan_speed_ratio",), 0) is None
        assert number(page, ("aie_gpu_fan_speed_ratio",), 1) is not None
