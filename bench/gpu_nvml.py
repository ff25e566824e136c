"""NVML as the driver has it, without a binding that interprets: codes and structs, for the questions that `gpu_check.py` asks.

The agent has a door of its own to NVML, on nvidia-ml-py; what that makes of the same GPU is another section.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from gpu_driver import Driver
from gpu_load import busy
from gpu_report import Context, NotRunError

LIBRARY: Final = "libnvidia-ml.so.1"
_UNKNOWN_BYTES: Final = 0xFFFFFFFFFFFFFFFF
_INSUFFICIENT_SIZE: Final = 7
_NAMES: Final = {
    0: "success", 1: "uninitialized", 2: "invalid_argument", 3: "not_supported", 4: "no_permission", 6: "not_found",
    7: "insufficient_size", 9: "driver_not_loaded", 10: "timeout", 12: "library_not_found", 13: "function_not_found",
    15: "gpu_is_lost", 16: "reset_required", 18: "lib_rm_version_mismatch", 20: "memory", 21: "no_data",
    25: "argument_version_mismatch", 26: "deprecated", 27: "not_ready", 999: "unknown",
}  # fmt: skip
VALUE_TYPES: Final = ("double", "unsigned int", "unsigned long", "unsigned long long", "signed long long", "int", "unsigned short")


class MemoryV1(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64))


class MemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    )


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of _v2 and _v3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_uint64),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field", ctypes.c_uint32),
        ("scope", ctypes.c_uint32),
        ("timestamp_us", ctypes.c_int64),
        ("latency_us", ctypes.c_int64),
        ("type", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("bits", ctypes.c_uint64),
    )


class Field(NamedTuple):
    """What one field answers: a code's name, the type that it says, and the value's bits in that type's width."""

    code: str
    type: str
    bits: int
    latency_us: int


class Nvml:
    """A session. Raises NotRunError where there is no NVML."""

    def __init__(self) -> None:
        try:
            self.shared_object = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NotRunError(f"needs {LIBRARY} (in a container: the NVIDIA runtime with the capability `utility`)") from None
        code = self.shared_object.nvmlInit_v2()
        if code:
            raise NotRunError(f"needs NVML: nvmlInit_v2 gives {name_of(code)}")

    def ask(self, function: str, *arguments: Any) -> int:
        """The code that a function gives; 13 for one that this library does not have."""
        found = getattr(self.shared_object, function, None)
        return 13 if found is None else int(found(*arguments))

    def need(self, function: str, *arguments: Any) -> None:
        """Raises RuntimeError unless the function succeeds."""
        code = self.ask(function, *arguments)
        if code:
            raise RuntimeError(f"{function} gives {name_of(code)}")

    def by_index(self, index: int) -> ctypes.c_void_p:
        """A GPU by NVML's number."""
        handle = ctypes.c_void_p()
        self.need("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        return handle

    def by_uuid(self, uuids: Sequence[str]) -> ctypes.c_void_p:
        """The device that has one of these names. Raises NotRunError where NVML knows none."""
        handle = ctypes.c_void_p()
        for uuid in uuids:
            if self.ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle)) == 0:
                return handle
        raise NotRunError(f"needs an NVML that knows CUDA's device: none is called {' or '.join(uuids)}")

    def text(self, function: str, *arguments: Any) -> str | None:
        """What a function writes into a buffer; None where it fails."""
        buffer = ctypes.create_string_buffer(256)
        return buffer.value.decode(errors="replace") if self.ask(function, *arguments, buffer, 256) == 0 else None

    def used_bytes(self, gpu: ctypes.c_void_p) -> int:
        """Of the whole device, in the way of version 1."""
        memory = MemoryV1()
        self.need("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
        return int(memory.used)

    def processes(self, gpu: ctypes.c_void_p) -> dict[int, int | None]:
        """Memory in bytes of each process that computes, by the pid that the driver says; None where it does not say how much."""
        for size in (256, 4096):
            count = ctypes.c_uint(size)
            rows = (_ProcessInfo * size)()
            code = 13
            for version in ("_v3", "_v2"):
                code = self.ask(f"nvmlDeviceGetComputeRunningProcesses{version}", gpu, ctypes.byref(count), rows)
                if code != 13:
                    break
            if code != _INSUFFICIENT_SIZE:
                break
        if code:
            raise RuntimeError(f"nvmlDeviceGetComputeRunningProcesses gives {name_of(code)}")
        return {row.pid: None if row.used == _UNKNOWN_BYTES else row.used for row in rows[: count.value]}

    def fields(self, gpu: ctypes.c_void_p, wanted: Sequence[tuple[int, int]]) -> list[Field]:
        """Fields by id and scope, in one call."""
        rows = (_FieldValue * len(wanted))(*(_FieldValue(field, scope) for field, scope in wanted))
        self.need("nvmlDeviceGetFieldValues", gpu, len(wanted), rows)
        return [_field(row) for row in rows]


def _field(row: _FieldValue) -> Field:
    kind = VALUE_TYPES[row.type] if row.type < len(VALUE_TYPES) else f"type {row.type}"
    width = {"unsigned int": 4, "int": 4, "unsigned short": 2}.get(kind, 8)
    return Field(name_of(row.code), kind, row.bits & ((1 << 8 * width) - 1), row.latency_us)


def name_of(code: int) -> str:
    """NVML's name of a code, such as not_supported."""
    return _NAMES.get(code, f"code_{code}")


class AtHand(NamedTuple):
    """The device that a section asks about. `driver` is None on a simulated one."""

    nvml: Nvml
    gpu: ctypes.c_void_p
    driver: Driver | None

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While it works. The simulated one always does."""
        with contextlib.nullcontext() if self.driver is None else busy(self.driver.index):
            yield


@contextlib.contextmanager
def at_hand(context: Context) -> Iterator[AtHand]:
    """The real device, or a simulated one that works. Raises NotRunError where there is neither."""
    if context.is_cuda:
        driver = Driver(context.device_index)
        nvml = Nvml()
        yield AtHand(nvml, nvml.by_uuid(driver.uuids), driver)
        return
    with simulated():
        nvml = Nvml()
        yield AtHand(nvml, nvml.by_index(0), None)


@contextlib.contextmanager
def simulated(load_ratio: float = 0.6) -> Iterator[None]:
    """One simulated H100 in this process, by default at work. Raises NotRunError without a C compiler."""
    from aie_agent import simulate

    try:
        controller = simulate.install(1, "H100")
    except (simulate.BuildError, RuntimeError) as error:
        raise NotRunError(f"needs a GPU, or what makes a simulated one: {error}") from error
    with controller:
        controller.set_load(0, load_ratio, load_ratio / 3)
        yield
