"""Physical memory that is far below what it was: a reading that failed, an engine that sleeps, or one that began anew.

Live, processes tell who began anew: then what is far below is a gap, for half a day at most, and for half an hour while it wakes.
Where nobody tells, as in a recording, two such readings in a row are a restart; a single one is a gap if memory is back after it.
"""

from __future__ import annotations

from typing import Final, Literal

_LOW: Final = 0.5
"""Of what it was after the warm-up. Who puts its weights away is below that, and so is who loads them."""
_BACK: Final = 0.9
"""Of what it was before: it is what it was, and nobody began anew."""

Told = Literal["usual", "gap", "restart"]


def is_far_below(size_bytes: float, base_bytes: float | None) -> bool:
    """Whether a size is less than half of what memory was after the warm-up (None: it is not over)."""
    return base_bytes is not None and size_bytes < _LOW * base_bytes


class LowReadings:
    """Takes sizes in turn, and tells of each what it is. `wake_s` is how long it may take from below half to where it was,
    `longest_s` how long it may be low: from then on that is what it is."""

    def __init__(self, wake_s: float, longest_s: float) -> None:
        self._wake_s = wake_s
        self._longest_s = longest_s
        self._low_s = 0.0
        self._count = 0
        self._before: float | None = None
        self._woke_s: float | None = None

    @property
    def is_low(self) -> bool:
        """Whether the last size was no usual one."""
        return self._count > 0

    def take(self, time_s: float, size_bytes: float | None, base_bytes: float | None, *, restarts_told: bool) -> Told:
        """What a size is. `base_bytes` is that after the warm-up (None: it is not over); `restarts_told`: others tell restarts."""
        if base_bytes is None:
            self._count, self._before, self._woke_s = 0, size_bytes, None
            return "usual"
        if size_bytes is None:
            return "gap" if self._count else "usual"
        if is_far_below(size_bytes, base_bytes):
            self._low_s = self._low_s if self._count else time_s
            self._count, self._woke_s = self._count + 1, None
            is_gap = time_s - self._low_s < self._longest_s if restarts_told else self._count == 1
            return "gap" if is_gap else "restart"
        if not self._count or size_bytes >= _BACK * (self._before or base_bytes):
            self._count, self._before, self._woke_s = 0, size_bytes, None
            return "usual"
        return self._waking(time_s, size_bytes) if restarts_told else "restart"

    def _waking(self, time_s: float, size_bytes: float) -> Told:
        self._woke_s = time_s if self._woke_s is None else self._woke_s
        if time_s - self._woke_s < self._wake_s:
            return "gap"
        self._count, self._before, self._woke_s = 0, size_bytes, None
        return "usual"
