"""`aie-agent check` on simulated GPUs, as a user runs it: what is wrong with them is told, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aie_agent import simulate
from aie_agent.commands.check_gpu import check_gpus
from aie_agent.config import GpuSection

AIE_AGENT = Path(sys.executable).parent / "aie-agent"

Rows = dict[str, dict[str, Any]]


@pytest.fixture
def gpus(tmp_path: Path) -> simulate.Controller:
    return simulate.Controller.create(tmp_path / "gpus", 4, "H100")


def check(gpus: simulate.Controller, tmp_path: Path, *arguments: str) -> tuple[int, Rows]:
    config = tmp_path / "agent.toml"
    config.write_text(f'[api]\nlisten = "127.0.0.1:1"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n')
    command = [str(AIE_AGENT), "check", "--json", "--no-discovery", "--config", str(config), *arguments]
    environment = os.environ | simulate.environment(gpus.path)
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert done.stderr == b""
    return done.returncode, {row["what"]: row for row in msgspec.json.decode(done.stdout)}


def wrong(rows: Rows) -> dict[str, str]:
    return {what: row["remedy"] for what, row in rows.items() if row["wrong"]}


def test_gpus_that_are_well_have_nothing_wrong(gpus: simulate.Controller, tmp_path: Path) -> None:
    _, rows = check(gpus, tmp_path)
    assert wrong(rows) == {}
    assert rows["GPUs"]["found"].startswith("4 simulated, driver ")
    assert "(simulated)" in rows["GPU 3"]["found"]
    assert "16 of 16 lanes" in rows["GPU 0: link"]["found"]
    assert "6 pairs" not in rows["GPUs to each other"]["found"], "they are not all equally near"


def test_what_is_wrong_is_told_of_the_gpu_that_has_it(gpus: simulate.Controller, tmp_path: Path) -> None:
    gpus.set_link(1, width=8)
    gpus.set(2, persistence_mode=0, power_limit_mw=400_000)
    gpus.throttle(3, 0x40)
    _, rows = check(gpus, tmp_path)
    found = wrong(rows)
    assert set(found) == {"GPU 1: link", "GPU 2: persistence mode", "GPU 2: power", "GPU 3: clocks"}
    assert "8 lanes of 16" in found["GPU 1: link"]
    assert "too hot" in found["GPU 3: clocks"]


def test_a_lost_gpu_is_missing_and_the_others_are_checked(gpus: simulate.Controller, tmp_path: Path) -> None:
    gpus.lose(1)
    status, rows = check(gpus, tmp_path)
    assert status == 1
    assert not rows["GPU 1"]["visible"]
    assert "lost" in rows["GPU 1"]["found"]
    assert rows["GPU 2: link"]["visible"]


@pytest.mark.parametrize(("code", "words"), [(9, "not loaded"), (18, "different versions"), (4, "no permission"), (999, "unknown")])
def test_a_driver_that_does_not_work_is_one_line(gpus: simulate.Controller, tmp_path: Path, code: int, words: str) -> None:
    gpus.fail_init(code)
    _, rows = check(gpus, tmp_path)
    assert words in rows["GPUs"]["found"]
    assert "\n" not in rows["GPUs"]["found"]


def test_a_process_on_a_gpu_is_looked_at(gpus: simulate.Controller, tmp_path: Path) -> None:
    """Its libraries are real files that a real process has mapped, under the names that CUDA's have."""
    libraries = tmp_path / "cuda"
    libraries.mkdir()
    for name in ("libcudart.so.99.1.2", "libcuda.so.1.2.3"):
        (libraries / name).write_bytes(b"\0" * 4096)
    code = (
        "import mmap, sys\n"
        f"files = [open(path, 'rb') for path in {[str(path) for path in libraries.iterdir()]!r}]\n"
        "maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]\n"
        "print('mapped', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        gpus.set_processes(0, [simulate.Process(process.pid, 1 << 30), simulate.Process(4_000_000, 1 << 30)])
        _, rows = check(gpus, tmp_path)
        process.communicate()
    found = wrong(rows)
    assert "too old" in found[f"process {process.pid}: CUDA runtime"]
    assert "restart" in found[f"process {process.pid}: driver library"]
    assert "driver hangs on to it" in found["process 4000000"]


def test_gpus_that_the_configuration_expects_are_missing(gpus: simulate.Controller, tmp_path: Path) -> None:
    gpus.remove(3)
    config = tmp_path / "expect.toml"
    config.write_text(f'[gpu]\nexpected = 4\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n')
    status, rows = check(gpus, tmp_path, "--config", str(config))
    assert status == 1
    assert not rows["GPUs"]["visible"]
    assert "4 are expected" in rows["GPUs"]["remedy"]


def test_the_switch_and_the_command_line(tmp_path: Path) -> None:
    assert [row.found for row in check_gpus(GpuSection(enabled=False)) if row.what == "GPUs"] == ["switched off: gpu.enabled"]


def test_a_driver_that_hangs_is_a_row_and_check_ends(tmp_path: Path) -> None:
    controller = simulate.install(1, "H100", state_file=tmp_path / "gpus")
    controller.delay("nvmlDeviceGetCpuAffinity", 3600.0)
    began_s = time.monotonic()
    rows = check_gpus(GpuSection(), patience_s=0.5)
    controller.delay("nvmlDeviceGetCpuAffinity", 0.0)
    assert time.monotonic() - began_s < 60
    assert "hangs" in rows[-1].found
    assert not rows[-1].visible
    controller.close()
