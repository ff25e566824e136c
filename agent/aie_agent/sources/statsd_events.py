"""Which events are taken: so many of an engine in a minute, so that a flood of one does not push out what others told."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from aie_agent.sources.statsd_reasons import Reason
from aie_telemetry.api import Event

PER_ENGINE: Final = 10
"""Events of one engine in a minute."""

PER_MINUTE: Final = 60
"""Events of all engines in a minute: names can be made up."""

_MINUTE_S: Final = 60.0


class EventIntake:
    """Takes events in until `take`. Their times are those of `take`, since a sender's clock may say anything. Not thread-safe."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        """By kind, since the start."""
        self.refused: Counter[str] = Counter()
        self._waiting: list[Event] = []
        self._lately: deque[tuple[float, str]] = deque()

    def add(self, event: Event) -> bool:
        """Whether there is room for it in this minute; what there is no room for is counted."""
        engine = event.engine
        of_engine = sum(name == engine for _, name in self._lately) + sum(one.engine == engine for one in self._waiting)
        if of_engine >= PER_ENGINE or len(self._lately) + len(self._waiting) >= PER_MINUTE:
            self.refused[Reason.EVENT_LIMIT] += 1
            return False
        self._waiting.append(event)
        self.taken[event.kind] += 1
        return True

    def take(self, now_s: float) -> list[Event]:
        """What came since the last time."""
        events, self._waiting = self._waiting, []
        self._lately.extend((now_s, event.engine) for event in events)
        while self._lately and not 0 <= now_s - self._lately[0][0] < _MINUTE_S:
            self._lately.popleft()
        return events
