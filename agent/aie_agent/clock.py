"""The agent's time: seconds since the epoch that never go back."""

from __future__ import annotations

import time


class SteadyClock:
    """Follows the wall clock, but never back: after a step back it counts on from where it was, so that the store, which takes
    no point older than the last one, neither refuses everything for an hour nor forgets what it holds."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Seconds since the epoch."""
        self._offset_s = max(self._offset_s, time.time() - time.monotonic())
        return time.monotonic() + self._offset_s
