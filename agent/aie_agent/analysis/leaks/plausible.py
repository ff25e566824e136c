"""Whether the numbers of a recording can be what their columns say: bytes, of one process, parts no larger than wholes."""

from __future__ import annotations

import math
from typing import Final

from aie_agent.analysis.leaks.lines import Sample

_LEAST_BYTES: Final = 1e6
"""No process that runs a model has less in all; 12 GB in MB or GB are less, in KiB they are not."""
_LARGE_BYTES: Final = 1e9
_MOST_SAME: Final = 0.1
_APART: Final = 0.2
_OTHERS: Final = 0.25
_FEW: Final = 10


class Plausible:
    """Takes samples as they are read, and says what cannot be. Rows within `sample_s` of the last one that is used tell whether
    they are of one process: memory does not go to and fro by a fifth within it."""

    def __init__(self, sample_s: float) -> None:
        self._sample_s = sample_s
        self._rows = self._same = self._close = self._others = 0
        self._both = self._swapped = 0
        self._most = dict.fromkeys(("physical_bytes", "allocated_bytes", "reserved_bytes"), 0.0)
        self._time_s = self._used_s = -math.inf
        self._used_bytes: float | None = None

    def add(self, sample: Sample) -> None:
        """Takes a row as it stands in the file."""
        time_s, physical, allocated, reserved = sample[:4]
        self._rows += 1
        self._same += time_s == self._time_s
        self._time_s = time_s
        for name, value in zip(self._most, (physical, allocated, reserved), strict=True):
            if value is not None and value > self._most[name]:
                self._most[name] = value
        if allocated is not None and reserved is not None:
            self._both += 1
            self._swapped += allocated > reserved
        if not physical:  # 0 is a gap
            return
        if self._used_bytes is None or not 0 <= time_s - self._used_s < self._sample_s:
            self._used_s, self._used_bytes = time_s, physical
            return
        self._close += 1
        self._others += abs(physical - self._used_bytes) > _APART * max(physical, self._used_bytes)

    def refused(self) -> str | None:
        """Why the rows cannot be what they say; None where they can."""
        physical = self._most["physical_bytes"]
        for name, most in self._most.items():
            if 0 < most < _LEAST_BYTES and (name == "physical_bytes" or physical >= _LARGE_BYTES):
                return f"{name}: never above {most:g}: not bytes?"
        if 2 * self._swapped > self._both:
            return f"allocated_bytes is above reserved_bytes in {self._swapped} of {self._both} rows: columns swapped?"
        if self._same >= _FEW and self._same > _MOST_SAME * self._rows:
            return f"{self._same} of {self._rows} rows have the time of the row before: of several processes? one a file"
        if self._others >= _FEW and self._others > _OTHERS * self._close:
            told = f"{self._others} of {self._close} rows less than {self._sample_s:g} s after another differ from it by a fifth"
            return f"{told}: of several processes? one a file"
        return None
