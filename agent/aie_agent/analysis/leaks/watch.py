"""The lines of one engine on one device: warm-up, restarts, caches, and which of the lines that rise tells what leaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aie_agent.analysis.leaks.claims import Claim
from aie_agent.analysis.leaks.events import gives_back, restarts_warm_up
from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.lines import CACHE_LINES, LINES, LeakClass, LineSpec, Sample
from aie_agent.analysis.leaks.low_readings import LowReadings, is_far_below
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.standing import RANK, Standing

_GROWS: Final = 0.5
_PHYSICAL: Final = "physical"
"""The line of a process that lives. That of processes of no engine, of which there may be none, has another name."""
_MOST_PAST: Final = 16


class Found(NamedTuple):
    """A line that rises: which, as what class, how. `how` is empty while it does; else how it ended: restarted, returned, probed,
    stopped."""

    line: LineSpec
    leak_class: LeakClass
    standing: Standing
    how: str = ""
    claim: Claim | None = None
    """What the engine says that it gave back of it, which floors do not confirm, or not yet."""


class Watch:
    """Follows an engine's memory on a device. `begin_s` is when what it watches began; `warm_s` when its warm-up ended (None: not
    yet). Where `restarts_told`, whoever adds samples knows restarts and calls `restart`; else events and sizes tell them. Its lines
    keep `kept_bins` half hours beside those that they judge by."""

    def __init__(self, settings: LeakSettings, specs: Sequence[LineSpec] = LINES, kept_bins: int = 0) -> None:
        self._settings = settings
        self._kept_bins = kept_bins
        self._specs = {spec.name: spec for spec in specs}
        self._values = [(spec.name, spec.value) for spec in specs]
        self.begin_s: float | None = None
        self.warm_s: float | None = None
        self.lines: dict[str, Line] = {}
        self.past: list[Found] = []
        self.restarts = 0
        self.zeros = self.gaps = 0
        self.restarts_told = False
        self._low = LowReadings(settings.bin_s, settings.day_s / 2)
        self.judged = False
        self._first_request_s: float | None = None
        self._requests_before: float | None = None
        self._base_bytes: float | None = None
        self._next_s = self._next_cell_s = -math.inf
        self._load = self._cache = 0.0
        self._last = Sample(0.0)

    def add(self, sample: Sample) -> None:
        """Takes a sample, if the last one lies `sample_s` back: more of them tell no more. Times must not go back. A process that
        lives has memory: a physical size of 0 is a reading that failed, and a gap."""
        if sample.time_s < self._next_s and not sample.event:
            return
        if sample.physical_bytes == 0 and _PHYSICAL in self._specs:
            self.zeros += 1
            sample = sample._replace(physical_bytes=None)
        self._next_s = sample.time_s + self._settings.sample_s
        if sample.event and gives_back(sample.event):
            for line in self.lines.values():
                line.probed(sample.time_s)
        if sample.event and not self.restarts_told and restarts_warm_up(sample.event):
            self.restart()
        elif self._is_gap(sample):
            return
        self._last = sample
        if self.warm_s is None and not self._warmed_up(sample):
            return
        if self._base_bytes is None:
            self._base_bytes = sample.physical_bytes  # the row that ends the warm-up may have none
        self._load = self._load if sample.load is None else sample.load
        self._cache = self._cache if sample.cache_bytes is None else sample.cache_bytes
        load, cache = self._load, self._cache
        for name, value_of in self._values:
            value = value_of(sample)
            if value is not None:
                followed = self.lines.get(name)
                if followed is None:
                    followed = self.lines[name] = Line(self._settings, sample.time_s, self._kept_bins)
                followed.add(sample.time_s, value, load, cache)
        if sample.cache_bytes is not None and sample.time_s >= self._next_cell_s:
            self._next_cell_s = sample.time_s + self._settings.cell_s
            self._place_cache()

    def probed(self, time_s: float, given: Callable[[str], float | None]) -> list[Found]:
        """The engine was made to give back what it only retains; `given` tells, of a line by its name, how much came back. The
        lines whose floors had said so already: what rose was retained. Of others it is a claim: see `confirmed`."""
        return self._settled({name: line.probed(time_s, given(name)) for name, line in self.lines.items()})

    def confirmed(self) -> list[Found]:
        """The lines of which floors have confirmed since the last call that what rose was retained."""
        settled = {name: line.take_confirmed() for name, line in self.lines.items()}
        if any(standing is not None and not self._specs[name].total for name, standing in settled.items()):
            for name, line in self.lines.items():
                if self._specs[name].total:
                    line.confirm()
                    settled[name] = settled[name] or line.take_confirmed()
        return self._settled(settled)

    def _settled(self, settled: Mapping[str, Standing | None]) -> list[Found]:
        ended = [(self._specs[name], standing) for name, standing in settled.items() if standing is not None]
        return [
            Found(spec, spec.leak_class, standing, "probed") for spec, standing in sorted(ended, key=lambda each: each[0].total)
        ]

    def restart(self) -> None:
        """What it watches begins anew, and so does its warm-up. A leak that was found until then stays found."""
        if self.warm_s is not None:
            ended = [each._replace(how="restarted") for each in self.found()]
            self.past = [*self.past, *ended, *self._ended()][-_MOST_PAST:]
            self.judged = self.judged or self._has_judged()
        self.restarts += self.begin_s is not None
        self.begin_s = self.warm_s = self._first_request_s = self._requests_before = self._base_bytes = None
        self.lines = {}
        self._low = LowReadings(self._settings.bin_s, self._settings.day_s / 2)

    def close(self) -> None:
        """No more samples come."""
        for line in self.lines.values():
            line.close()
        self.judged = self.judged or self._has_judged()
        self.past += list(self._ended())

    def found(self) -> list[Found]:
        """The lines that rise now and tell something, the gravest first, and of equals the one that rises fastest."""
        rising = [spec for name, spec in self._specs.items() if name in self.lines and self.lines[name].level != "none"]
        parts = [spec for spec in rising if not spec.total and spec.tells and self._is_supported(spec)]
        worst = max((RANK[self.lines[spec.name].level] for spec in parts), default=0)
        wholes = [spec for spec in rising if spec.total and RANK[self.lines[spec.name].level] > worst]
        found = [self._found(spec, spec.leak_class) for spec in parts]
        if wholes:
            whole = wholes[-1]  # physical before reserved memory
            found.append(self._found(whole, self._class_by_parts(whole)))
        return sorted(found, key=lambda each: (-RANK[each.standing.level], -each.standing.slope.value))

    def _found(self, spec: LineSpec, leak_class: LeakClass) -> Found:
        line = self.lines[spec.name]
        return Found(spec, leak_class, line.standing, claim=line.claim)

    def _is_supported(self, spec: LineSpec) -> bool:
        """Whether the line that should rise with this one does; as far as it is known."""
        other = self.lines.get(spec.grows)
        standing = self.lines[spec.name].standing
        risen = self.lines[spec.name].risen_since(standing.since_s)
        by = None if other is None else other.risen_since(standing.since_s)
        if risen is None or by is None:
            return True
        return (by >= _GROWS * risen) is not spec.grows_not

    def _class_by_parts(self, whole: LineSpec) -> LeakClass:
        """The class of the part that rose by more than half as much as the whole did."""
        since_s = self.lines[whole.name].standing.since_s
        risen = self.lines[whole.name].risen_since(since_s) or 0.0
        specs = [spec for name, spec in self._specs.items() if name in self.lines]
        parts = [spec for spec in specs if spec.tells and not spec.total and not spec.grows_not]
        by = {spec.leak_class: self.lines[spec.name].risen_since(since_s) or 0.0 for spec in parts}
        most: LeakClass = max(by, key=lambda each: by[each], default="unknown")
        return most if by.get(most, 0.0) > _GROWS * risen else "unknown"

    def _ended(self) -> Iterator[Found]:
        for name, line in self.lines.items():
            spec = self._specs[name]
            for each in line.past:
                yield Found(spec, spec.leak_class, each.standing, each.how)

    def _has_judged(self) -> bool:
        """Whether each line that tells something was seen for long enough to be judged."""
        lines = [line for name, line in self.lines.items() if name != "accounting"]
        return bool(lines) and all(line.judged for line in lines)

    def _is_gap(self, sample: Sample) -> bool:
        """Whether what is far below what it was says nothing; begins anew where it says that the engine did."""
        size, base = sample.physical_bytes, self._base_bytes
        told = self._low.take(sample.time_s, size, base, restarts_told=self.restarts_told)
        if told == "restart":
            self.restart()
        self.gaps += told == "gap"
        return told == "gap"

    @property
    def is_low(self) -> bool:
        """Whether the last sample was left out because it was far too low."""
        return self._low.is_low

    def may_have_failed(self, size_bytes: float) -> bool:
        """Whether a size of the next sample is the first one that is far too low: the one after it tells what it was."""
        return not self._low.is_low and is_far_below(size_bytes, self._base_bytes)

    def _warmed_up(self, sample: Sample) -> bool:
        """Whether the warm-up is over with this sample; notes what it needs to know for that."""
        now_s, settings = sample.time_s, self._settings
        if self.begin_s is None:
            self.begin_s, self._requests_before = now_s, sample.requests
        if self._requests_before is None:
            self._requests_before = sample.requests
        if self._first_request_s is None and (self._is_served(sample) or now_s - self.begin_s >= settings.idle_most_s):
            self._first_request_s = now_s
        if self._first_request_s is None or now_s - self._first_request_s < settings.warm_up_s:
            return False
        idle = self._first_request_s - self.begin_s >= settings.idle_most_s
        waited = idle or now_s - self._first_request_s >= settings.warm_up_most_s
        if not waited and self._requests_so_far(sample) < settings.warm_up_requests:
            return False
        self.warm_s = now_s
        return True

    def _is_served(self, sample: Sample) -> bool:
        """Whether a request has come; taken for granted where nobody says."""
        if sample.load is None and sample.requests is None:
            return True
        return (sample.load or 0.0) > 0 or (sample.requests or 0.0) > (self._requests_before or 0.0)

    def _requests_so_far(self, sample: Sample) -> float:
        if sample.requests is None or self._requests_before is None:
            return self._settings.warm_up_requests
        return sample.requests - self._requests_before

    def _place_cache(self) -> None:
        """Known caches lie in the part that moves with them most; where there are no parts, or none does, in the whole."""
        parts = [name for name in CACHE_LINES if name in self.lines and not self._specs[name].total]
        holder = max(parts, key=lambda name: self.lines[name].goes_with_cache, default=_PHYSICAL)
        for name in CACHE_LINES:
            if name in self.lines:
                self.lines[name].holds_cache(name in (holder, _PHYSICAL))

    def dump(self) -> dict[str, Any]:
        """Its state as plain values."""
        return {
            "begin_s": self.begin_s,
            "warm_s": self.warm_s,
            "first_request_s": self._first_request_s,
            "requests_before": self._requests_before,
            "base_bytes": self._base_bytes,
            "restarts": self.restarts,
            "lines": {name: line.dump() for name, line in self.lines.items()},
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], settings: LeakSettings, specs: Sequence[LineSpec] = LINES) -> Watch:
        """What `dump` gave. Raises ValueError, TypeError or KeyError for anything else."""
        watch = cls(settings, specs)
        watch.begin_s, watch.warm_s, watch._first_request_s, watch._requests_before, watch._base_bytes = (
            None if state[key] is None else float(state[key])
            for key in ("begin_s", "warm_s", "first_request_s", "requests_before", "base_bytes")
        )
        watch.restarts = int(state["restarts"])
        watch.lines = {name: Line.restored(line, settings) for name, line in state["lines"].items() if name in watch._specs}
        return watch

    @property
    def last(self) -> Sample:
        """The newest sample."""
        return self._last
