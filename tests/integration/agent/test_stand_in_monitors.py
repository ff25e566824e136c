"""nvitop and gpustat, unmodified, on the stand-in: they show what the state file says, field by field."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aie_agent import simulate
from tests.fakes.stand_in import needs_compiler

pytestmark = needs_compiler

GIB = 1 << 30
GPUSTAT = Path(sys.executable).with_name("gpustat")
NVITOP = Path(sys.executable).with_name("nvitop")


@pytest.fixture(name="host")
def fixture_host(tmp_path: Path) -> Iterator[simulate.Controller]:
    """Two H100s; the second is at work, and every figure of it is its own."""
    with simulate.Controller.create(tmp_path / "state", 2) as controller:
        controller.freeze()
        for reading, value in {
            "gpu_percent": 71,
            "memory_percent": 42,
            "encoder_percent": 13,
            "decoder_percent": 14,
            "temperature_c": 63,
            "power_mw": 512_000,
            "sm_mhz": 1755,
            "graphics_mhz": 1740,
            "memory_mhz": 2610,
            "video_mhz": 1455,
            "pcie_tx_kb_per_s": 1_000_000,
            "pcie_rx_kb_per_s": 3_000_000,
            "nvlink_tx_kib_per_s": 0,
            "nvlink_rx_kib_per_s": 0,
            "performance_state": 2,
            "fan_percent": 44,
        }.items():
            controller.fix(1, reading, value)
        controller.set(1, power_limit_mw=650_000, ecc_uncorrected_volatile=5, fans=1, compute_mode=3)
        controller.set_processes(
            1, [simulate.Process(os.getpid(), 20 * GIB, sm_percent=33), simulate.Process(os.getppid(), 8 * GIB)]
        )
        yield controller


def _run(host: simulate.Controller, command: list[str], driver: int = 580) -> str:
    environment = {**os.environ, **simulate.environment(host.path, driver), "LOGLEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_gpustat_agrees(host: simulate.Controller) -> None:
    shown = json.loads(_run(host, [str(GPUSTAT), "--json"]))
    assert shown["driver_version"] == "580.95.05"
    idle, busy = shown["gpus"]
    assert (idle["name"], idle["utilization.gpu"], idle["fan.speed"], idle["memory.used"]) == ("NVIDIA H100 80GB HBM3", 0, None, 1)
    processes = {process["pid"]: process["gpu_memory_usage"] for process in busy.pop("processes")}
    assert processes == {os.getpid(): 20 * 1024, os.getppid(): 8 * 1024}
    assert busy == {
        "index": 1,
        "uuid": "GPU-51a1a7ed-0000-4000-8000-000000000001",
        "name": "NVIDIA H100 80GB HBM3",
        "temperature.gpu": 63,
        "fan.speed": 44,
        "utilization.gpu": 71,
        "utilization.enc": 13,
        "utilization.dec": 14,
        "power.draw": 512,
        "enforced.power.limit": 650,
        "memory.used": 28 * 1024 + 1,
        "memory.total": 81559,
    }


NVITOP_API = """
import json
from nvitop import Device, NA
device = Device.all()[1]
snapshot = device.as_snapshot()
names = ("name uuid bus_id temperature fan_speed gpu_utilization memory_utilization encoder_utilization decoder_utilization"
         " power_usage power_limit performance_state compute_mode persistence_mode total_volatile_uncorrected_ecc_errors"
         " pcie_tx_throughput pcie_rx_throughput memory_used memory_free memory_total mig_mode cuda_compute_capability").split()
