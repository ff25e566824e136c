"""C and Python agree on every layout, and the library exports what the driver it stands for would."""

from __future__ import annotations

import _ctypes
import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from aie_agent.simulate import build, layout
from aie_agent.sources.nvml.shared_object import is_loaded
from tests.fakes.stand_in import needs_compiler

pytestmark = needs_compiler

STRUCTS = sorted(name for name in layout.STRUCTURES if name.startswith("aie_"))
# The stand-in's name of a struct, and nvidia-ml-py's.
NVML_STRUCTS = {
    "nvmlMemory_t": nvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": nvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": nvml.c_nvmlBAR1Memory_t,
    "nvmlUtilization_t": nvml.c_nvmlUtilization_t,
    "nvmlTemperature_v1_t": nvml.c_nvmlTemperature_v1_t,
    "nvmlMarginTemperature_v1_t": nvml.c_nvmlMarginTemperature_v1_t,
    "nvmlViolationTime_t": nvml.c_nvmlViolationTime_t,
    "nvmlPciInfo_t": nvml.nvmlPciInfo_t,
    "nvmlPciInfo_v2_t": nvml.nvmlPciInfo_v2_t,
    "nvmlProcessInfo_v2_t": nvml.c_nvmlProcessInfo_v2_t,
    "nvmlProcessDetail_v1_t": nvml.c_nvmlProcessDetail_v1_t,
    "nvmlProcessDetailList_v1_t": nvml.c_nvmlProcessDetailList_v1_t,
    "nvmlProcessUtilizationSample_t": nvml.c_nvmlProcessUtilizationSample_t,
    "nvmlProcessUtilizationInfo_v1_t": nvml.c_nvmlProcessUtilizationInfo_v1_t,
    "nvmlProcessesUtilizationInfo_v1_t": nvml.c_nvmlProcessesUtilizationInfo_v1_t,
    "nvmlSample_t": nvml.c_nvmlSample_t,
    "nvmlFieldValue_t": nvml.c_nvmlFieldValue_t,
    "nvmlRowRemapperHistogramValues_t": nvml.c_nvmlRowRemapperHistogramValues,
    "nvmlDeviceAttributes_t": nvml.c_nvmlDeviceAttributes,
    "nvmlEventData_t": nvml.c_nvmlEventData_t,
    "nvmlGpmSupport_t": nvml.c_nvmlGpmSupport_t,
    "nvmlGpmMetric_t": nvml.c_nvmlGpmMetric_t,
}


def _ask_compiler(directory: Path, header: str, questions: list[str]) -> list[int]:
    """What these expressions are worth, by a C program that is compiled and run."""
    prints = "\n".join(f'    printf("%zu\\n", (size_t)({question}));' for question in questions)
    source = directory / "ask.c"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n{prints}\n    return 0;\n}}\n'
    )
    program = directory / "ask"
    subprocess.run([build.compiler(), "-std=gnu11", f"-I{layout.CSRC}", str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def _members(struct: Any) -> list[str]:
    return [field[0] for field in struct._fields_]


def test_the_state_file_is_laid_out_as_c_has_it(tmp_path: Path) -> None:
    questions, expected = [], []
    for name in STRUCTS:
        struct = layout.STRUCTURES[name]
        questions.append(f"sizeof(struct {name})")
        expected.append(ctypes.sizeof(struct))
        for member in _members(struct):
            questions += [f"offsetof(struct {name}, {member})", f"sizeof(((struct {name} *)0)->{member})"]
            expected += [getattr(struct, member).offset, getattr(struct, member).size]
    assert len(questions) > 300
    assert _ask_compiler(tmp_path, "state.h", questions) == expected


def test_no_line_of_the_header_is_overlooked() -> None:
    header = (layout.CSRC / "state.h").read_text()
    lines = [line for line in header.splitlines() if line.startswith("    ") and not line.strip().startswith(("/*", "*"))]
    assert len(lines) == sum(len(_members(layout.STRUCTURES[name])) for name in STRUCTS)


def test_structs_of_nvml_are_laid_out_as_nvidia_has_them(tmp_path: Path) -> None:
    questions, expected = [], []
    for name, struct in NVML_STRUCTS.items():
        questions.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(struct))
        for member in _members(struct):
            questions.append(f"offsetof({name}, {member})")
            expected.append(getattr(struct, member).offset)
    questions.append("offsetof(nvmlGpmMetricsGet_t, metrics)")
    expected.append(nvml.c_nvmlGpmMetricsGet_t.metrics.offset)
    assert _ask_compiler(tmp_path, "nvml_types.h", questions) == expected


def test_versions_of_structs_are_nvidias(tmp_path: Path) -> None:
    numbers = {
        "NVML_VERSION(nvmlMemory_v2_t, 2)": nvml.nvmlMemory_v2,
        "NVML_VERSION(nvmlTemperature_v1_t, 1)": nvml.nvmlTemperature_v1,
        "NVML_VERSION(nvmlMarginTemperature_v1_t, 1)": nvml.nvmlMarginTemperature_v1,
        "NVML_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1)": nvml.ProcessesUtilizationInfo_v1,
        "NVML_VERSION(nvmlProcessDetailList_v1_t, 1)": nvml.nvmlProcessDetailList_v1,
    }
    assert _ask_compiler(tmp_path, "nvml_types.h", list(numbers)) == list(numbers.values())


def test_the_lists_fit_into_the_state_file() -> None:
    assert len(layout.FUNCTIONS) <= layout.CONSTANTS["AIE_MAX_FUNCTIONS"]
    assert len(layout.READINGS) <= layout.CONSTANTS["AIE_MAX_READINGS"]
    assert len(layout.COUNTERS) <= layout.CONSTANTS["AIE_MAX_COUNTERS"]


@pytest.mark.parametrize("driver", [418, 470, 535, 580])
def test_a_driver_exports_its_symbols_and_no_others(driver: int) -> None:
    was_loaded = is_loaded()
    library = ctypes.CDLL(str(build.stand_in(driver)), mode=ctypes.RTLD_LOCAL)
    try:
        exported = {function.name for function in layout.FUNCTIONS if hasattr(library, function.name)}
        assert exported == {function.name for function in layout.FUNCTIONS if function.since <= driver}
        assert not hasattr(library, "door_device")
    finally:
        # Of libraries with one SONAME the process keeps the first: it would be the driver of every test to come.
        _ctypes.dlclose(library._handle)
    assert is_loaded() == was_loaded


def test_it_is_named_as_the_drivers_library_is() -> None:
    dump = subprocess.run(["readelf", "-d", str(build.stand_in())], capture_output=True, text=True, check=True).stdout
    assert "SONAME" in dump
    assert f"[{build.SONAME}]" in dump


def test_it_compiles_without_a_warning(tmp_path: Path) -> None:
    build.compile_library(tmp_path / "library.so", extra=("-Wall", "-Wextra", "-Wshadow", "-Wundef", "-Werror"))
    assert (tmp_path / "library.so").stat().st_size > 10_000
