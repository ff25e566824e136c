"""Functions of the C library that fill in plain numbers, called past the binding.

For each call the binding makes new objects, looks the function up and checks the code, in as many calls of Python, and so does the
door: together that takes longer than the library. What a GPU is asked every second gets the same arguments each time, made once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Filled(NamedTuple):
    """The numbers that a function fills in behind its own arguments, and where the memory begins that each of its pointers gets."""

    numbers: struct.Struct
    pointers: tuple[int, ...] = (0,)


_ONE: Final = Filled(struct.Struct("=I"))
_WIDE: Final = Filled(struct.Struct("=Q"))
_STRUCT_OF_TWO: Final = Filled(struct.Struct("=II"))
_TWO: Final = Filled(struct.Struct("=II"), (0, 4))

FILLED: Final[Mapping[str, Filled]] = {
    "nvmlDeviceGetUtilizationRates": _STRUCT_OF_TWO,
    "nvmlDeviceGetEncoderUtilization": _TWO,
    "nvmlDeviceGetDecoderUtilization": _TWO,
    "nvmlDeviceGetClockInfo": _ONE,
    "nvmlDeviceGetCurrentClocksEventReasons": _WIDE,
    "nvmlDeviceGetCurrentClocksThrottleReasons": _WIDE,
    "nvmlDeviceGetPerformanceState": _ONE,
    "nvmlDeviceGetPowerUsage": _ONE,
    "nvmlDeviceGetTemperature": _ONE,
    "nvmlDeviceGetCurrPcieLinkGeneration": _ONE,
    "nvmlDeviceGetCurrPcieLinkWidth": _ONE,
}
"""Those that are asked at every look, by name; their other arguments are whole numbers."""


class PlainCall:
    """One such function with these arguments. Belongs to one GPU: the numbers are those of its last call."""

    __slots__ = ("_memory", "_unpack", "args", "name", "passed")

    def __init__(self, name: str, args: tuple[int, ...]) -> None:
        filled = FILLED[name]
        self.name = name
        self.args = args
        self._memory = ctypes.create_string_buffer(filled.numbers.size)
        self._unpack = filled.numbers.unpack_from
        pointers = (ctypes.byref(self._memory, begin) for begin in filled.pointers)
        self.passed: tuple[Any, ...] = (*map(ctypes.c_uint, args), *pointers)
        """What goes behind the GPU's handle."""

    def numbers(self) -> int | tuple[int, ...]:
        """What the function filled in: the number, or all where there are several."""
        numbers: tuple[int, ...] = self._unpack(self._memory)
        return numbers[0] if len(numbers) == 1 else numbers
