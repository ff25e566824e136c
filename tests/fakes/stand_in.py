"""Simulated GPUs in this process, for a test's length: the real nvidia-ml-py on the stand-in library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pynvml as nvml

from aie_agent import simulate


@contextlib.contextmanager
def simulated(state_file: Path, gpus: int = 4, profile: str = "H100") -> Iterator[simulate.Controller]:
    """Frozen GPUs with a session of NVML open; nothing of them is left behind."""
    with simulate.install(gpus, profile, state_file=state_file) as controller:
        controller.freeze()
        nvml.nvmlInit()
        try:
            yield controller
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
            simulate.uninstall()
