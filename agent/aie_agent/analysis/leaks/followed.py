"""All that is followed of a recording, row by row: its lines, its caches, and its lines as all events cut them, or none does."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from copy import deepcopy
from typing import Final

from aie_agent.analysis.leaks.block_floors import NO_ADJUST
from aie_agent.analysis.leaks.events import comes_on_top, may_end_a_life, restarts_warm_up
from aie_agent.analysis.leaks.lines import ACCOUNTING, CACHES, LINES, CacheUse, Sample
from aie_agent.analysis.leaks.lives import Bursts, Repeats
from aie_agent.analysis.leaks.new_life import NewLife
from aie_agent.analysis.leaks.over_days import Whole
from aie_agent.analysis.leaks.settings import RECORDED_BINS, LeakSettings
from aie_agent.analysis.leaks.watch import Watch

NO_ENGINE_BYTES: Final = 64e6
"""Less than any engine holds, and what one of tens of GB holds in KiB."""


class Followed:
    """`watch` begins anew where sizes tell of a restart, or memory falls with an event that may be one; an event that is only named
    is none to it, so that it makes nothing forgotten. `fresh` begins a warm-up anew with each of those events, and `through` with
    none, and at no fall: they go beside from the first of them on, and are None before."""

    def __init__(self, settings: LeakSettings) -> None:
        specs = (*(line for line in LINES if line.tells), ACCOUNTING)  # no column tells of the others
        self.watch = Watch(settings, specs, RECORDED_BINS)
        self.fresh: Watch | None = None
        self.through: Watch | None = None
        self.caches = Watch(settings, (CACHES,))
        self.cache_use = CacheUse()
        self.repeats = Repeats(settings)
        self._events_s = array("d")
        self._new_life = NewLife(settings)
        self._anew_s = math.nan  # when the last event was that begins all anew
        self._sample_s = settings.sample_s
        self._next_s = -math.inf

    @property
    def cut(self) -> Watch:
        """What each event and fall begins anew: `fresh` where there are events, else all that there is."""
        return self.watch if self.fresh is None else self.fresh

    @property
    def whole(self) -> Whole:
        """Physical memory over the whole recording."""
        physical = self.watch.lines.get("physical")
        return Whole(self.repeats.bins, NO_ADJUST if physical is None else physical.adjust)

    @property
    def bursts(self) -> Bursts | None:
        """Rises of hours that fell back at once."""
        return self.repeats.bursts(self.whole.by)

    @property
    def is_judged(self) -> bool:
        """Whether nothing found means that nothing rises: not where something rises over events, and each stretch is too short."""
        return self.watch.judged and (self.cut.judged or not (self.watch.found() or self.watch.past))

    @property
    def is_tiny(self) -> bool:
        """Whether all of its memory is less than an engine has: bytes would say another thing."""
        bins = self.repeats.bins
        return bool(bins) and max(each.low.size_bytes for each in bins) < NO_ENGINE_BYTES

    def events_since(self, time_s: float) -> int:
        """How many events were named since then that begin a warm-up anew."""
        return len(self._events_s) - bisect_left(self._events_s, time_s)

    def take(self, samples: Iterable[Sample]) -> None:
        """Takes all samples, times ascending; of those within `sample_s` and without an event one, as `Watch` does, so that what
        that leaves out is nowhere taken: nor the size in a row between with an event that it is not told of."""
        for sample in samples:
            is_named = bool(sample.event) and restarts_warm_up(sample.event)
            if sample.time_s >= self._next_s or (sample.event and not is_named):
                self._next_s = sample.time_s + self._sample_s
                self._add(sample)
            elif is_named:
                self._add(sample._replace(physical_bytes=None))
        for watch in filter(None, (self.watch, self.fresh, self.through, self.caches)):
            watch.close()

    def _add(self, sample: Sample) -> None:
        watch, plain = self.watch, sample
        if sample.event and restarts_warm_up(sample.event):
            self._events_s.append(sample.time_s)
            plain = sample._replace(event="")
            self.fresh = self.fresh or deepcopy(watch)
            if not comes_on_top(sample.event):
                self._anew_s = sample.time_s
                self._new_life.named(sample.time_s)
        elif sample.event and may_end_a_life(sample.event):
            self._new_life.named(sample.time_s)
        is_warm = watch.warm_s is not None
        size = sample.physical_bytes or None  # a process that lives has memory: 0 is a reading that failed
        is_size = size is not None and not watch.may_have_failed(size)
        began = size is not None and is_size and self._new_life.began(sample.time_s, size, is_warm=is_warm)
        if began:
            self._begin_anew()
        if self.through is not None:
            self.through.add(plain)
        watch.add(plain)
        if self.fresh is not None:
            self.fresh.add(sample)
        if watch.is_low:
            self._begin_through()
        else:
            self.repeats.add(sample, watch.restarts)
            if size is not None and is_warm and not began:
                self._new_life.take(sample.time_s, size)
        if sample.cache_bytes is not None:
            self.caches.add(plain)
            self.cache_use.add(sample)

    def _begin_anew(self) -> None:
        """Memory has fallen with an event. Where that has begun `fresh` anew already, it is the same restart."""
        self._begin_through()
        fresh = self.fresh
        is_same = fresh is not None and fresh.warm_s is None and fresh.begin_s == self._anew_s
        for each in filter(None, (self.watch, self.caches, fresh)):
            each.restart()
        if fresh is not None and is_same:
            fresh.restarts -= 1

    def _begin_through(self) -> None:
        if self.through is None:
            self.through = deepcopy(self.watch)
            self.through.restarts_told = True
