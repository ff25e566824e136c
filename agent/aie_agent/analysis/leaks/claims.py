"""That memory was given back when it was asked for is a claim until floors confirm it. An engine that works holds now more, now
less: two readings that lie 0.3 s apart differ by what its requests hold, and say nothing of what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aie_agent.analysis.leaks.block_floors import Adjust, Low
from aie_agent.analysis.leaks.standing import Standing, is_back

CELLS: Final = 2
"""So many cells after the answer must have a floor that is lower by half of the rise."""


class Claim(NamedTuple):
    """What an engine says that it gave back of a line, at `time_s`, and what the line was held to be then; `lower` of the cells
    seen since have a floor that agrees, and `is_refuted` once one does not."""

    time_s: float
    given_bytes: float
    standing: Standing
    lower: int = 0
    is_refuted: bool = False

    @property
    def is_open(self) -> bool:
        """Whether floors are still to come."""
        return not self.is_refuted and not self.holds

    @property
    def holds(self) -> bool:
        """Whether the floors have confirmed it."""
        return not self.is_refuted and self.lower >= CELLS

    def after(self, low: Low, by: Adjust) -> Claim:
        """With the floor of one more cell."""
        return self._replace(lower=self.lower + 1) if is_back(self.standing, low, by) else self._replace(is_refuted=True)

    def dump(self) -> list[Any]:
        """As plain values."""
        return [self.time_s, self.given_bytes, self.standing.dump(), self.lower, self.is_refuted]

    @classmethod
    def restored(cls, values: Sequence[Any]) -> Claim:
        """What `dump` gave. Raises ValueError or TypeError for anything else."""
        time_s, given_bytes, standing, lower, is_refuted = values
        return cls(float(time_s), float(given_bytes), Standing.restored(standing), int(lower), bool(is_refuted))
