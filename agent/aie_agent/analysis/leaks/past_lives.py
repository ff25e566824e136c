"""Rises that restarts ended, live: an engine that leaks, is killed each night for it, and rises again from where it began.

Each life by itself is a suspicion at most, and its restart clears it. The last lives are kept, through restarts of the agent too.
Where the newest of them are alike, that is a suspicion until a life goes by without a rise; a cache without a limit looks the same,
so it is no leak. What is no suspicion when it is restarted is no such life, so this is wrong no more often
than suspicions are that stand at a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from aie_agent.analysis.leaks.lines import LINES, LeakClass, LineSpec
from aie_agent.analysis.leaks.lives import SAME_LEVEL, SAME_SLOPE
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.standing import Standing
from aie_agent.analysis.leaks.watch import Found, Watch

_MOST: Final = 8
_LEAST_DAYS: Final = 1 / 3
"""A life is one from eight hours on, as in recordings: what crashes more often is another matter."""
_TOLD_DAYS: Final = 13 / 24
"""A life of so long after its warm-up would be suspect by now if it rose as those before."""
_SPECS: Final = {spec.name: spec for spec in LINES}


class PastLife(NamedTuple):
    """What rose when a restart ended it: which line, as what class, how."""

    line: LineSpec
    leak_class: LeakClass
    standing: Standing

    @property
    def risen_bytes(self) -> float:
        """From its floor at the beginning to the highest since."""
        return self.standing.peak.size_bytes - self.standing.base.size_bytes

    def is_like(self, other: PastLife) -> bool:
        """Whether it rose from the same level, as fast, in the same line."""
        apart = abs(self.standing.base.size_bytes - other.standing.base.size_bytes)
        slow, fast = sorted((self.standing.slope.value, other.standing.slope.value))
        return self.line is other.line and apart <= SAME_LEVEL * self.risen_bytes and fast <= SAME_SLOPE * slow

    @property
    def found(self) -> Found:
        """As a suspicion: that is what it is while the life that runs has not told yet."""
        return Found(self.line, self.leak_class, self.standing._replace(level="suspect"))


class PastLives:
    """The lives of an engine on a device. Call `ended` before its `Watch` is restarted, and `pass_by` now and then."""

    def __init__(self, settings: LeakSettings, lives: Sequence[PastLife] = ()) -> None:
        self._day_s = settings.day_s
        self._lives = list(lives)

    def ended(self, watch: Watch, now_s: float) -> None:
        """Its life ends: is it one that rose? One of less than eight hours says nothing."""
        if watch.begin_s is None or now_s - watch.begin_s < _LEAST_DAYS * self._day_s:
            return
        found = watch.found()
        if found:
            worst = found[0]
            self._lives = [*self._lives[1 - _MOST :], PastLife(worst.line, worst.leak_class, worst.standing)]
        elif watch.warm_s is not None:
            self._lives = []

    def pass_by(self, watch: Watch, now_s: float) -> None:
        """Forgets them where the life that runs does not rise for as long as would tell."""
        if self._lives and watch.warm_s is not None and now_s - watch.warm_s >= _TOLD_DAYS * self._day_s and not watch.found():
            self._lives = []

    @property
    def alike(self) -> tuple[PastLife, ...]:
        """The newest lives that rose alike, the newest last; empty for fewer than two."""
        count = 0
        while count < len(self._lives) and self._lives[-1].is_like(self._lives[-1 - count]):
            count += 1
        return tuple(self._lives[-count:]) if count > 1 else ()

    def dump(self) -> list[Any]:
        """As plain values."""
        return [[each.line.name, each.leak_class, each.standing.dump()] for each in self._lives]

    @classmethod
    def restored(cls, values: Sequence[Any], settings: LeakSettings) -> PastLives:
        """What `dump` gave. Raises ValueError, TypeError or KeyError for anything else."""
        return cls(settings, [_life(*each) for each in values][-_MOST:])


def restored_lives(state: Mapping[str, Any], settings: LeakSettings) -> dict[str, PastLives]:
    """Of each device. Raises as `PastLives.restored` does, and AttributeError."""
    return {str(device): PastLives.restored(each, settings) for device, each in state.items()}


def _life(line: str, leak_class: str, standing: Sequence[Any]) -> PastLife:
    known: dict[str, LeakClass] = {each: each for each in get_args(LeakClass)}
    return PastLife(_SPECS[line], known[leak_class], Standing.restored(standing))