result = {name: getattr(snapshot, name) for name in names}
result["clocks"] = list(snapshot.clock_infos)
result["max_clocks"] = list(snapshot.max_clock_infos)
result["reserved"] = snapshot.memory_info.reserved
result["processes"] = {pid: process.gpu_memory() for pid, process in device.processes().items()}
print(json.dumps(result))
"""


def test_the_api_of_nvitop_agrees(host: simulate.Controller) -> None:
    shown = json.loads(_run(host, [sys.executable, "-c", NVITOP_API]))
    memory = (81559 * simulate.MIB, 551 * simulate.MIB, 28 * GIB + simulate.MIB)
    assert shown == {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-51a1a7ed-0000-4000-8000-000000000001",
        "bus_id": "00000000:29:00.0",
        "temperature": 63,
        "fan_speed": 44,
        "gpu_utilization": 71,
        "memory_utilization": 42,
        "encoder_utilization": 13,
        "decoder_utilization": 14,
        "power_usage": 512_000,
        "power_limit": 650_000,
        "performance_state": "P2",
        "compute_mode": "Exclusive Process",
        "persistence_mode": "Enabled",
        "total_volatile_uncorrected_ecc_errors": 5,
        "pcie_tx_throughput": 1_000_000,
        "pcie_rx_throughput": 3_000_000,
        "memory_used": memory[2],
        "memory_free": memory[0] - memory[1] - memory[2],
        "memory_total": memory[0],
        "mig_mode": "Disabled",
        "cuda_compute_capability": [9, 0],
        "clocks": [1740, 1755, 2610, 1455],
        "max_clocks": [1980, 1980, 2619, 1545],
        "reserved": memory[1],
        "processes": {str(os.getpid()): 20 * GIB, str(os.getppid()): 8 * GIB},
    }


def test_the_screen_of_nvitop_shows_it(host: simulate.Controller) -> None:
    screen = _run(host, [str(NVITOP), "-1", "--ascii"])
    for text in ("63C", "512W / 650W", "28.00GiB / 79.65GiB", "71%", str(os.getpid()), "20.00GiB", "580.95.05", "00000000:29:00.0"):
        assert text in screen


PROCESSES = """
import json
from nvitop import Device
print(json.dumps(sorted((pid, process.gpu_memory()) for pid, process in Device.all()[1].processes().items())))
"""


@pytest.mark.parametrize(("driver", "entry_bytes"), [(418, 24), (470, 24), (535, 32), (580, 24)])
def test_nvitop_reads_the_processes_of_every_driver(host: simulate.Controller, driver: int, entry_bytes: int) -> None:
    with host.edit() as config:
        config.process_info_bytes = entry_bytes
    shown = json.loads(_run(host, [sys.executable, "-c", PROCESSES], driver))
    assert shown == [list(row) for row in sorted([(os.getpid(), 20 * GIB), (os.getppid(), 8 * GIB)])]


MIG = """
import json
from nvitop import Device
print(json.dumps([[mig.name(), mig.memory_total(), mig.memory_used(), mig.uuid()] for mig in Device.all()[0].mig_devices()]))
"""


def test_nvitop_finds_instances(host: simulate.Controller) -> None:
    host.set_mig(0, [simulate.MigInstance("1g.10gb", 7, 10 * GIB, 16), simulate.MigInstance("3g.40gb", 1, 40 * GIB, 60)])
    host.set_processes(0, [simulate.Process(os.getpid(), 3 * GIB, gpu_instance=1, compute_instance=0)])
    shown: list[Any] = json.loads(_run(host, [sys.executable, "-c", MIG]))
    assert [row[:3] for row in shown] == [
        ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 * GIB, 0],
        ["NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40 * GIB, 3 * GIB],
    ]
    assert all(row[3].startswith("MIG-") for row in shown)


@pytest.mark.parametrize("profile", list(simulate.PROFILES))
def test_both_show_every_product(tmp_path: Path, profile: str) -> None:
    with simulate.Controller.create(tmp_path / "other", 1, profile) as host:
        host.set_load(0, 0.5)
        name = simulate.PROFILES[profile].name
        assert name in _run(host, [sys.executable, "-c", "from nvitop import Device; print(Device.all()[0].as_snapshot().name)"])
        assert json.loads(_run(host, [str(GPUSTAT), "--json"]))["gpus"][0]["name"] == name


def test_what_they_ask_is_counted(host: simulate.Controller) -> None:
    assert shutil.which(str(GPUSTAT))
    _run(host, [str(GPUSTAT), "--json"])
    assert host.calls("nvmlInitWithFlags") == 1
    assert host.calls("nvmlDeviceGetPowerUsage") == 2


def test_any_command_can_be_run_on_simulated_gpus() -> None:
    begin = [sys.executable, "-m", "aie_agent.simulate", "--gpus", "3", "--profile", "H200"]
    done = subprocess.run([*begin, str(GPUSTAT), "--json"], capture_output=True, text=True, check=False)
    gpus = json.loads(done.stdout)["gpus"]
    assert [gpu["name"] for gpu in gpus] == ["NVIDIA H200"] * 3
    assert all(gpu["utilization.gpu"] > 10 and gpu["processes"] for gpu in gpus)
    assert subprocess.run([*begin, "false"], check=False).returncode == 1
    assert subprocess.run([*begin, "no-such-command"], capture_output=True, check=False).returncode == 127
    refused = subprocess.run([*begin[:3], "--gpus", "17", "true"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr) == (2, "17 simulated GPUs: 1 to 16 are possible\n")


DOCUMENT = Path(__file__).parents[3] / "docs" / "simulated-gpus.md"


def test_the_example_of_the_document_runs_and_its_words_exist() -> None:
    text = DOCUMENT.read_text()
    example = text.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("NVIDIA H100 80GB HBM3 ")
    table = text.split("| to have | call |")[1].split("## What it does")[0]
    verbs = set(re.findall(r"`([a-z_]+)(?:\([^`]*\))?`", table))
    assert len(verbs) > 20
    assert [verb for verb in verbs if not hasattr(simulate.Controller, verb) and not hasattr(simulate, verb)] == []
