"""Whether a model gives NaN. It needs no reference: one is one too many.

False alarms: none by chance. What drops numbers as invalid is counted for all hooks of an engine together, so that it counts only
where the engine told entropies before, ten answers in a row have none, and as many numbers were dropped while those answers came:
what is dropped at other times is of something else. An entropy that comes and that no float32 holds is none either, and of nothing
else: ten of the last hundred are enough, whatever else came. A model that gives NaN from the first answer on that is seen of it is
told by a watched layer alone (and by the engine, which looks for NaN in the weights that it loads).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

ANSWERS_WITHOUT_NUMBERS: Final = 10
"""Answers in a row of which the length came and no entropy, while hooks dropped as many numbers as invalid, or as many came that
are none."""

LAST_ENTROPIES: Final = 100
"""Of so many that came, ten that no float32 holds are too many; of more, where more came at once, a tenth."""

NONFINITE_SHOWN_S: Final = 60.0
"""For so long after the last sign of it."""

_NEAR_S: Final = 10.0
"""What is dropped so long after an answer, or before, may be of that answer: counts of pages come seconds late."""


class HookCounts(NamedTuple):
    """Of an engine's hooks, since it started, as the store has them: numbers dropped because they were none, and values of watched
    layers that were none. None where there is no such counter."""

    invalid: float | None = None
    nonfinite: float | None = None


class NanAnswers(NamedTuple):
    """What told that a model gives NaN: `answers` in a row without an entropy (none: it was not that), with the last ones of which
    hooks `dropped` numbers and `too_large` entropies came; or so many of the last `entropies`. `last_ones` are ten or few more."""

    answers: int
    last_ones: int
    dropped: float
    too_large: int
    entropies: int


class _Moment(NamedTuple):
    """Answers without an entropy that came with one look, the numbers that were dropped near them, and the entropies that came and
    are none."""

    time_s: float
    answers: int
    dropped: float
    too_large: int


class _Window:
    """The last answers without an entropy in a row."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque()
        self._before: deque[tuple[float, float, int]] = deque()  # dropped and too large when no answer was near, so far

    def add(self, answers: int, dropped: float, too_large: int, now_s: float) -> None:
        """Takes in what came; what was dropped far from any answer is of something else."""
        while self._before and now_s - self._before[0][0] > _NEAR_S:
            self._before.popleft()
        if answers:
            before = [(count, large) for _, count, large in self._before]
            self._moments.append(
                _Moment(now_s, answers, dropped + sum(each for each, _ in before), too_large + sum(each for _, each in before))
            )
            self._before.clear()
        elif (dropped or too_large) and self._moments and now_s - self._moments[-1].time_s <= _NEAR_S:
            last = self._moments[-1]
            self._moments[-1] = last._replace(dropped=last.dropped + dropped, too_large=last.too_large + too_large)
        elif dropped or too_large:
            self._before.append((now_s, dropped, too_large))
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

    @property
    def too_large(self) -> int:
        """That came with them."""
        return sum(moment.too_large for moment in self._moments)


class _Arrived(NamedTuple):
    """Entropies that came with one look, and how many of them no float32 holds."""

    time_s: float
    entropies: int
    too_large: int


class _Entropies:
    """The last hundred that came, or a few more that came together."""

    def __init__(self) -> None:
        self._looks: deque[_Arrived] = deque()
        self.count = 0
        self.too_large = 0

    def add(self, entropies: int, too_large: int, now_s: float) -> None:
        """Takes in what came; `too_large` of the `entropies`."""
        if not entropies:
            return
        self._looks.append(_Arrived(now_s, entropies, too_large))
        self.count, self.too_large = self.count + entropies, self.too_large + too_large
        while self.count - self._looks[0].entropies >= LAST_ENTROPIES:
            first = self._looks.popleft()
            self.count, self.too_large = self.count - first.entropies, self.too_large - first.too_large

    @property
    def are_nan(self) -> bool:
        """Whether too many of them are none."""
        return self.too_large >= ANSWERS_WITHOUT_NUMBERS * max(1.0, self.count / LAST_ENTROPIES)

    @property
    def since_s(self) -> float:
        """When the first of those that are none came; only where there are some."""
        return next(look.time_s for look in self._looks if look.too_large)


class NanSigns:
    """Whether the model gives NaN. Hooks cannot send one: they drop it and count it, and send the answer's length all the same."""

    def __init__(self, had_entropies: bool = False) -> None:
        """`had_entropies`: whether the engine told some before, when nothing was kept of it."""
        self.since_s: float | None = None
        self.answers: NanAnswers | None = None
        self.in_layers = 0.0
        self._had_entropies = had_entropies
        self._in_a_row = 0
        self._first_s = 0.0  # of those
        self._window = _Window()
        self._entropies = _Entropies()
        self._invalid: float | None = None
        self._last_s = 0.0
        self._nonfinite: float | None = None

    def observe(self, lengths: int, entropies: int, too_large: int, counts: HookCounts, now_s: float) -> None:
        """So many of each came since the last time; `too_large` are entropies that no float32 holds, beside those that are some."""
        told = self._of_answers(lengths, entropies, too_large, counts.invalid, now_s)
        since_s = None if told is None else self._first_s if told.answers else self._entropies.since_s
        before, self._nonfinite = self._nonfinite, counts.nonfinite
        more = (counts.nonfinite or 0.0) - (before or 0.0) if before is not None else 0.0
        if more > 0:
            self.in_layers, since_s = self.in_layers + more, now_s if since_s is None else since_s
        self.answers = told or self.answers
        if since_s is not None:
            self._last_s = now_s
            self.since_s = since_s if self.since_s is None else self.since_s
        elif self.since_s is not None and now_s - self._last_s > NONFINITE_SHOWN_S:
            self.since_s, self.answers, self.in_layers = None, None, 0.0

    def _of_answers(self, lengths: int, entropies: int, too_large: int, invalid: float | None, now_s: float) -> NanAnswers | None:
        """What tells with this look that the model gives NaN; None where nothing does."""
        dropped = max(0.0, (invalid or 0.0) - (self._invalid or 0.0))
        self._invalid = self._invalid if invalid is None else invalid
        self._had_entropies = self._had_entropies or entropies > 0 or too_large > 0
        self._entropies.add(entropies + too_large, too_large, now_s)
        if entropies:
            self._in_a_row = 0
            self._window.clear()
        elif self._had_entropies:
            self._first_s = now_s if lengths and not self._in_a_row else self._first_s
            self._in_a_row += lengths
            self._window.add(lengths, dropped, too_large, now_s)
        window, came = self._window, self._entropies
        if lengths and window.answers >= ANSWERS_WITHOUT_NUMBERS and window.dropped + window.too_large >= window.answers:
            return NanAnswers(self._in_a_row, window.answers, window.dropped, window.too_large, 0)
        return NanAnswers(0, 0, 0.0, came.too_large, came.count) if too_large and came.are_nan else None
