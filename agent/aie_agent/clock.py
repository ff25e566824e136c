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


class Watchfulness:
    """Since when its owner has looked without a break. What something was like at two looks says nothing of the time between them
    when they lie further apart than they should: the agent was stopped, its machine paused, or its clock set forward."""

    def __init__(self, most_apart_s: float) -> None:
        """Looks up to `most_apart_s` apart are without a break."""
        self._most_apart_s = most_apart_s
        self._looked_s: float | None = None
        self._since_s = 0.0

    def look(self, now_s: float) -> None:
        """A look at `now_s`, which must not go back."""
        if self._looked_s is None or now_s - self._looked_s > self._most_apart_s:
            self._since_s = now_s
        self._looked_s = now_s

    def seen_since_s(self, since_s: float) -> float:
        """How far back something has surely lasted that has lasted since `since_s`, as far as one has looked."""
        return max(since_s, self._since_s)
