"""A canary's log-probability beside what its first runs gave: whether the model is still the one that it was.

The canary asks one fixed prompt, so traffic has no part in it: an engine that computes alike each time gives one number for ever,
and a step in it is a change of the model. What noise there is (other batches, other kernels) is learnt from the first `LEARNT`
runs: the level is their median, and what is no further from it than `MARGIN` times the farthest of them is the same.
`CONSECUTIVE_RUNS` runs in a row that are further, or give no number, are an alarm, and as many that are not end it; so are `OFTEN`
of the last `OF_RUNS`, of what is wrong now and then. What gives no number needs no level to be told. A model that is changed while
it is learnt is learnt anew (canary_learning.py).

False alarms, where runs vary independently as the learnt ones did: one in 1e9 runs for normal noise, one in 3e6 for Student's t
with three degrees of freedom, whose tails are far heavier (`make bench-drift`); at one run a minute that is six years. `OFTEN` of
`OF_RUNS` add one in 1e13 and one in 3e9 (binomial, over 200,000 simulated learnings). Noise that comes in spells longer than the
learning (a batch size that only the evening has) is what the floor is for: what is less apart than that counts as the same, however
alike the learnt runs were.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, Final, NamedTuple

from aie_agent.analysis.drift.canary_learning import LATER, may_step, step_in
from aie_agent.analysis.drift.rule import Run
from aie_agent.analysis.drift.saved import integer, mapping, number, number_or_none, numbers

LEARNT: Final = 20
"""Runs that the level is learnt from."""

CONSECUTIVE_RUNS: Final = 3
"""In a row that raise an alarm, and that end it."""

OFTEN: Final = 8
OF_RUNS: Final = 12
"""So many of so many raise an alarm as well."""

MARGIN: Final = 3.0

FLOOR_NATS: Final = 0.25
"""Where whoever computes the canary does not say how far its batch may move it: two steps of bfloat16 at logits of 16 to 32."""

WIDEST_NATS: Final = 1.0
"""Of the limit. A canary whose runs vary by a third of it says nothing: it is too noisy, and learnt anew."""


_MOST_LEARNT: Final = LEARNT + LATER


def floor_of(noise_nats: float | None) -> float:
    """The floor by what whoever computes a canary says of its noise: that, where it can be one, else `FLOOR_NATS`."""
    return noise_nats if noise_nats is not None and 0.0 < noise_nats <= WIDEST_NATS else FLOOR_NATS


class Key(NamedTuple):
    """One canary."""

    engine: str
    model: str
    canary: str


class CanaryWatch:
    """Of one canary and version of its model. Not thread-safe; time is an argument."""

    def __init__(self, begun_s: float, floor: float) -> None:
        """`floor` in nats, `FLOOR_NATS` where it can be none. `begun_s` is kept, and tells which levels an operator no longer
        holds for right."""
        self.begun_s = begun_s
        self.floor = floor_of(floor)
        self.learnt: list[float] = []
        self.runs = 0
        self.last: float | None = None
        self.seen_s = begun_s
        self.level: float | None = None
        self.limit: float | None = None
        self.is_noisy = False
        self.anew = ""  # why learning began anew
        self.anew_s: float | None = None
        self._run = Run(CONSECUTIVE_RUNS)
        self._taken_s: deque[float] = deque(maxlen=OF_RUNS)
        self._beyond: deque[float] = deque(maxlen=OF_RUNS)

    def take(self, logprob: float, now_s: float) -> bool:
        """Takes a run in; NaN is one that gave no number. Returns whether an alarm began with it."""
        self.runs += 1
        self.seen_s = now_s
        self.last = logprob if math.isfinite(logprob) else None
        if self.last is None:
            return self._judge(beyond=True, now_s=now_s)
        if self.level is None or self.limit is None:
            self._learn(self.last, now_s)
            return self._judge(beyond=False, now_s=now_s)
        return self._judge(beyond=abs(self.last - self.level) > self.limit, now_s=now_s)

    def _judge(self, *, beyond: bool, now_s: float) -> bool:
        was_new = self.is_new
        began = self._run.window(beyond=beyond, now_s=now_s)
        self._taken_s.append(now_s)
        self._beyond.append(float(beyond))
        if was_new and not self.is_new:  # what ended is not raised anew by the same runs
            self._taken_s.clear()
            self._beyond.clear()
        elif not self.is_new and sum(self._beyond) >= OFTEN:
            self._run.since_s = self._taken_s[self._beyond.index(1.0)]
            return True
        return began

    def learn_anew(self, why: str, now_s: float) -> None:
        """What ran until now is of another model, for a reason that ends a sentence. A level that is known stays: what differs from
        it then is an alarm."""
        if self.learnt:
            self._forget(len(self.learnt), why, now_s)

    def _forget(self, count: int, why: str, now_s: float) -> None:
        self.learnt = self.learnt[count:]
        self.anew, self.anew_s = why, now_s

    def _learn(self, logprob: float, now_s: float) -> None:
        self.learnt.append(logprob)
        at = step_in(self.learnt, self.floor)
        if at is not None:
            before, after = median(self.learnt[:at]), median(self.learnt[at:])
            self._forget(at, f"its runs went from {before:.5g} to {after:.5g}", now_s)
        if len(self.learnt) < LEARNT or (len(self.learnt) < _MOST_LEARNT and may_step(self.learnt, self.floor)):
            return
        level = median(self.learnt)
        limit = max(self.floor, MARGIN * max(abs(each - level) for each in self.learnt))
        self.is_noisy = limit > WIDEST_NATS
        if not self.is_noisy:
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
            "is_noisy": self.is_noisy,
            "anew": self.anew,
            "anew_s": self.anew_s,
            "taken_s": list(self._taken_s),
            "beyond": list(self._beyond),
            "run": self._run.dump(),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> CanaryWatch:
        """Raises ValueError for what `dump` did not give."""
        watch = cls(number(state, "begun_s"), number(state, "floor"))
        watch.learnt = numbers(state, "learnt", _MOST_LEARNT)
        watch.runs, watch.seen_s = integer(state, "runs"), number(state, "seen_s")
        watch.level, watch.limit = number_or_none(state, "level"), number_or_none(state, "limit")
        watch._run = Run.restored(mapping(state, "run"), CONSECUTIVE_RUNS)
        watch.is_noisy = state.get("is_noisy") is True
        if "anew" in state:  # not so in what earlier versions kept
            watch.anew, watch.anew_s = str(state["anew"]), number_or_none(state, "anew_s")
        if "beyond" in state:
            recent = list(zip(numbers(state, "taken_s", OF_RUNS), numbers(state, "beyond", OF_RUNS), strict=True))
            watch._taken_s.extend(time_s for time_s, _ in recent)
            watch._beyond.extend(float(bool(beyond)) for _, beyond in recent)
        return watch
