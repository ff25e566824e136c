"""Where every request stands: waiting, running or ended. The one place that counts them, so that the counts always add up."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from aie_engine.request import Outcome
from aie_hooks.logits import LogitsHook
from aie_hooks.requests import RequestHook


class Stage(Enum):
    """The stages of a request; each is entered at most once, in this order, and `RUNNING` may be left out."""

    WAITING = 1
    RUNNING = 2
    ENDED = 3


class Lengths(NamedTuple):
    """Tokens of a request's prompt and of its answer."""

    prompt_tokens: int
    answer_tokens: int


class Ticket:
    """One request's place in the ledger, and who else follows it. Times are seconds of the engine's monotonic clock.

    `queued_at` is None before the model loop takes the request, `replayed` for all that the response cache does not answer.
    `hook` and `logits` are None where there are no such hooks, or where they failed.
    """

    __slots__ = ("arrived_at", "hook", "logits", "queued_at", "replayed", "stage")

    def __init__(self, arrived_at: float, hook: RequestHook | None, logits: LogitsHook | None = None) -> None:
        self.arrived_at = arrived_at
        self.hook = hook
        self.logits = logits
        self.queued_at: float | None = None
        self.replayed: Lengths | None = None
        self.stage = Stage.WAITING


@dataclass(frozen=True, slots=True)
class Counts:
    """A consistent view: `received == waiting + running + sum(ended.values())`. `busy_since` is set while requests run."""

    received: int
    waiting: int
    running: int
    ended: dict[Outcome, int]
    busy_since: float | None


class Ledger:
    """Counts requests by stage and outcome. Thread-safe; every transition is one change under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received = 0
        self._waiting = 0
        self._running = 0
        self._ended = dict.fromkeys(Outcome, 0)
        self._busy_since: float | None = None

    def enter(self, ticket: Ticket) -> None:
        """A request reached the engine; it waits. To be called once for each ticket."""
        with self._lock:
            self._received += 1
            self._waiting += 1

    def admit(self, ticket: Ticket, now: float) -> bool:
        """The request began to run. False when it has ended before, or runs already."""
        with self._lock:
            if ticket.stage is not Stage.WAITING:
                return False
            ticket.stage = Stage.RUNNING
            self._waiting -= 1
            self._running += 1
            if self._busy_since is None:
                self._busy_since = now
            return True

    def end(self, ticket: Ticket, outcome: Outcome) -> Stage | None:
        """The request ended. Returns the stage it was in; None when it has ended before: its first outcome stands."""
        with self._lock:
            stage = ticket.stage
            if stage is Stage.ENDED:
                return None
            if stage is Stage.WAITING:
                self._waiting -= 1
            else:
                self._running -= 1
                if self._running == 0:
                    self._busy_since = None
            ticket.stage = Stage.ENDED
            self._ended[outcome] += 1
            return stage

    def counts(self) -> Counts:
        """All counts at one moment."""
        with self._lock:
            return Counts(self._received, self._waiting, self._running, dict(self._ended), self._busy_since)
