"""CUDA's driver library, as far as `gpu_check.py` calls it itself: without torch, and beside torch's allocator."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from gpu_report import NoCudaError

LIBRARY: Final = "libcuda.so.1"
_HINTS: Final = {
    100: "no CUDA device is visible (CUDA_VISIBLE_DEVICES, or a container without the NVIDIA runtime)",
    802: "the system is not ready: on NVSwitch hosts nvidia-fabricmanager must run",
    803: "the kernel's driver and libcuda are of different versions",
}


class CudaError(RuntimeError):
    """A call of the driver failed: its name, and CUDA's name of the error."""


class Driver:
    """One device by CUDA's index. Raises NoCudaError where there is no such device."""

    def __init__(self, index: int) -> None:
        self.index = index
        try:
            self.shared_object = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NoCudaError(f"no CUDA device here: there is no {LIBRARY}") from None
        code = self.shared_object.cuInit(0)
        if code:
            raise NoCudaError(f"no CUDA device here: cuInit gives {self._name(code)}; {_HINTS.get(code, 'see the kernel log')}")
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if index >= count.value:
            raise NoCudaError(f"no CUDA device cuda:{index} here: there are {count.value}")
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), index)
        self.context = ctypes.c_void_p()

    def call(self, name: str, *arguments: Any) -> None:
        """Raises CudaError unless the function returns 0."""
        code = getattr(self.shared_object, name)(*arguments)
        if code:
            raise CudaError(f"{name} gives {self._name(code)}")

    @property
    def version(self) -> int:
        """The newest CUDA that the driver serves: 12040 is 12.4."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    @property
    def name(self) -> str:
        """The product's name."""
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, self.device)
        return text.value.decode(errors="replace")

    @property
    def uuids(self) -> tuple[str, ...]:
        """What NVML may call this device: a GPU, or an instance of one."""
        raw = (ctypes.c_ubyte * 16)()
        get = "cuDeviceGetUuid_v2" if hasattr(self.shared_object, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self.call(get, raw, self.device)
        digits = bytes(raw).hex()
        text = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return f"GPU-{text}", f"MIG-{text}"

    def enter(self) -> None:
        """Makes the device's primary context, which torch uses too, that of this thread."""
        if not self.context:
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    def allocate(self, size_bytes: int) -> ctypes.c_uint64:
        """Device memory, past every caching allocator."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return pointer

    def free(self, pointer: ctypes.c_uint64) -> None:
        """Gives it back."""
        self.call("cuMemFree_v2", pointer)

    def pinned(self, size_bytes: int) -> ctypes.c_void_p:
        """Host memory that the device can reach."""
        pointer = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size_bytes), 0)
        return pointer

    def fill(self, pointer: ctypes.c_uint64, size_bytes: int) -> None:
        """Writes device memory, and waits."""
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size_bytes))
        self.call("cuCtxSynchronize")

    def to_device(self, target: ctypes.c_uint64, source: ctypes.c_void_p, size_bytes: int) -> None:
        """Copies over the bus, and waits."""
        self.call("cuMemcpyHtoD_v2", target, source, ctypes.c_size_t(size_bytes))

    def to_host(self, target: ctypes.c_void_p, source: ctypes.c_uint64, size_bytes: int) -> None:
        """Copies over the bus, and waits."""
        self.call("cuMemcpyDtoH_v2", target, source, ctypes.c_size_t(size_bytes))

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        known = self.shared_object.cuGetErrorName(code, ctypes.byref(text)) == 0
        return text.value.decode() if known and text.value else f"error {code}"
