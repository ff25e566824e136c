"""Simulated GPUs in this process, for a test's length: the real nvidia-ml-py on the stand-in library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pynvml as nvml
import pytest

from aie_agent import simulate


def _reason_for_no_stand_in() -> str:
    try:
        simulate.build.compiler()
    except simulate.BuildError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(_reason_for_no_stand_in()), reason=_reason_for_no_stand_in() or "there is a compiler")
"""For every test that loads the stand-in."""


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
