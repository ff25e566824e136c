"""Simulated GPUs: a stand-in for the driver's library, so that everything can be tried and tested on a machine without a GPU.

The stand-in is a real shared library called ``libnvidia-ml.so.1``. Whatever speaks to NVML, nvidia-ml-py included, loads it
unchanged and finds 1 to 16 GPUs that behave, and misbehave, as a :class:`Controller` tells them to. See ``docs/simulated-gpus.md``.
"""

import ctypes
import os
from pathlib import Path

from aie_agent.simulate.build import CURRENT_DRIVER, SONAME, BuildError, stand_in
from aie_agent.simulate.controller import (
    COMPUTE,
    FOLLOWS_LOAD,
    GRAPHICS,
    MPS,
    NO_INSTANCE,
    NOT_AVAILABLE,
    Controller,
    MigInstance,
    Process,
)
from aie_agent.simulate.profiles import MIB, PROFILES, Profile

STATE_VARIABLE = "AIE_SIMULATED_GPUS"
"""The environment variable that names the state file."""

__all__ = [
    "COMPUTE",
    "FOLLOWS_LOAD",
    "GRAPHICS",
    "MIB",
    "MPS",
    "NOT_AVAILABLE",
    "NO_INSTANCE",
    "PROFILES",
    "STATE_VARIABLE",
    "BuildError",
    "Controller",
    "MigInstance",
    "Process",
    "Profile",
    "environment",
    "install",
    "is_simulated",
    "uninstall",
]


def install(gpus: int = 8, profile: str = "H100", *, state_file: Path | None = None, driver: int = CURRENT_DRIVER) -> Controller:
    """Puts simulated GPUs into this process: from now on it is the stand-in that ``libnvidia-ml.so.1`` means here.

    An existing ``state_file`` is followed as it is; else one is made: the one named, or a temporary one that goes with ``close``.
    May be called again, with another state file: sessions of NVML end, and the next nvmlInit sees the new host.

    Raises:
        BuildError: the stand-in could not be compiled.
        RuntimeError: this process has loaded another ``libnvidia-ml.so.1`` already.
        ValueError: not 1 to 16 GPUs, or an unknown profile.
    """
    path = stand_in(driver)
    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    # A library is known by its SONAME: the first of that name in the process is the one that everybody gets.
    if _address_of_attach(ctypes.CDLL(SONAME)) != _address_of_attach(loaded):
        raise RuntimeError(f"simulated GPUs: this process has loaded another {SONAME} already")
    if state_file is not None and state_file.exists():
        controller = Controller(state_file)
    else:
        controller = Controller.create(state_file, gpus, profile)
    if loaded.aie_stand_in_attach(os.fsencode(controller.path)) != 0:
        raise RuntimeError(f"simulated GPUs: {controller.path} cannot be mapped")
    return controller


def uninstall() -> None:
    """Takes the simulated GPUs out of this process: sessions end, and the next nvmlInit finds no driver."""
    if is_simulated():
        ctypes.CDLL(SONAME).aie_stand_in_attach(None)


def environment(state_file: Path, driver: int = CURRENT_DRIVER) -> dict[str, str]:
    """What a child process needs in its environment to find the simulated GPUs of this state file.

    Raises:
        BuildError: the stand-in could not be compiled.
    """
    directories = [str(stand_in(driver).parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(directories), STATE_VARIABLE: str(state_file)}


def is_simulated() -> bool:
    """Is the ``libnvidia-ml.so.1`` of this process the stand-in? False also where there is none."""
    try:
        return _address_of_attach(ctypes.CDLL(SONAME)) is not None
    except OSError:
        return False


def _address_of_attach(loaded: ctypes.CDLL) -> int | None:
    try:
        return ctypes.cast(loaded.aie_stand_in_attach, ctypes.c_void_p).value
    except AttributeError:
        return None
