"""A canary's log-probability beside what its first runs gave: whether the model is still the one that it was.

The canary asks one fixed prompt, so traffic has no part in it: an engine that computes alike each time gives one number for ever,
and a step in it is a change of the model. What noise there is (other batches, other kernels) is learnt from the first `LEARNT`
runs: the level is their median, and what is no further from it than `MARGIN` times the farthest of them is the same.
`CONSECUTIVE_RUNS` runs in a row that are further, or give no number, are an alarm, and as many that are not end it.

False alarms, where runs vary independently as the learnt ones did: one in 1e9 runs for normal noise, one in 3e6 for Student's t
with three degrees of freedom, whose tails are far heavier (`make bench-drift`); at one run a minute that is six years. Noise that
comes in spells longer than the learning (a batch size that only the evening has) is what the floor is for: what is less apart
than that counts as the same, however alike the learnt runs were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any, Final, NamedTuple

from aie_agent.analysis.drift.rule import Run
from aie_agent.analysis.drift.saved import integer, mapping, number, number_or_none, numbers

LEARNT: Final = 20
"""Runs that the level is learnt from."""

CONSECUTIVE_RUNS: Final = 3
"""In a row that raise an alarm, and that end it."""

MARGIN: Final = 3.0

FLOOR_NATS: Final = 0.25
"""Where whoever computes the canary does not say how far its batch may move it: two steps of bfloat16 at logits of 16 to 32."""

WIDEST_NATS: Final = 1.0
"""Of the limit. A canary whose runs vary by a third of it says nothing: it is learnt anew."""


class Key(NamedTuple):
    """One canary."""

    engine: str
    model: str
    canary: str


class CanaryWatch:
    """Of one canary and version of its model. Not thread-safe; time is an argument."""

    def __init__(self, begun_s: float, floor: float) -> None:
        """`floor` in nats. `begun_s` is kept, and tells which levels an operator no longer holds for right."""
        self.begun_s = begun_s
        self.floor = floor
        self.learnt: list[float] = []
        self.runs = 0
        self.last: float | None = None
        self.seen_s = begun_s
        self.level: float | None = None
        self.limit: float | None = None
        self._run = Run(CONSECUTIVE_RUNS)

    def take(self, logprob: float, now_s: float) -> bool:
        """Takes a run in; NaN is one that gave no number. Returns whether an alarm began with it."""
        self.runs += 1
        self.seen_s = now_s
        self.last = logprob if math.isfinite(logprob) else None
        if self.level is None or self.limit is None:
            if self.last is not None:
                self._learn(self.last)
            return False
        beyond = self.last is None or abs(self.last - self.level) > self.limit
        return self._run.window(beyond=beyond, now_s=now_s)

    def _learn(self, logprob: float) -> None:
        self.learnt.append(logprob)
        if len(self.learnt) < LEARNT:
            return
        level = median(self.learnt)
        limit = max(self.floor, MARGIN * max(abs(each - level) for each in self.learnt))
        if limit <= WIDEST_NATS:
            self.level, self.limit = level, limit
        self.learnt = []

    @property
    def since_s(self) -> float | None:
        """When the first run of an alarm that holds was seen; None while none does."""
        return self._run.since_s

    @property
    def is_new(self) -> bool:
        """Whether the model is another than the one that was learnt."""
        return self.since_s is not None

    def dump(self) -> dict[str, Any]:
        """For `restored`."""
        return {
            "begun_s": self.begun_s,
            "floor": self.floor,
            "learnt": list(self.learnt),
            "runs": self.runs,
            "seen_s": self.seen_s,
            "level": self.level,
            "limit": self.limit,
            "run": self._run.dump(),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> CanaryWatch:
        """Raises ValueError for what `dump` did not give."""
        watch = cls(number(state, "begun_s"), number(state, "floor"))
        watch.learnt = numbers(state, "learnt", LEARNT - 1)
        watch.runs, watch.seen_s = integer(state, "runs"), number(state, "seen_s")
        watch.level, watch.limit = number_or_none(state, "level"), number_or_none(state, "limit")
        watch._run = Run.restored(mapping(state, "run"), CONSECUTIVE_RUNS)
        return watch
