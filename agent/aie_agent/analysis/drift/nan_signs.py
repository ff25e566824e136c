"""Whether a model gives NaN. It needs no reference: one is one too many.

False alarms: none by chance. What drops numbers as invalid is counted for all hooks of an engine together, so that it counts only
where the engine told entropies before, ten answers in a row have none, and as many numbers were dropped while those answers came:
what is dropped at other times is of something else. An entropy that comes and that no float32 holds is none either, and of nothing
else. A model that gives NaN from the first answer on that is seen of it is told by
a watched layer alone (and by the engine, which looks for NaN in the weights that it loads).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

ANSWERS_WITHOUT_NUMBERS: Final = 10
"""Answers in a row of which the length came and no entropy, while hooks dropped as many numbers as invalid, or as many came that
are none."""

NONFINITE_SHOWN_S: Final = 60.0
"""For so long after the last sign of it."""

_NEAR_S: Final = 10.0
"""What is dropped so long after an answer, or before, may be of that answer: counts of pages come seconds late."""


class HookCounts(NamedTuple):
    """Of an engine's hooks, since it started, as the store has them: numbers dropped because they were none, and values of watched
    layers that were none. None where there is no such counter."""

    invalid: float | None = None
    nonfinite: float | None = None


class _Moment(NamedTuple):
    """Answers without an entropy that came with one look, and the numbers that were dropped near them."""

    time_s: float
    answers: int
    dropped: float


class _Window:
    """The last answers without an entropy in a row."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque()
        self._before: deque[tuple[float, float]] = deque()  # dropped when no answer was near, so far

    def add(self, answers: int, dropped: float, now_s: float) -> None:
        """Takes in what came; what was dropped far from any answer is of something else."""
        while self._before and now_s - self._before[0][0] > _NEAR_S:
            self._before.popleft()
        if answers:
            self._moments.append(_Moment(now_s, answers, dropped + sum(count for _, count in self._before)))
            self._before.clear()
        elif dropped and self._moments and now_s - self._moments[-1].time_s <= _NEAR_S:
            last = self._moments[-1]
            self._moments[-1] = last._replace(dropped=last.dropped + dropped)
        elif dropped:
            self._before.append((now_s, dropped))
        while self._moments and self.answers - self._moments[0].answers >= ANSWERS_WITHOUT_NUMBERS:
            self._moments.popleft()

    def clear(self) -> None:
        """An answer has an entropy."""
        self._moments.clear()
        self._before.clear()

    @property
    def answers(self) -> int:
        """Ten, or a few more that came together."""
        return sum(moment.answers for moment in self._moments)

    @property
    def dropped(self) -> float:
        """Near those answers."""
        return sum(moment.dropped for moment in self._moments)


class NanSigns:
    """Whether the model gives NaN. Hooks cannot send one: they drop it and count it, and send the answer's length all the same."""

    def __init__(self, had_entropies: bool = False) -> None:
        """`had_entropies`: whether the engine told some before, when nothing was kept of it."""
        self.without = 0
        self.too_large = 0
        self.since_s: float | None = None
        self.dropped = 0.0
        self.in_layers = 0.0
        self._had_entropies = had_entropies
        self._window = _Window()
        self._invalid: float | None = None
        self._first_s = 0.0
        self._last_s = 0.0
        self._nonfinite: float | None = None

    def observe(self, lengths: int, entropies: int, too_large: int, counts: HookCounts, now_s: float) -> None:
        """So many of each came since the last time; `too_large` are entropies that no float32 holds, beside those that are some."""
        dropped = max(0.0, (counts.invalid or 0.0) - (self._invalid or 0.0))
        self._invalid = self._invalid if counts.invalid is None else counts.invalid
        self._had_entropies = self._had_entropies or entropies > 0 or too_large > 0
        if entropies:
            self.without = self.too_large = 0
            self._window.clear()
        elif self._had_entropies:
            self._first_s = now_s if lengths and not self.without else self._first_s
            self.without += lengths
            self.too_large += too_large
            self._window.add(lengths, dropped + too_large, now_s)
        self.dropped = self._window.dropped
        answers = self._window.answers
        is_nan = answers >= ANSWERS_WITHOUT_NUMBERS and self.dropped >= answers and lengths > 0
        before, self._nonfinite = self._nonfinite, counts.nonfinite
        more = (counts.nonfinite or 0.0) - (before or 0.0) if before is not None else 0.0
        if more > 0:
            self.in_layers, self._first_s = self.in_layers + more, now_s if self.since_s is None else self._first_s
        if is_nan or more > 0:
            self._last_s = now_s
            self.since_s = self._first_s if self.since_s is None else self.since_s
        elif self.since_s is not None and now_s - self._last_s > NONFINITE_SHOWN_S:
            self.since_s, self.in_layers = None, 0.0
