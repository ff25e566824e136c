"""The stand-in through the real nvidia-ml-py: every function, and every error that a driver may give instead."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from aie_agent import simulate
from aie_agent.simulate.layout import FUNCTIONS
from tests.fakes.nvml_calls import GPU, Handles, prepare
from tests.fakes.nvml_table import CALLS, NOT_SUPPORTED
from tests.fakes.stand_in import needs_compiler, simulated

pytestmark = needs_compiler

ERRORS = sorted({value for name, value in vars(nvml).items() if name.startswith("NVML_ERROR_") and value > 0})
EVERY_CALL = {row[0]: row[1] for row in (*CALLS, *NOT_SUPPORTED)}
NEEDS_HANDLE_LATER = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"}


@pytest.fixture(name="host", scope="module")
def fixture_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[simulate.Controller, Handles]]:
    """The host of ``nvml_calls``."""
    with simulated(tmp_path_factory.mktemp("gpus") / "state") as controller:
        yield controller, prepare(controller)


@pytest.mark.parametrize(("symbol", "call", "expected"), CALLS, ids=[row[0] for row in CALLS])
def test_says_what_the_state_says(host: tuple[simulate.Controller, Handles], symbol: str, call: Any, expected: Any) -> None:
    controller, handles = host
    before = controller.calls(symbol)
    assert call(handles) == expected
    assert controller.calls(symbol) > before


@pytest.mark.parametrize(("symbol", "call"), NOT_SUPPORTED, ids=[row[0] for row in NOT_SUPPORTED])
def test_says_what_it_has_not(host: tuple[simulate.Controller, Handles], symbol: str, call: Any) -> None:
    with pytest.raises(nvml.NVMLError_NotSupported):
        call(host[1])


def test_no_function_is_left_out() -> None:
    assert {function.name for function in FUNCTIONS} - set(EVERY_CALL) == {"nvmlErrorString"}


@pytest.mark.parametrize("symbol", [function.name for function in FUNCTIONS if function.name != "nvmlErrorString"])
def test_any_error_on_any_function(host: tuple[simulate.Controller, Handles], symbol: str) -> None:
    controller, handles = host
    try:
        for error in ERRORS:
            controller.fail(symbol, error)
            with pytest.raises(nvml.NVMLError) as raised:
                EVERY_CALL[symbol](handles)
            # After a failed shutdown the session that the call had opened is still there: it does no harm.
            assert raised.value.value == error
    finally:
        controller.fail(symbol, 0)


@pytest.mark.parametrize("symbol", [function.name for function in FUNCTIONS if function.scope != "SYSTEM"])
def test_an_error_of_one_gpu_is_not_the_others(host: tuple[simulate.Controller, Handles], symbol: str) -> None:
    controller, handles = host
    with controller.edit() as config:
        row = config.functions[[function.name for function in FUNCTIONS].index(symbol)]
        for gpu in (GPU, 2, 3):
            row.gpu_error[gpu] = nvml.NVML_ERROR_UNKNOWN
    try:
        with pytest.raises(nvml.NVMLError_Unknown):
            EVERY_CALL[symbol](handles)
        with controller.edit() as config:
            for gpu in (GPU, 2, 3):
                config.functions[[function.name for function in FUNCTIONS].index(symbol)].gpu_error[gpu] = 0
            config.functions[[function.name for function in FUNCTIONS].index(symbol)].gpu_error[0] = nvml.NVML_ERROR_UNKNOWN
        if symbol not in dict(NOT_SUPPORTED):
            EVERY_CALL[symbol](handles)
    finally:
        for gpu in range(4):
            controller.fail(symbol, 0, gpu)


def _arguments_of(symbol: str) -> list[Any]:
    """Zeroes and null pointers: as many as the longest function takes, which the others do not look at."""
    return [ctypes.c_void_p(0)] * 6


@pytest.mark.parametrize(
    "symbol", [f.name for f in FUNCTIONS if f.name not in {*NEEDS_HANDLE_LATER, "nvmlErrorString", "nvmlShutdown"}]
)
def test_null_pointers_are_refused_and_never_followed(host: tuple[simulate.Controller, Handles], symbol: str) -> None:
    function = nvml._nvmlGetFunctionPointer(symbol)
    assert function(*_arguments_of(symbol)) in (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_INSUFFICIENT_SIZE)


@pytest.mark.parametrize("symbol", [f.name for f in FUNCTIONS if f.scope != "SYSTEM"])
def test_a_made_up_handle_is_refused(host: tuple[simulate.Controller, Handles], symbol: str) -> None:
    function = nvml._nvmlGetFunctionPointer(symbol)
    assert function(ctypes.c_void_p(0x1234), *_arguments_of(symbol)) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_error_strings() -> None:
    assert nvml.nvmlErrorString(nvml.NVML_ERROR_GPU_IS_LOST) in (b"GPU is lost", "GPU is lost")


def test_pages_are_retired_before_ampere(tmp_path: Path) -> None:
    with simulated(tmp_path / "state", 1, "V100") as controller:
        with controller.edit() as config:
            config.gpus[0].retired_double_count = 2
            config.gpus[0].retired_pages_double[0], config.gpus[0].retired_pages_double[1] = 0x2000, 0x3000
            config.gpus[0].retired_pending = 1
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetRetiredPages(gpu, 1) == [0x2000, 0x3000]
        assert nvml.nvmlDeviceGetRetiredPages(gpu, 0) == []
        assert [page["address"] for page in nvml.nvmlDeviceGetRetiredPages_v2(gpu, 1)] == [0x2000, 0x3000]
        assert nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu) == 1
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetRemappedRows(gpu)
