"""Memory of a GPU, so that used + reserved + free = total whichever way the driver tells it.

What does not add up within a page is no answer: then the older form of the call is asked, which tells nothing of reserved memory.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from aie_agent.sources.nvml.door import IMPLAUSIBLE, NOT_SUPPORTED, Absent, Device, Door, number

CALL: Final = "nvmlDeviceGetMemoryInfo"

# nvmlMemory_v2_t: its size, and the version behind it.
_VERSION_2: Final = 0x02000028

PAGE_BYTES: Final = 4096
"""By so much the sum may miss the total: drivers count in pages."""

# Parts that share one memory with the CPU, by what the driver calls them. Its answers alone do not tell them from a GPU that fails.
_INTEGRATED: Final = re.compile(r"\b(GB10|Xavier|Orin|Thor|Tegra)\b")


def is_integrated(name: str) -> bool:
    """Whether a GPU of this name has no memory of its own."""
    return _INTEGRATED.search(name) is not None


class Memory(NamedTuple):
    """In bytes. `reserved` is None where the driver does not tell it apart: then it is part of `used`."""

    total: int
    used: int
    free: int
    reserved: int | None = None


def balanced(total: int, used: int, free: int, reserved: int | None) -> Memory | None:
    """The four numbers of one answer, made to add up; None where they cannot be of one memory.

    Version 2 of the answer tells what is reserved apart; drivers differ in whether `used` still holds it. What adds up decides.
    """
    if reserved is None:
        return _closed(total, used, free, 0, None)
    apart = _closed(total, used, free, reserved, reserved)
    if apart is not None and abs(used + reserved + free - total) <= abs(used + free - total):
        return apart
    return _closed(total, used - reserved, free, reserved, reserved) if used >= reserved else apart


def _closed(total: int, used: int, free: int, apart: int, reserved: int | None) -> Memory | None:
    if not total > 0 or min(used, free, apart) < 0 or max(used, free, apart) > total:
        return None
    if abs(used + apart + free - total) > PAGE_BYTES:
        return None
    rest = total - used - apart
    return None if rest < 0 else Memory(total, used, rest, reserved)


def read_memory(door: Door, device: Device) -> Memory | Absent:
    """The memory of a GPU or of a MIG instance. An integrated GPU has an answer with a total of 0, or none."""
    answer = door.query(CALL, device, _VERSION_2)
    if isinstance(answer, Absent):
        is_older = answer.is_for_good or answer.reason == "argument_version_mismatch"
        return _read_first_version(door, device) if is_older else answer
    memory = _taken(door, answer)
    return _read_first_version(door, device) if memory is IMPLAUSIBLE else memory


def _read_first_version(door: Door, device: Device) -> Memory | Absent:
    answer = door.query(CALL, device)
    return answer if isinstance(answer, Absent) else _taken(door, answer)


def _taken(door: Door, answer: Any) -> Memory | Absent:
    found = [number(value) for value in (answer.total, answer.used, answer.free, getattr(answer, "reserved", None) or 0)]
    if any(isinstance(value, Absent) for value in found):
        return NOT_SUPPORTED if isinstance(found[0], Absent) else door.implausible(CALL)
    total, used, free, reserved = (int(value) for value in found if not isinstance(value, Absent))
    if total == 0:
        return NOT_SUPPORTED
    memory = balanced(total, used, free, reserved if _tells_reserved(answer) else None)
    return door.implausible(CALL) if memory is None else memory


def _tells_reserved(answer: Any) -> bool:
    return hasattr(answer, "reserved")
