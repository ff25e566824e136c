"""Where `gpu_check.py` runs: device, driver, packages, and what this process may do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any, Final

from gpu_driver import Driver
from gpu_nvml import Nvml
from gpu_report import Context, NotRunError

_PACKAGES: Final = ("torch", "numpy", "nvidia-ml-py", "pynvml", "msgspec", "transformers", "tokenizers", "safetensors", "gguf")
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


def machine(context: Context) -> None:
    """Raises NoCudaError where there is no such device."""
    report = context.report
    if context.is_cuda:
        driver = Driver(context.device_index)
        report.fact("device_name", driver.name)
        report.fact("cuda_driver_version", driver.version)
        report.fact("nvml", _nvml())
    report.fact("python", platform.python_version())
    report.fact("kernel", platform.release())
    report.fact("cores", len(os.sched_getaffinity(0)))
    report.fact("uid", os.getuid())
    report.fact("in_first_pid_namespace", _read_link("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE)
    report.fact("driver_params", _driver_params())
    report.fact("packages", {name: _version(name) for name in _PACKAGES})


def _nvml() -> dict[str, Any]:
    try:
        nvml = Nvml()
    except NotRunError as reason:
        return {"absent": str(reason)}
    return {"driver": nvml.text("nvmlSystemGetDriverVersion"), "library": nvml.text("nvmlSystemGetNVMLVersion")}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver_params() -> dict[str, str]:
    """Parameters of the kernel module that decide what may be measured without privilege."""
    try:
        lines = Path("/proc/driver/nvidia/params").read_text().splitlines()
    except OSError:
        return {}
    found = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in found if "Profiling" in name or name == "ModifyDeviceFiles"}


def _read_link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
