"""Which CUDA a process has: stand-ins by name in real processes, and what nvcc makes, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aie_ebpf.cuda_libraries import CudaLibraries, cuda_libraries, uses_cuda
from aie_ebpf.elf_cache import ElfCache
from tests.fakes.compiled import program, shared_library
from tests.fakes.loaded import LOADER, loaded, running

DRIVER = "int cuInit(unsigned flags) { return 0; }"
RUNTIME = "int cudaMalloc(void **p, unsigned long n) { return 0; } void __cudaRegisterFatBinary(void *p) {}"
GPU_CODE = 'char code[64] __attribute__((section(".nv_fatbin"))) = {1};\n'
REGISTERS = GPU_CODE + "void __cudaRegisterFatBinary(void *); void begin(void) { __cudaRegisterFatBinary(code); }"
HOLDS_ITS_OWN = GPU_CODE + "static int registers(char *p) { return *p; } int begin(void) { return registers(code); }"
EXPORTS_ITS_OWN = RUNTIME + " int work(void) { return 1; }"
CUDA_PROGRAM = "__global__ void kernel(int *p) { *p = 1; }" + LOADER.replace(
    "int main", "int unused(int *p) { cudaMalloc((void **)&p, 4); kernel<<<1, 1>>>(p); return 0; }\nint main"
)
PLAIN = "int work(void) { return 1; }"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    return shared_library(tmp_path / "libcuda.so.1", DRIVER)


def names(libraries: CudaLibraries) -> tuple[str | None, list[str], list[str]]:
    return (
        libraries.driver.name if libraries.driver else None,
        [file.name for file in libraries.runtimes],
        [file.name for file in libraries.static_runtime_in],
    )


def test_a_process_without_cuda(tmp_path: Path) -> None:
    with loaded(tmp_path, shared_library(tmp_path / "libcudadebugger.so.1", DRIVER)) as tgid:
        found = cuda_libraries(tgid)
        assert names(found) == (None, [], [])
        assert not uses_cuda(tgid)
        assert found.sentences() == ("the process has not loaded CUDA's driver library (libcuda.so.1)",)


@pytest.mark.parametrize("runtime", ["libcudart.so.12", "libcudart.so.11.0", "libcudart-d0da41ae.so.11.0"])
def test_a_dynamic_runtime(tmp_path: Path, driver: Path, runtime: str) -> None:
    library = shared_library(tmp_path / runtime, RUNTIME, f"-Wl,-soname,{runtime}")
    torch = shared_library(tmp_path / "libtorch_cuda.so", REGISTERS, library.as_posix(), f"-Wl,-rpath,{tmp_path}")
    with loaded(tmp_path, driver, library, torch) as tgid:
        assert names(cuda_libraries(tgid)) == ("libcuda.so.1", [runtime], [])
        assert cuda_libraries(tgid).sentences() == ()
        assert uses_cuda(tgid)


@pytest.mark.parametrize("source", [HOLDS_ITS_OWN, EXPORTS_ITS_OWN])
def test_a_runtime_inside_a_library(tmp_path: Path, driver: Path, source: str) -> None:
    """Also beside a dynamic one: NCCL and cuBLAS have their own, whoever brought libcudart."""
    runtime = shared_library(tmp_path / "libcudart.so.12", RUNTIME)
    with loaded(tmp_path, driver, runtime, shared_library(tmp_path / "libnccl.so.2", source)) as tgid:
        found = cuda_libraries(tgid)
    assert names(found) == ("libcuda.so.1", ["libcudart.so.12"], ["libnccl.so.2"])
    assert found.sentences() == (
        "CUDA's runtime is linked statically into libnccl.so.2: its calls are seen where they reach the driver",
    )


def test_what_takes_its_runtime_from_whoever_has_it(tmp_path: Path, driver: Path) -> None:
    """It registers with a runtime that it does not name, such as the one that the program has loaded: it holds none."""
    runtime = shared_library(tmp_path / "libcudart.so.12", RUNTIME)
    path = program(tmp_path / "program", LOADER.replace("RTLD_NOW", "RTLD_NOW | RTLD_GLOBAL"), "-ldl")
    extension = shared_library(tmp_path / "extension.so", REGISTERS)
    with running([path, driver, runtime, extension]) as tgid:
        assert names(cuda_libraries(tgid))[2] == []


def test_a_driver_that_was_replaced(tmp_path: Path, driver: Path) -> None:
    with loaded(tmp_path, driver) as tgid:
        driver.unlink()
        found = cuda_libraries(tgid)
        assert names(found)[0] == "libcuda.so.1"
        assert "libcuda.so.1 was replaced on disk while the process uses it: the old one is probed" in found.sentences()
        assert uses_cuda(tgid)


def test_many_files_are_bounded_and_said(tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie_ebpf.cuda_libraries._MOST_FILES", 2)
    holders = [shared_library(tmp_path / f"lib{n}.so", HOLDS_ITS_OWN) for n in range(9)]
    with loaded(tmp_path, driver, *holders) as tgid:
        found = cuda_libraries(tgid)
    others = len(found.files) - 1
    assert len(found.unread) == others - 2
    assert f" and {others - 2 - 4} more is not known" in found.sentences()[-1]


def test_a_process_that_is_gone(tmp_path: Path, driver: Path) -> None:
    with loaded(tmp_path, driver) as tgid:
        pass
    assert cuda_libraries(tgid) == CudaLibraries()
    assert not uses_cuda(tgid)


@pytest.mark.parametrize(("kind", "holds"), [("static", ["program"]), ("shared", [])])
def test_what_nvcc_makes(tmp_path: Path, driver: Path, kind: str, holds: list[str]) -> None:
    nvcc = shutil.which("nvcc") or next((str(path) for path in Path("/usr/local").glob("cuda*/bin/nvcc")), None)
    if nvcc is None:
        pytest.skip("there is no nvcc")
    source = tmp_path / "program.cu"
    source.write_text(CUDA_PROGRAM)
    library = Path(nvcc).resolve().parents[1] / "lib64"
    made = subprocess.run(
        [nvcc, "-cudart", kind, "-o", tmp_path / "program", source, "-Xlinker", f"-rpath={library}", "-ldl"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"nvcc does not work here: {made.stderr[-200:]}")
    with running([tmp_path / "program", driver]) as tgid:
        found = cuda_libraries(tgid)
    assert [file.name for file in found.static_runtime_in] == holds
    assert bool(found.runtimes) is (kind == "shared")


def test_a_second_look_costs_no_reading(tmp_path: Path, driver: Path) -> None:
    cache = ElfCache()
    with loaded(tmp_path, driver, shared_library(tmp_path / "libx.so", PLAIN)) as tgid:
        assert cuda_libraries(tgid, cache=cache) == cuda_libraries(tgid, cache=cache)
