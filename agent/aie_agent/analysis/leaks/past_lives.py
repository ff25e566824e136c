"""Rises that restarts ended, live: an engine that leaks, is killed each night for it, and rises again from where it began.

Each life by itself is a suspicion at most, and its restart clears it. The last lives are kept, through restarts of the agent too.
Where the newest of them are alike, that is a suspicion until a life goes on for as long as they took to be told, with load as they
had it, and does not rise; until one of eight hours of such load ends without a rise; and for two days without one at most. A cache
without a limit looks the same, so it is no leak. What is no suspicion when it is restarted is no such life, so this is wrong no
more often than suspicions are that stand at a restart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from aie_agent.analysis.leaks.block_floors import NO_ADJUST, Adjust, Bin
from aie_agent.analysis.leaks.lines import LINES, LeakClass, LineSpec
from aie_agent.analysis.leaks.lives import SAME_LEVEL, SAME_SLOPE
from aie_agent.analysis.leaks.settings import SUSPECT, LeakSettings
from aie_agent.analysis.leaks.standing import Standing, is_idle
from aie_agent.analysis.leaks.watch import Found, Watch

_MOST: Final = 8
_LEAST_DAYS: Final = 1 / 3
"""A life is one from eight hours on, as in recordings: what crashes more often is another matter."""
_LEAST_BINS: Final = 16
"""The same in half hours with load, for a life that ended without a rise."""
_TOLD_BINS: Final = 26
"""Half hours with load after the warm-up before which none is forgotten: half a day, which a suspicion takes, and an hour more."""
_STANDS_DAYS: Final = 2.0
"""For so long after a rise lives are told without another: over a day without load, and the next until it rises."""
_LATER_BINS: Final = SUSPECT.bins
"""Noise may make a life tell later by a floor than those before did."""
_OLDER: Final[Sequence[Any]] = (0, NO_ADJUST)
"""What the states of older agents do not have of a line of a life."""
_SPECS: Final = {spec.name: spec for spec in LINES}


class PastLife(NamedTuple):
    """A line that rose when a restart ended it: which, as what class, how; and in how many half hours with load after its warm-up
    that was told (0: not known). `by` is what was known in it to go with load and caches: nothing where its load was steady."""

    line: LineSpec
    leak_class: LeakClass
    standing: Standing
    told_bins: int = 0
    by: Adjust = NO_ADJUST

    @property
    def risen_bytes(self) -> float:
        """From its floor at the beginning to the highest since, without what goes with load and caches."""
        return self._risen(self.by)

    def _risen(self, by: Adjust) -> float:
        return self.standing.peak.adjusted(by) - self.standing.base.adjusted(by)

    def is_like(self, other: PastLife) -> bool:
        """Whether it rose from the same level, as fast, in the same line."""
        slow, fast = sorted((self.standing.slope.value, other.standing.slope.value))
        is_near = self._is_near(other, self.by) or self._is_near(other, other.by)
        return self.line is other.line and is_near and fast <= SAME_SLOPE * slow

    def _is_near(self, other: PastLife, by: Adjust) -> bool:
        """Both by what one of them knew: a level with, and one without what goes with load say nothing of each other."""
        apart = abs(self.standing.base.adjusted(by) - other.standing.base.adjusted(by))
        return apart <= SAME_LEVEL * self._risen(by)

    @property
    def found(self) -> Found:
        """As a suspicion: that is what it is while the life that runs has not told yet."""
        return Found(self.line, self.leak_class, self.standing._replace(level="suspect"))

    def dump(self) -> list[Any]:
        """As plain values."""
        return [self.line.name, self.leak_class, self.standing.dump(), self.told_bins, list(self.by)]

    @classmethod
    def restored(cls, values: Sequence[Any]) -> PastLife:
        """What `dump` gave, or an older agent's. Raises ValueError, TypeError or KeyError for anything else."""
        line, leak_class, standing, told_bins, by = *values, *_OLDER[len(values) - 3 :]
        known: dict[str, LeakClass] = {each: each for each in get_args(LeakClass)}
        return cls(_SPECS[line], known[leak_class], Standing.restored(standing), _count(told_bins), Adjust(*map(float, by)))


Life = Sequence[PastLife]
"""All lines that rose when it ended, the gravest first."""


