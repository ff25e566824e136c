"""What gpu_check asks of CUDA's driver, on a stand-in for libcuda.so.1 beside the stand-in for NVML: real libraries, real calls."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml as nvml
import pytest

from aie_agent import simulate
from aie_ebpf.cuda_probes import CUDA_UPROBES
from tests.fakes.stand_in import needs_compiler, simulated

pytestmark = needs_compiler

BENCH = Path(__file__).parents[3] / "bench"
SOURCE = Path(__file__).parents[2] / "fakes/stand_in_cuda.c"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("gpu_probes")


@pytest.fixture
def host(tmp_path: Path, probes: ModuleType) -> dict[str, str]:
    """The environment of a host with one GPU: NVML's state, and a libcuda that knows the same GPU."""
    with simulated(tmp_path / "state", 1):
        uuid: str = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    written = set(re.findall(r"^int (\w+)\(", SOURCE.read_text(), re.MULTILINE))
    names = [name for names in probes.ROWS.values() for name in names]
    (tmp_path / "probed.inc").write_text("".join(f"PROBED({name})\n" for name in names if name not in written))
    library = tmp_path / "libcuda.so.1"
    compiler = simulate.build.compiler()
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{tmp_path}",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
    ]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1"], check=True, timeout=60)
    environment = simulate.environment(tmp_path / "state")
    paths = f"{tmp_path}:{environment['LD_LIBRARY_PATH']}"
    digits = uuid.removeprefix("GPU-").replace("-", "")
    return os.environ | environment | {"LD_LIBRARY_PATH": paths, "STAND_IN_CUDA_UUID": digits}


def gpu_check(environment: dict[str, str], *only: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(BENCH / "gpu_check.py"), "--small", "--only", *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False, env=environment)
    assert done.returncode in (0, 1), done.stderr
    sections: dict[str, Any] = json.loads(done.stdout)["sections"]
    return done.returncode, sections


def held(section: dict[str, Any]) -> dict[str, bool]:
    return {check["check"]: check["holds"] for check in section["checks"]}


def test_probes_would_see_what_is_given_and_other_names_are_told(host: dict[str, str], probes: ModuleType) -> None:
    code, sections = gpu_check(host, "probes")
    section = sections["probes"]
    assert (code, section["state"]) == (0, "right"), section
    assert sections["machine"]["facts"]["device_name"] == "Stand-in 0"
    facts = section["facts"]
    assert set(facts["functions"]) == set(probes.ROWS)
    assert facts["not_exported"] == []
    assert facts["asked_as_cuda"][:1] == [11030]
    assert facts["not_probed"] == {}
    given = facts["functions"]["cuLaunchKernel"]["given"]
    assert given["12080 per_thread_stream"] == ["cuLaunchKernel_ptsz"]
    assert given["12080 default"] == ["cuLaunchKernel"]
    assert facts["functions"]["cuMemAlloc_v2"]["same"] is True


def test_code_that_is_not_exported_is_wrong(host: dict[str, str]) -> None:
    code, sections = gpu_check(host | {"STAND_IN_CUDA_HIDES": "cuMemFree"}, "probes")
    section = sections["probes"]
    assert (code, section["state"]) == (1, "wrong")
    assert held(section)["cuGetProcAddress gives exported code"] is False
    row = section["facts"]["functions"]["cuMemFree_v2"]
    assert row["same"] is False
    assert row["not_probed"] == {}
    assert row["given"]["11030 default"] == ["cuMemFree_v2"]
    assert {Path(path).name for path in row["outside"].values()} == {"libcuda.so.1"}


def test_code_under_a_name_without_a_probe_is_wrong(host: dict[str, str]) -> None:
    """A driver of the future, whose new function the table of probes does not have."""
    code, sections = gpu_check(host | {"STAND_IN_CUDA_RENEWS": "cuMemFree"}, "probes")
    section = sections["probes"]
    assert (code, section["state"]) == (1, "wrong")
    assert held(section) == {
        "cuGetProcAddress knows what is exported": True,
        "cuGetProcAddress gives exported code": True,
        "what cuGetProcAddress gives is probed": False,
    }
    assert set(section["facts"]["not_probed"]) == {"cuMemFree_v2"}
    assert section["facts"]["not_probed"]["cuMemFree_v2"]["12080 default"] == ["cuOfTheFuture"]


def test_every_function_of_the_driver_that_the_agent_probes_is_looked_at(probes: ModuleType) -> None:
    looked_at = {name for names in probes.ROWS.values() for name in names}
    assert looked_at == {
        name for row in CUDA_UPROBES for name in row.symbols if name.startswith("cu") and not name.startswith("cuda")
    }
    assert {"cuMemHostRegister_v2", "cuMemcpy3DPeerAsync", "cuDevicePrimaryCtxReset_v2", "cuMemcpy2D_v2"} <= looked_at


