"""A driver that is updated under a running agent: the file behind the library's name is really another one afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from aie_agent import simulate
from aie_agent.simulate.build import SONAME, compile_library
from tests.fakes.stand_in import needs_compiler
from tests.integration.agent.nvml_agent import Running, agent

pytestmark = needs_compiler

OLD, NEW = "580.95.05", "590.44.01"
CONFIG = '[gpu]\nretry = "1s"\nslow_period = "1s"\n'


@pytest.fixture(scope="module", name="libraries")
def fixture_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The library of each driver: it refuses to work with the other."""
    folder = tmp_path_factory.mktemp("libraries")
    found = {version: folder / version for version in (OLD, NEW)}
    for version, path in found.items():
        compile_library(path, extra=(f'-DAIE_LIBRARY_VERSION="{version}"',))
    return found


class Host:
    """A host with two GPUs, its driver's kernel module (in the state file) and its library (on disk)."""

    def __init__(self, folder: Path, controller: simulate.Controller, libraries: dict[str, Path]) -> None:
        self.controller = controller
        self._libraries = libraries
        self._installed = folder / "driver" / SONAME
        self._installed.parent.mkdir()
        self.environment = {"LD_LIBRARY_PATH": str(self._installed.parent), simulate.STATE_VARIABLE: str(controller.path)}

    def load_module(self, version: str) -> None:
        with self.controller.edit() as config:
            config.driver_version = version.encode()

    def install_library(self, version: str) -> None:
        """As a package manager does: a new file takes the name, and who has the old one mapped keeps it."""
        fresh = self._installed.with_name("fresh")
        shutil.copy(self._libraries[version], fresh)
        os.replace(fresh, self._installed)


@pytest.fixture(name="host")
def fixture_host(tmp_path: Path, libraries: dict[str, Path]) -> Iterator[Host]:
    with simulate.Controller.create(tmp_path / "gpus", 2, "H100") as controller:
        host = Host(tmp_path, controller, libraries)
        host.load_module(OLD)
        host.install_library(OLD)
        yield host


def drivers(running: Running) -> set[str]:
    lines = [line for line in running.get("/metrics").splitlines() if line.startswith("aie_gpu_info{")]
    assert len(lines) == 2
    return {line.split('driver="')[1].split('"')[0] for line in lines}


def ups(snapshot: dict[str, Any]) -> list[tuple[bool, str | None]]:
    return [(gpu["up"], gpu["reason"]) for gpu in snapshot["gpus"]]


def is_mapped(running: Running) -> bool:
    return SONAME in Path(f"/proc/{running.process.pid}/maps").read_text()


UP = [(True, None)] * 2


def test_given_back_for_an_update_it_comes_back_with_the_new_library(tmp_path: Path, host: Host) -> None:
    with agent(tmp_path, environment=host.environment, config=CONFIG) as running:
        running.until(lambda found: ups(found) == UP)
        assert drivers(running) == {OLD}
        assert is_mapped(running)
        running.process.send_signal(signal.SIGUSR1)
        running.until(lambda found: ups(found) == [(False, "released")] * 2)
        assert "aie_gpu_present 0" in running.get("/metrics").splitlines()
        assert "aie_gpu_expected 2" in running.get("/metrics").splitlines()
        assert not is_mapped(running), "nothing of the old driver is held"
        host.load_module(NEW)
        host.install_library(NEW)
        running.process.send_signal(signal.SIGUSR1)
        running.until(lambda found: ups(found) == UP)
        assert drivers(running) == {NEW}
        assert running.process.poll() is None


def test_an_update_that_nobody_announced_is_survived(tmp_path: Path, host: Host) -> None:
    with agent(tmp_path, environment=host.environment, config=CONFIG) as running:
        running.until(lambda found: ups(found) == UP)
        # The module first, and the library of old does not get on with it.
        host.load_module(NEW)
        host.controller.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        found = running.until(lambda found: ups(found) == [(False, "closed")] * 2)
        reason = next(row for row in found["sources"] if row["name"] == "nvml")["reason"]
        assert "driver and library are of different versions" in reason
        assert "restart the agent" not in reason, "for it is not needed"
        host.controller.fail("nvmlDeviceGetUtilizationRates", 0)
        host.install_library(NEW)
        running.until(lambda found: ups(found) == UP)
        assert drivers(running) == {NEW}


def test_a_library_that_is_taken_away_and_put_back(tmp_path: Path, host: Host) -> None:
    with agent(tmp_path, environment=host.environment, config=CONFIG) as running:
        running.until(lambda found: ups(found) == UP)
        running.process.send_signal(signal.SIGUSR1)
        running.until(lambda found: ups(found) == [(False, "released")] * 2)
        path = tmp_path / "driver" / SONAME
        path.unlink()
        running.process.send_signal(signal.SIGUSR1)
        running.until(lambda found: ups(found) == [(False, "closed")] * 2)
        host.install_library(OLD)
        running.until(lambda found: ups(found) == UP)


CYCLES = """
import json, os
from pathlib import Path
from aie_agent.sources.nvml.session import Session
def held():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return [Path("/proc/self/maps").read_text().count("\\n"), len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")]
session, after = Session(lambda: None), []
for cycle in range(251):
    session.open()
    for gpu in session.gpus:
        gpu.read(True)
    session.close()
    if cycle in (50, 250):
        after.append(held())
print(json.dumps([session.error, after]))
"""


@pytest.mark.parametrize("code", [0, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_loaded_and_unloaded_for_days_it_leaves_nothing_behind(tmp_path: Path, code: int) -> None:
    """At a try every 30 s a driver that is not loaded is two thousand libraries a day."""
    with simulate.Controller.create(tmp_path / "gpus", 2, "H100") as controller:
        controller.fail_init(code)
        environment = {**os.environ, **simulate.environment(controller.path)}
        done = subprocess.run([sys.executable, "-c", CYCLES], env=environment, capture_output=True, text=True, check=True)
    error, (early, late) = json.loads(done.stdout)
    assert bool(error) == bool(code)
    mappings, descriptors, resident_bytes = (after - before for before, after in zip(early, late, strict=True))
    assert descriptors == 0
    assert mappings <= 4
    # One state file of the stand-in that stayed mapped at each of the 200 cycles would be 48 MB.
    assert resident_bytes < 4 << 20
