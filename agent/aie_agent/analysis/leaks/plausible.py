"""Whether the numbers of a recording can be what their columns say: bytes, of one process, parts no larger than wholes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from aie_agent.analysis.leaks.lines import Sample

_LEAST_BYTES: Final = 1e6
"""No process that runs a model has less in all; 12 GB in MB or GB are less, in KiB they are not."""
_LARGE_BYTES: Final = 1e9
_PARTS: Final = ("allocated_bytes", "reserved_bytes")
_SAME: Final = 0.1
"""Of all rows: so many with the time of the row before are told."""
_APART: Final = 0.2
"""Of the larger: two sizes that differ by more are two levels."""
_NEAR: Final = 0.1
"""Of the larger: two sizes that differ by no more are one level."""
_JUMPS: Final = 0.25
_FEW: Final = 10
_LAGS: Final = range(2, 5)
"""Rows back: processes that take turns."""
_MORE_LAGS: Final = range(2, 17)
"""The same where rows share their times, and so many are one round of a reader: at one of so many lags a buffer that comes and goes
at a pace of its own keeps step with the rows, too."""
_ROUND: Final = 0.5
"""Of the time that a round takes: the pause before the next one is longer."""
_REGULAR: Final = 0.95
"""Of the jumps: a reader of several processes keeps their order; buffers that come and go at random keep it in half of them at
most, and those that do so at a pace of their own slip against the rows."""
_ALL: Final = 0.98
"""Of all rows: of one process hardly each one jumps. A reader that keeps no order makes it so."""
_SEVERAL: Final = ": if they are of several processes, write one a file"


class Plausible:
    """Takes samples as they are read, and says what cannot be. Rows within `sample_s` of the one before tell whether they are of
    one process: two take turns, and one that goes to and fro does not."""

    def __init__(self, sample_s: float) -> None:
        self._sample_s = sample_s
        self._rows = self._same = self._close = self._jumps = 0
        self._both = self._swapped = 0
        self._most_bytes = 0.0
        self._tiny = dict.fromkeys(_PARTS, 0)
        self._time_s = -math.inf
        self._sizes: deque[float] = deque(maxlen=max(_MORE_LAGS) + 2)
        self._times_s: deque[float] = deque(maxlen=max(_MORE_LAGS) + 2)
        self._turns = dict.fromkeys(_MORE_LAGS, 0)

    def taken(self, sample: Sample) -> Sample:
        """Takes a row as it stands in the file, and gives it without sizes of parts that cannot be bytes."""
        time_s, physical, allocated, reserved = sample[:4]
        self._rows += 1
        self._same += time_s == self._time_s
        self._time_s = time_s
        if physical:  # 0 is a gap
            self._size(time_s, physical)
            if physical >= _LARGE_BYTES and (_is_tiny(allocated) or _is_tiny(reserved)):
                sample = self._without_tiny(sample)
                allocated, reserved = sample[2:4]
        if allocated is not None and reserved is not None:
            self._both += 1
            self._swapped += allocated > reserved
        return sample

    def _without_tiny(self, sample: Sample) -> Sample:
        allocated, reserved = sample.allocated_bytes, sample.reserved_bytes
        self._tiny["allocated_bytes"] += _is_tiny(allocated)
        self._tiny["reserved_bytes"] += _is_tiny(reserved)
        return sample._replace(
            allocated_bytes=None if _is_tiny(allocated) else allocated, reserved_bytes=None if _is_tiny(reserved) else reserved
        )

    def _size(self, time_s: float, size_bytes: float) -> None:
        self._most_bytes = max(self._most_bytes, size_bytes)
        sizes, times_s = self._sizes, self._times_s
        sizes.append(size_bytes)
        times_s.append(time_s)
        if len(sizes) > 1 and 0 <= time_s - times_s[-2] < self._sample_s:
            self._close += 1
            if _differ(size_bytes, sizes[-2], _APART):
                self._jumps += 1
                self._compare()

    def _compare(self) -> None:
        """Whether a jump is the same, from the same level to the same, as so many rows ago."""
        sizes = self._sizes
        for lag in _MORE_LAGS if self._shares_often else _LAGS:
            if lag + 1 < len(sizes):
                is_same = not (_differ(sizes[-1], sizes[-lag - 1], _NEAR) or _differ(sizes[-2], sizes[-lag - 2], _NEAR))
                self._turns[lag] += is_same and (lag in _LAGS or self._is_round(lag))

    def _is_round(self, lag: int) -> bool:
        """Whether one pause is most of the time from so many rows ago to the newest."""
        times_s = list(self._times_s)[-lag - 1 :]
        return max(late - early for early, late in pairwise(times_s)) > _ROUND * (times_s[-1] - times_s[0]) > 0

    def refused(self) -> str | None:
        """Why the rows cannot be what they say; None where they can."""
        if 0 < self._most_bytes < _LEAST_BYTES:
            return f"physical_bytes: never above {self._most_bytes:g}: not bytes?"
        if 2 * self._swapped > self._both:
            return f"allocated_bytes is above reserved_bytes in {self._swapped} of {self._both} rows: columns swapped?"
        in_turn = max(self._turns.values()) >= _REGULAR * self._jumps or self._jumps >= _ALL * self._close
        if self._jumps_often and in_turn:
            return f"{self._to_and_fro}, and take turns: of several processes? one a file"
        return None

    def notes(self) -> Iterator[str]:
        """What is odd about the rows, where they are not refused."""
        for name, count in self._tiny.items():
            if count:
                yield f"{count} values of {name} below {_LEAST_BYTES:g} were passed over: not bytes, or an allocator hardly used"
        if self.shares_times:
            yield f"{self._same} of {self._rows} rows have the time of the row before{_SEVERAL}"
        if self._jumps_often:
            yield f"{self._to_and_fro}, to and fro{_SEVERAL}"

    @property
    def shares_times(self) -> bool:
        """Whether so many rows have the time of the row before that they may be of several processes."""
        return self._same >= _FEW and self._shares_often

    @property
    def _shares_often(self) -> bool:
        return self._same > _SAME * self._rows

    @property
    def _jumps_often(self) -> bool:
        return self._jumps >= _FEW and self._jumps > _JUMPS * self._close

    @property
    def _to_and_fro(self) -> str:
        return f"{self._jumps} of {self._close} rows less than {self._sample_s:g} s after another differ from it by a fifth"


def _is_tiny(size_bytes: float | None) -> bool:
    return size_bytes is not None and 0 < size_bytes < _LEAST_BYTES


def _differ(one_bytes: float, other_bytes: float, share: float) -> bool:
    return abs(one_bytes - other_bytes) > share * max(one_bytes, other_bytes)