def test_nvml_is_asked_about_cudas_device_while_it_works(host: dict[str, str]) -> None:
    names = ("nvml_memory", "nvml_fields", "nvml_events", "nvml_gpm", "nvml_cycle", "allocator")
    code, sections = gpu_check(host, *names)
    assert sections["nvml_memory"]["state"] == "right"
    assert sections["nvml_events"]["state"] == "right"
    # The simulated GPU does not work: its counters stand still, and so do those of GPM. Both must be noticed.
    assert code == 1
    assert held(sections["nvml_fields"]) == {"PCIe counter of tx is of bytes": False, "PCIe counter of rx is of bytes": False}
    assert sections["nvml_fields"]["facts"]["pcie_rx_counted_over_copied_ratio"] == 0
    assert set(held(sections["nvml_gpm"]).values()) == {False}
    assert isinstance(sections["nvml_gpm"]["facts"]["as_nobody"], dict | str)
    assert sections["nvml_cycle"]["state"] == "right", sections["nvml_cycle"]
    assert sections["allocator"]["state"] == "not_run"
    assert "needs a torch that sees this device" in sections["allocator"]["reason"]


def test_watts_that_gpm_takes_from_a_gpu_at_rest_are_told(host: dict[str, str]) -> None:
    """The simulated board draws 150 W for 2 s after each sample of GPM, and 70 W else; what is read without GPM costs nothing."""
    with simulate.Controller(Path(host[simulate.STATE_VARIABLE])) as gpus:
        gpus.run()
        gpus.set_load(0, 0.0)
        gpus.set(0, power_profiled_mw=150_000)
    code, sections = gpu_check(host, "nvml_idle")
    assert (code, sections["nvml_idle"]["state"]) == (0, "right"), sections["nvml_idle"]
    facts = sections["nvml_idle"]["facts"]
    assert facts["shown_watts"]["readings"] == facts["shown_watts"]["without_before"] == pytest.approx(70, abs=1)
    assert facts["shown_watts"]["readings_and_gpm"] == 150
    assert facts["watts"]["readings"] == pytest.approx(70, abs=1)


def test_a_board_that_its_readings_keep_from_resting_is_told(probes: ModuleType) -> None:
    rests = importlib.import_module("gpu_idle").rests
    assert rests(50.0, 55.0)[0]
    assert rests(120.0, 131.0)[0]
    assert rests(50.0, 48.0)[0]
    assert rests(50.0, 100.0) == (False, "+50.0 W on 50.0 W, at most 5.0 W more")


def test_an_xid_is_provoked_only_on_request(host: dict[str, str]) -> None:
    """The stand-in's kernel does not fault, so no event comes, which is told."""
    code, sections = gpu_check(host, "nvml_events", "--provoke-xid")
    assert code == 1
    facts = sections["nvml_events"]["facts"]
    assert facts["fault"] == "no fault"
    assert facts["event_after_fault"]["code"] == "timeout"
    assert held(sections["nvml_events"]) == {"XIDs can be waited for": True, "an XID comes as an event": False}


def test_a_device_that_is_not_there_is_one_line(host: dict[str, str]) -> None:
    command = [sys.executable, str(BENCH / "gpu_check.py"), "--device", "cuda:3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=host)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: no CUDA device cuda:3 here: there are 1\n"


def test_exports_are_those_that_readelf_finds(probes: ModuleType) -> None:
    library = probes.mapped(ctypes.CDLL("libc.so.6"), "printf", "libc.so.6").shared_object
    said = subprocess.run(["readelf", "-W", "--dyn-syms", library.path], capture_output=True, text=True, check=True, timeout=60)
    rows = [line.split() for line in said.stdout.splitlines()]
    wanted = {(row[7], int(row[1], 16)) for row in rows if len(row) > 7 and row[3] in ("FUNC", "IFUNC") and row[6] != "UND"}
    assert len(wanted) > 1000
    assert {(symbol.full_name, symbol.address) for symbol in library.symbols} == wanted


def test_two_versions_of_a_symbol_are_two_addresses(probes: ModuleType) -> None:
    """Which is why names are not enough: a probe on the other one never fires."""
    loaded = ctypes.CDLL("libc.so.6")
    mapping = probes.mapped(loaded, "printf", "libc.so.6")
    versions = [symbol for symbol in mapping.shared_object.symbols if symbol.name == "memcpy"]
    if len(versions) < 2:
        pytest.skip("this libc has one memcpy")
    (default,) = [symbol for symbol in versions if symbol.is_default]
    assert {symbol.address for symbol in versions if not symbol.is_default}.isdisjoint({default.address})


def test_a_file_that_is_no_library_is_refused(probes: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("#!/bin/sh\n" + "# nothing\n" * 20)
    with pytest.raises(ValueError, match="is no library of 64 bits"):
        probes.Library(tmp_path / "text")
