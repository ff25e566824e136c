"""Other drivers than the current one, and the stand-in as a compiler checks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from aie_agent import simulate
from tests.fakes.stand_in import needs_compiler

pytestmark = needs_compiler

GIB = 1 << 30


def _in_child(state_file: Path, driver: int, code: str) -> Any:
    environment = {**os.environ, **simulate.environment(state_file, driver)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


OLD_DRIVER = """
import ctypes, json, pynvml as nvml
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
result = {}
for name in ("nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetTemperature",
             "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
    try:
        value = getattr(nvml, name)(*((gpu, 0) if name.endswith("Temperature") else (gpu,)))
        result[name] = [process.pid for process in value] if isinstance(value, list) else value
    except nvml.NVMLError as error:
        result[name] = -error.value
print(json.dumps(result))
"""


@pytest.mark.parametrize("driver", [418, 470, 580])
def test_an_old_driver_lacks_what_it_lacked(tmp_path: Path, driver: int) -> None:
    with simulate.Controller.create(tmp_path / "state", 1, "A100") as host:
        host.freeze()
        host.set_processes(0, [simulate.Process(77, GIB)])
        said = _in_child(host.path, driver, OLD_DRIVER)
    missing = -nvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert said == {
        "nvmlDeviceGetComputeRunningProcesses_v2": [77] if driver >= 450 else missing,
        "nvmlDeviceGetComputeRunningProcesses_v3": [77] if driver >= 510 else missing,
        "nvmlDeviceGetTemperature": 37,
        "nvmlDeviceGetCurrentClocksEventReasons": 1 if driver >= 535 else missing,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
    }


def test_the_first_535_drivers_scramble_who_does_not_know_them(tmp_path: Path) -> None:
    code = (
        "import json, pynvml as nvml; nvml.nvmlInit(); gpu = nvml.nvmlDeviceGetHandleByIndex(0)\n"
        "print(json.dumps([process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)]))"
    )
    with simulate.Controller.create(tmp_path / "state", 1) as host:
        host.set_processes(0, [simulate.Process(pid, GIB) for pid in (71, 72, 73)])
        assert _in_child(host.path, 535, code) == [71, 72, 73]
        with host.edit() as config:
            config.process_info_bytes = 32
        assert _in_child(host.path, 535, code) != [71, 72, 73]


def test_without_a_state_file_there_is_no_driver(tmp_path: Path) -> None:
    code = "import json, pynvml as nvml\ntry: nvml.nvmlInit()\nexcept nvml.NVMLError as error: print(json.dumps(error.value))"
    assert _in_child(tmp_path / "absent", 580, code) == nvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_it_builds_and_runs_under_the_address_sanitizer(tmp_path: Path) -> None:
    compiler = simulate.build.compiler()
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("the compiler has no AddressSanitizer")
    library = tmp_path / simulate.build.SONAME
    simulate.build.compile_library(library, extra=("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"))
    # The tests of every call run again in a child whose stand-in is this one.
    code = f"""
import sys, pathlib, pytest
import aie_agent.simulate
aie_agent.simulate.stand_in = (lambda driver: pathlib.Path({str(library)!r}))
sys.exit(pytest.main([{str(Path(__file__).with_name("test_stand_in_calls.py"))!r}, "-x", "-p", "no:cacheprovider"]))
"""
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
