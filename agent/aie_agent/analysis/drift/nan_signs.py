"""Whether a model gives NaN. It needs no reference: one is one too many.

False alarms: none by chance. What drops numbers as invalid is counted for all hooks of an engine together, so that it counts only
where the entropies of ten answers in a row are missing too, and as many numbers were dropped meanwhile.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ANSWERS_WITHOUT_NUMBERS: Final = 10
"""Answers in a row of which the length came and no entropy, while hooks dropped as many numbers as invalid."""

NONFINITE_SHOWN_S: Final = 60.0
"""For so long after the last sign of it."""


class HookCounts(NamedTuple):
    """Of an engine's hooks, since it started, as the store has them: numbers dropped because they were none, and values of watched
    layers that were none. None where there is no such counter."""

    invalid: float | None = None
    nonfinite: float | None = None


class NanSigns:
    """Whether the model gives NaN. Hooks cannot send one: they drop it and count it, and send the answer's length all the same."""

    def __init__(self) -> None:
        self.without = 0
        self.since_s: float | None = None
        self.dropped = 0.0
        self.in_layers = 0.0
        self._invalid_before: float | None = None
        self._first_s = 0.0
        self._last_s = 0.0
        self._nonfinite: float | None = None

    def observe(self, lengths: int, entropies: int, counts: HookCounts, now_s: float) -> None:
        """So many of each came since the last time."""
        if entropies or self._invalid_before is None:
            self.without, self._invalid_before = 0, counts.invalid or 0.0
        elif lengths:
            self._first_s = now_s if not self.without else self._first_s
            self.without += lengths
        self.dropped = max(0.0, (counts.invalid or 0.0) - self._invalid_before)
        is_nan = self.without >= ANSWERS_WITHOUT_NUMBERS and self.dropped >= ANSWERS_WITHOUT_NUMBERS and lengths > 0
        before, self._nonfinite = self._nonfinite, counts.nonfinite
        more = (counts.nonfinite or 0.0) - (before or 0.0) if before is not None else 0.0
        if more > 0:
            self.in_layers, self._first_s = self.in_layers + more, now_s if self.since_s is None else self._first_s
        if is_nan or more > 0:
            self._last_s = now_s
            self.since_s = self._first_s if self.since_s is None else self.since_s
        elif self.since_s is not None and now_s - self._last_s > NONFINITE_SHOWN_S:
            self.since_s, self.in_layers = None, 0.0
