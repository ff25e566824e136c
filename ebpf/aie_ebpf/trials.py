"""System calls that probes live by, each tried once: a kernel may lack it, and a container's filter may refuse it to everybody.

Each makes something tiny and gives it back at once: what the kernel does then, and no list of versions or options, is the answer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

BPF: Final = {"x86_64": 321, "aarch64": 280}
PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
"""Numbers of the calls, of each architecture's table (asm/unistd.h)."""

_MAP_CREATE: Final = 0
_MAP_TYPE_ARRAY: Final = 2
_ATTRIBUTES_BYTES: Final = 128
# map_type, key_size, value_size, max_entries (uapi/linux/bpf.h).
_TINY_ARRAY: Final = struct.pack("=IIII", _MAP_TYPE_ARRAY, 4, 8, 1)

_PERF_TYPE_SOFTWARE: Final = 1
_PERF_COUNT_SW_DUMMY: Final = 9
# type, size, config (uapi/linux/perf_event.h); what follows is 0. It counts nothing.
_DUMMY_EVENT: Final = struct.pack("=IIQ", _PERF_TYPE_SOFTWARE, _ATTRIBUTES_BYTES, _PERF_COUNT_SW_DUMMY)

_REFUSED: Final = (errno.EPERM, errno.EACCES)


class Trial(NamedTuple):
    """A call that is tried: returns 0, or the number of the error. `kernel` is what a kernel without it was built without."""

    name: str
    call: Callable[[], int]
    works: str
    kernel: str

    def found(self, number: int) -> str:
        """What an error means."""
        if number == errno.ENOSYS:
            return f"this kernel has no {self.name}, or a filter (seccomp) says so"
        if number in _REFUSED:
            return f"{self.name} is refused though we hold the capabilities: by seccomp, or by a security module"
        return f"{self.name} fails: {os.strerror(number)}"

    def remedy(self, number: int) -> str:
        """What to do about an error."""
        unconfined = "docker run --security-opt seccomp=unconfined; in a pod, securityContext.seccompProfile.type: Unconfined"
        if number == errno.ENOSYS:
            return f"use a kernel with {self.kernel}; in a container, {unconfined}"
        if number in _REFUSED:
            return f"in a container, {unconfined}; else see the kernel log for the module that refused it"
        return "report it with this line" if number else ""


def try_bpf() -> int:
    """Makes a map of one entry."""
    return _errno(BPF, _MAP_CREATE, ctypes.create_string_buffer(_TINY_ARRAY, _ATTRIBUTES_BYTES), _ATTRIBUTES_BYTES)


def try_perf_event() -> int:
    """Opens an event of a CPU that counts nothing, as probes do: for all processes."""
    cpu = min(os.sched_getaffinity(0))
    return _errno(PERF_EVENT_OPEN, ctypes.create_string_buffer(_DUMMY_EVENT, _ATTRIBUTES_BYTES), -1, cpu, -1, ctypes.c_ulong(0))


def _errno(numbers: dict[str, int], *arguments: object) -> int:
    """What a call that returns a file descriptor says; the descriptor is closed."""
    number = numbers.get(os.uname().machine)
    if number is None:
        return errno.ENOSYS
    fd = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if fd < 0:
        return ctypes.get_errno()
    os.close(fd)
    return 0


TRIALS: Final = (
    Trial("bpf(2)", try_bpf, "works", "CONFIG_BPF_SYSCALL"),
    Trial("perf_event_open(2)", try_perf_event, "works", "CONFIG_PERF_EVENTS"),
)
