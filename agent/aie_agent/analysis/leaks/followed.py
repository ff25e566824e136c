"""All that is followed of a recording, row by row: its lines, its caches, and its lines over all that begins a warm-up anew."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from aie_agent.analysis.leaks.events import restarts_warm_up
from aie_agent.analysis.leaks.lines import ACCOUNTING, CACHES, LINES, CacheUse, Sample
from aie_agent.analysis.leaks.lives import Repeats
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.watch import Watch


class Followed:
    """`watch` begins a warm-up anew where an event or a size tells of a restart. `through` does not: from the first of those on it
    goes beside, and sees what each of them left. None where there is none. `events` counts those that are named."""

    def __init__(self, settings: LeakSettings) -> None:
        self.watch = Watch(settings, (*(line for line in LINES if line.tells), ACCOUNTING))  # no column tells of the others
        self.through: Watch | None = None
        self.caches = Watch(settings, (CACHES,))
        self.cache_use = CacheUse()
        self.repeats = Repeats(settings)
        self.events = 0

    def take(self, samples: Iterable[Sample]) -> None:
        """Takes all samples, times ascending."""
        for sample in samples:
            self._add(sample)
        for watch in filter(None, (self.watch, self.through, self.caches)):
            watch.close()

    def _add(self, sample: Sample) -> None:
        watch = self.watch
        if sample.event and restarts_warm_up(sample.event):
            self.events += 1
            self._begin_through()
        if self.through is not None:
            self.through.add(sample)
        watch.add(sample)
        if watch.is_low:
            self._begin_through()
        else:
            self.repeats.add(sample, watch.restarts)
        if sample.cache_bytes is not None:
            self.caches.add(sample)
            self.cache_use.add(sample)

    def _begin_through(self) -> None:
        if self.through is None:
            self.through = deepcopy(self.watch)
            self.through.restarts_told = True
