"""The driver's library in this process. It belongs to a session of NVML and goes with it, so that an update of the driver under a
running agent is picked up: what stays mapped is the library of old, which the new driver refuses for ever.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
from typing import Any, Final

SONAME: Final = "libnvidia-ml.so.1"


def unload(nvml: Any) -> None:
    """Makes the binding let go of the library: its next nvmlInit loads the one that is on disk then.

    `nvml` is the module `pynvml`, or one of its shape. Nobody may be inside the library: a call that returned into it would find
    nothing there.
    """
    library = getattr(nvml, "nvmlLib", None)
    if library is None:
        return
    # The binding has no function for this; its functions look both up at each call, under this lock.
    with nvml.libLoadLock:
        nvml.nvmlLib = None
        nvml._nvmlGetFunctionPointer_cache.clear()
    _ctypes.dlclose(library._handle)


def is_loaded() -> bool:
    """Whether this process has the library mapped, whoever holds it. Loads nothing."""
    return _can_open(os.RTLD_NOLOAD)


def is_installed() -> bool:
    """Whether the library can be loaded here. It is not kept."""
    return _can_open(0)


def _can_open(mode: int) -> bool:
    try:
        library = ctypes.CDLL(SONAME, mode=os.RTLD_NOW | mode)
    except OSError:
        return False
    _ctypes.dlclose(library._handle)
    return True
