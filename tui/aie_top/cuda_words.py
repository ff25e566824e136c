"""What the CUDA driver's codes, kinds of memory and directions are called in words."""

from __future__ import annotations

from typing import Final

# CUresult, as cuda.h numbers it: those that an engine meets.
RESULTS: Final[dict[int, str]] = {
    1: "invalid value",
    2: "out of memory",
    3: "not initialized",
    4: "deinitialized",
    100: "no device",
    101: "invalid device",
    201: "invalid context",
    214: "uncorrectable ECC error",
    220: "uncorrectable NVLink error",
    304: "operating system call failed",
    400: "invalid handle",
    600: "not ready",
    700: "illegal address",
    701: "launch out of resources",
    702: "launch timeout",
    709: "context is destroyed",
    710: "device-side assert",
    712: "host memory already registered",
    713: "host memory not registered",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failed",
    800: "not permitted",
    801: "not supported",
    802: "system not ready",
    803: "driver mismatch",
    900: "not supported in a stream capture",
    999: "unknown error",
}
KINDS: Final[dict[str, str]] = {
    "device": "device",
    "managed": "managed",
    "async": "async (pool)",
    "vmm": "virtual (VMM)",
    "host": "pinned host",
    "registered": "registered host",
}
DIRECTIONS: Final[dict[str, str]] = {
    "htod": "host to device",
    "dtoh": "device to host",
    "dtod": "within a device",
    "peer": "device to device",
    "unified": "unified",
}


def failure(key: str) -> tuple[str, str]:
    """ "cuMemAlloc:2" as ("cuMemAlloc", "2 out of memory"); a code without a name here stays a number."""
    call, _, code = key.rpartition(":")
    word = RESULTS.get(int(code), "") if code.isascii() and code.isdigit() and len(code) < 10 else ""
    return (call or key, f"{code} {word}".strip() if call else "")
