"""A kernel that writes where nothing is, in a process of its own: `python gpu_fault.py INDEX`. The driver logs an XID 31 of it.

Only for `gpu_check.py --provoke-xid`: on a host that is watched, an XID may take the node out of service.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any, Final

from gpu_driver import CudaError, Driver

# Understood by every GPU since Volta; the driver compiles it.
_PTX: Final = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry fault() {
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 8;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""


def fault_elsewhere(index: int) -> str:
    """What the process that caused the fault was told."""
    done = subprocess.run([sys.executable, __file__, str(index)], capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).strip()


def _fault(index: int) -> str:
    driver = Driver(index)
    driver.enter()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), _PTX)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"fault")
    one: tuple[Any, ...] = (1, 1, 1)
    driver.call("cuLaunchKernel", function, *one, *one, 0, None, None, None)
    try:
        driver.call("cuCtxSynchronize")
    except CudaError as error:
        return str(error)
    return "no fault"


if __name__ == "__main__":
    print(_fault(int(sys.argv[1])))
