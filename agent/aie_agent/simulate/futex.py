"""Wakes who sleeps on a word of shared memory. Python has no call for it, and the C library none with a name."""

import ctypes
import os
from typing import Final

_FUTEX_WAKE: Final = 1
_ALL: Final = 2**31 - 1
_NUMBERS: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
"""SYS_futex by machine. On another one nobody is woken, and who sleeps looks again after a quarter of a second."""

_NUMBER: Final = _NUMBERS.get(os.uname().machine)
_LIBC: Final = ctypes.CDLL(None)


def wake_all(address: int) -> None:
    """Wakes every thread of every process that sleeps on the 32-bit word at this address."""
    if _NUMBER is not None:
        _LIBC.syscall(ctypes.c_long(_NUMBER), ctypes.c_void_p(address), _FUTEX_WAKE, _ALL, None, None, 0)
