"""The agent's time: seconds since the epoch that never go back."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

_STEP_S = 2.0
"""What is more is a step that is worth a line in the log, and not the clock being disciplined."""


class SteadyClock:
    """Follows the wall clock, but never back: after a step back it counts on from where it was, so that the store, which takes
    no point older than the last one, neither refuses everything for an hour nor forgets what it holds."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()
        self._behind = False

    def __call__(self) -> float:
        """Seconds since the epoch."""
        offset_s = time.time() - time.monotonic()
        behind = self._offset_s - offset_s > _STEP_S
        if behind and not self._behind:
            log.warning("the wall clock was set back by %.0f s: the agent's time counts on", self._offset_s - offset_s)
        elif offset_s - self._offset_s > _STEP_S:
            log.warning("the wall clock was set forward by %.0f s", offset_s - self._offset_s)
        self._behind = behind
        self._offset_s = max(self._offset_s, offset_s)
        return time.monotonic() + self._offset_s
