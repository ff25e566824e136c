"""The events that hooks told of, and those of the agent itself (findings that came or went): the last ones, the newest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from aie_telemetry.api import Event

MAX_EVENTS: Final = 200

CLOCKS_AGREE_S: Final = 60.0
"""An event says when it happened by its sender's clock. Further off than this, it is taken to have happened when it came."""


class EventLog:
    """Bounded: the oldest makes room. `canonical` maps an engine's name to the one that it is known by."""

    def __init__(self, canonical: Callable[[str], str] = str) -> None:
        self._canonical = canonical
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def add(self, event: Event, now_s: float) -> None:
        """Keeps an event that came at `now_s`."""
        near = abs(event.time_s - now_s) <= CLOCKS_AGREE_S
        self._events.appendleft(msgspec.structs.replace(event, time_s=min(event.time_s, now_s) if near else now_s))

    def newest(self, most: int = MAX_EVENTS, without: Callable[[Event], bool] = lambda _: False) -> tuple[Event, ...]:
        """The newest first, but those that are `without`. An engine that was named only later goes by that name."""
        events = [event for event in self._events if not without(event)][:most]
        return tuple(msgspec.structs.replace(event, engine=self._canonical(event.engine)) for event in events)
