"""`output_stability`: how much the last thousand values scatter, beside the reference. A model that answers everything alike
scatters less, one that came apart scatters more."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from aie_agent.analysis.drift.saved import integer, number

BLOCKS: Final = 10
"""Windows of which the scatter is taken: a thousand values."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean, and sum of squared deviations of some values."""

    count: int
    mean: float
    squares: float

    @property
    def deviation(self) -> float:
        """Standard deviation, of the population."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def moments(values: Sequence[float]) -> Moments:
    """Of finite values; two passes, so that a large mean takes nothing from a small scatter."""
    if not values:
        return Moments(0, 0.0, 0.0)
    mean = math.fsum(values) / len(values)
    return Moments(len(values), mean, math.fsum((value - mean) ** 2 for value in values))


def merged(parts: Sequence[Moments]) -> Moments:
    """Of all values together (Chan, Golub and LeVeque 1979)."""
    count = sum(part.count for part in parts)
    if not count:
        return Moments(0, 0.0, 0.0)
    mean = math.fsum(part.count * part.mean for part in parts) / count
    return Moments(count, mean, math.fsum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts))


class Stability:
    """The scatter of the last `BLOCKS` windows, kept as three numbers each."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: deque[Moments] = deque(maxlen=BLOCKS)

    def window(self, values: Sequence[float]) -> None:
        """Takes one window of finite values in."""
        self._blocks.append(moments(values))

    @property
    def deviation(self) -> float | None:
        """None until there are as many windows as it takes."""
        return merged(self._blocks).deviation if len(self._blocks) == BLOCKS else None

    def dump(self) -> list[dict[str, Any]]:
        """For `restored`."""
        return [asdict(block) for block in self._blocks]

    @classmethod
    def restored(cls, state: object) -> Stability:
        """Raises ValueError for what `dump` did not give."""
        if not isinstance(state, list) or len(state) > BLOCKS:
            raise ValueError("stability: no list of blocks")
        stability = cls()
        for block in state:
            if not isinstance(block, Mapping):
                raise ValueError("stability: no block")
            stability._blocks.append(Moments(integer(block, "count"), number(block, "mean"), abs(number(block, "squares"))))
        return stability