class PastLives:
    """The lives of an engine on a device. Call `pass_by` with each sample, and `ended` before its `Watch` is restarted. Of the life
    that runs, since its warm-up ended at `warm_s`, it knows in how many half hours with load each line that rises was `told`,
    and of any when it rose last, at `rose_s` (None: an older agent did not note it)."""

    def __init__(
        self,
        settings: LeakSettings,
        lives: Sequence[Life] = (),
        warm_s: float | None = None,
        told: Mapping[str, int] | None = None,
        rose_s: float | None = None,
    ) -> None:
        self._day_s = settings.day_s
        self._lives = list(lives)
        self._warm_s = warm_s
        self._told = dict(told or {})
        self._rose_s = rose_s
        self._passed_bins = 0
        self._passed_s = -math.inf

    def ended(self, watch: Watch, now_s: float) -> None:
        """Its life ends: is it one that rose? One of less than eight hours says nothing. One that did not rise, and ended before it
        could tell, leaves the newest of those that did: they are not each of its lives any more."""
        self.pass_by(watch, now_s)  # the agent may have been restarted with the engine
        if _seen_s(watch) < _LEAST_DAYS * self._day_s:
            return
        rose = [self._as_past(each, watch) for each in watch.found()]
        if rose:
            self._lives = [*self._lives[1 - _MOST :], rose]
        elif self._passed_bins >= _LEAST_BINS:
            self._lives = self._lives[-1:] if len(self._lives) > 1 else []

    def _as_past(self, found: Found, watch: Watch) -> PastLife:
        name = found.line.name
        return PastLife(found.line, found.leak_class, found.standing, self._told.get(name, 0), watch.lines[name].adjust)

    def pass_by(self, watch: Watch, now_s: float) -> None:
        """Notes when the life that runs tells, and forgets those before it where it does not for as long as would tell. After two
        days without a rise, in which load was too low or lives too short for that, it leaves the newest."""
        if watch.warm_s != self._warm_s:
            self._warm_s, self._told, self._passed_bins, self._passed_s = watch.warm_s, {}, 0, -math.inf
        found = {each.line.name: each.standing for each in watch.found()}
        self._told = {
            name: self._told[name] if name in self._told else _loaded(watch.lines[name].bins, standing)
            for name, standing in found.items()
        }
        if self._lives:
            self._count_passed(watch)
        if not found and self._passed_bins >= self._enough_bins:
            self._lives = []
        if found or self._rose_s is None:
            self._rose_s = now_s
        elif now_s - self._rose_s > _STANDS_DAYS * self._day_s:
            self._lives = self._lives[-1:]

    def _count_passed(self, watch: Watch) -> None:
        """Half hours that were seen and had load as the lives before; those of any line where nobody tells theirs any more."""
        last = self._run[-1]
        line = watch.lines.get(last.line.name) or next(iter(watch.lines.values()), None)
        if line is not None and line.bins:
            self._passed_bins += _loaded([each for each in line.bins if line.time_s(each.number) > self._passed_s], last.standing)
            self._passed_s = line.time_s(line.bins[-1].number)

    @property
    def _enough_bins(self) -> int:
        """Half hours with load in which a life that rises as those before would tell."""
        return max(_TOLD_BINS, _LATER_BINS + max((each.told_bins for each in self._run), default=0))

    @property
    def _run(self) -> Sequence[PastLife]:
        """The newest lives that rose alike in some line, the newest last: in that which most of them have, or the gravest of such.
        Which of two lines that hold the same memory rises faster is chance."""
        if not self._lives:
            return ()
        *before, newest = self._lives
        return max((_like(each, before) for each in newest), key=len)

    @property
    def alike(self) -> Sequence[PastLife]:
        """The newest lives that rose alike, the newest last; empty for fewer than two."""
        return self._run if len(self._run) > 1 else ()

    def dump(self) -> dict[str, Any]:
        """As plain values."""
        lives = [[each.dump() for each in life] for life in self._lives]
        return {"lives": lives, "warm_s": self._warm_s, "told": self._told, "rose_s": self._rose_s}

    @classmethod
    def restored(cls, values: object, settings: LeakSettings) -> PastLives:
        """What `dump` gave, or a state in which a life was one line. Raises ValueError, TypeError or KeyError for anything else."""
        if isinstance(values, list):
            return cls(settings, [[PastLife.restored(each)] for each in values][-_MOST:])
        if not isinstance(values, dict):
            raise TypeError(f"no lives of an engine: {values!r}")
        lives = [[PastLife.restored(each) for each in life] for life in values["lives"]]
        if not all(lives):
            raise ValueError("a life in which nothing rose")
        warm_s, rose_s = (None if each is None else float(each) for each in (values["warm_s"], values.get("rose_s")))
        told = {_SPECS[name].name: _count(count) for name, count in dict(values["told"]).items()}
        return cls(settings, lives[-_MOST:], warm_s, told, rose_s)


def restored_lives(state: Mapping[str, Any], settings: LeakSettings) -> dict[str, PastLives]:
    """Of each device. Raises as `PastLives.restored` does, and AttributeError."""
    return {str(device): PastLives.restored(each, settings) for device, each in state.items()}


def _like(newest: PastLife, before: Sequence[Life]) -> list[PastLife]:
    """It and the lives before it that rose as it did, without a gap."""
    found = [newest]
    for life in reversed(before):
        like = next((each for each in life if newest.is_like(each)), None)
        if like is None:
            break
        found.append(like)
    return found[::-1]


def _seen_s(watch: Watch) -> float:
    """From the beginning of its life to the end of the newest half hour: after that the engine was down, or nobody looked."""
    ends_s = [line.time_s(line.bins[-1].number + 1) for line in watch.lines.values() if line.bins]
    return 0.0 if watch.begin_s is None or not ends_s else max(ends_s) - watch.begin_s


def _loaded(bins: Sequence[Bin], standing: Standing) -> int:
    """How many had load as there was while it rose."""
    return sum(not is_idle(each, standing) for each in bins)


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"no number of half hours: {value!r}")
    return value
