"""Whether more requests come than before, or an engine serves fewer of them: what tells a flood from an engine that became slow.

Compared is what came, and what was served, since the engine began to refuse (the last `LATELY_S` of it at most) with all that is
known of the time before. The last `FILL_S` before the first refusal are left out, half of that time at most: while a queue fills,
what fills it comes already. More came if it is `GREW` times as much, and fewer were served if it is at most `FELL` of what was; and
if chance does not do it: `BEYOND` standard deviations, after a transform that makes the root of a Poisson count normal (Anscombe).

Of requests that come independently of each other chance does it in 3 of 100000 looks, and only looks at which refusals are found
count. Traffic in bursts scatters more: bursts of `GREW` times the mean that fill a queue are a flood by this rule, and truly are.

Of an engine that was next to idle before (it served less than `IDLE` of what it serves now) nobody knows what it can do: that more
come says nothing then, and one that is slow from its first load on is not flooded. Requests that are refused and asked again come
after the first refusal only, as does a flood that fills a queue at once: `came_first` tells whether more came in the `FIRST_S`
before it, or since the last look before that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.readings import REQUESTS, RUNNING, WAITING
from aie_agent.analysis.findings import View
from aie_agent.analysis.window import gain
from aie_agent.series import Series

RECEIVED: Final = "aie_engine_requests_received_total"

LATELY_S: Final = 60.0
FILL_S: Final = 30.0
LEAST_BEFORE_S: Final = 5.0
"""Of a shorter time before nothing is said: of one that is not much longer chance may have much to do, which `BEYOND` knows."""
QUIET_S: Final = 15.0
"""Refusals that are further apart are not of one time."""
REFUSES_S: Final = 30.0
"""One that refused none for so long, or since the last look but one, has places again."""
GREW: Final = 1.5
GOES_ON: Final = 1.2
"""So much more than before is a flood for as long as it was one."""
FELL: Final = 0.5
BEYOND: Final = 4.0
IDLE: Final = 0.05
FIRST_S: Final = 5.0
_LOOKS: Final = 1.5
_MOST_APART_S: Final = 30.0
"""What was between points that are further apart is not known: the engine was restarted, or did not answer."""


class Counted(NamedTuple):
    """So many, in so many seconds of which that is known."""

    number: float
    seconds: float

    @property
    def rate(self) -> float:
        """A second."""
        return self.number / self.seconds if self.seconds > 0 else 0.0


class Arrivals(NamedTuple):
    """What came and what was served well, before the engine refused any and lately; what came in between, since it refuses; since
    when that is; which metric tells what came; what came just before the first refusal; and whether it refused any just now."""

    came_before: Counted
    came_since: Counted
    came: Counted
    served_before: Counted
    served: Counted
    since_s: float
    metric: str
    filling: Counted = Counted(0.0, 0.0)
    is_refusing: bool = True

    @property
    def is_known(self) -> bool:
        """Whether there is anything before to compare with."""
        return self.came_before.seconds >= LEAST_BEFORE_S and self.came.seconds > 0

    @property
    def grew(self) -> bool:
        """Whether more come than before."""
        return self.is_known and self.came.rate >= GREW * self.came_before.rate and _beyond(self.came, self.came_before) >= BEYOND

    @property
    def was_idle(self) -> bool:
        """Whether it had so little to do before that nobody knows what it can do."""
        return self.is_known and self.served_before.seconds > 0 and self.served_before.rate < IDLE * self.served.rate

    @property
    def came_first(self) -> bool:
        """Whether more came before it refused any: those are no requests that are asked again because they are refused."""
        return self.is_known and self.filling.rate >= GREW * self.came_before.rate

    @property
    def goes_on(self) -> bool:
        """Whether what once grew is still more than it was; where nothing before is known any more, whether it is not far less."""
        if self.is_known:
            return self.came.rate >= GOES_ON * self.came_before.rate
        return self.came_since.seconds <= 0.0 or self.came.rate >= FELL * self.came_since.rate

    @property
    def fell(self) -> bool:
        """Whether fewer are served than before."""
        known = self.is_known and self.served_before.seconds > 0 and self.served.seconds > 0
        return known and self.served.rate <= FELL * self.served_before.rate and _beyond(self.served, self.served_before) <= -BEYOND


def arrivals(view: View, engine: str, refused: Iterable[Series], now_s: float) -> Arrivals:
    """Of an engine that refuses: `refused` are the counters of what it refuses. Where the page does not tell what came, that is
    what ended, refused or not, and by how much more are in it: while a queue fills, what comes does not end."""
    rises = sorted((rise for series in refused for rise in _rises(series)), key=lambda rise: rise[1], reverse=True)
    onset_s = _onset_s(rises, now_s)
    received = _current(view, engine, RECEIVED, now_s)
    came = received or _current(view, engine, REQUESTS, now_s)
    within = [] if received else [*_current(view, engine, RUNNING, now_s), *_current(view, engine, WAITING, now_s)]
    served = _current(view, engine, REQUESTS, now_s, outcome="ok")
    begin_s = min((span.first_s for series in came if (span := series.ring.span(0.0)) is not None), default=onset_s)
    until_s = onset_s - min(FILL_S, max(onset_s - begin_s, 0.0) / 2)
    late_s = max(onset_s, now_s - LATELY_S)
    return Arrivals(
        came_before=_counted(came, 0.0, until_s, within),
        came_since=_counted(came, onset_s, late_s, within),
        came=_counted(came, late_s, now_s, within),
        served_before=_counted(served, 0.0, until_s),
        served=_counted(served, late_s, now_s),
        since_s=onset_s,
        metric=RECEIVED if received else REQUESTS,
        filling=_counted(came, _look_s(came, onset_s - FIRST_S), onset_s, within),
        is_refusing=any(now_s - end_s <= max(REFUSES_S, _LOOKS * (end_s - begin_s)) for begin_s, end_s in rises[:1]),
    )


def _current(view: View, engine: str, metric: str, now_s: float, **labels: str) -> list[Series]:
    return [series for series in view.store.scalars(metric, engine=engine, **labels) if series.valid_until_s >= now_s]


def _look_s(all_series: Iterable[Series], time_s: float) -> float:
    """The last look at or before `time_s`."""
    return min((span.first_s for series in all_series if (span := series.ring.span(time_s)) is not None), default=time_s)


def _onset_s(rises: Sequence[tuple[float, float]], now_s: float) -> float:
    """Since when it refuses without a pause: the last look before the first refusal. The newest comes first."""
    onset_s = rises[0][1] if rises else now_s
    for begin_s, end_s in rises:
        if onset_s - end_s > QUIET_S:
            break
        onset_s = min(onset_s, begin_s)
    return onset_s


def _rises(series: Series) -> Iterator[tuple[float, float]]:
    """Between which looks a counter rose."""
    for (begin_s, before), (end_s, value) in pairwise(series.ring.since(0.0)):
        if gain(before, value) > 0:
            yield begin_s, end_s


def _counted(counters: Sequence[Series], start_s: float, end_s: float, levels: Sequence[Series] = ()) -> Counted:
    """How much counters rose, and levels changed, together, between looks that both lie in this time; and for how long that is
    known of a counter. What a level shows when a counter begins anew is of a new process: all of it came since."""
    number, seconds, anew = 0.0, 0.0, set[float]()
    for series in counters:
        known_s = 0.0
        for (begin_s, before), (until_s, value) in _steps(series, start_s, end_s):
            number += gain(before, value)
            known_s += until_s - begin_s
            anew |= {until_s} if value < before else set()
        seconds = max(seconds, known_s)
    for series in levels:
        number += sum(value - (0.0 if at_s in anew else before) for (_, before), (at_s, value) in _steps(series, start_s, end_s))
    return Counted(max(number, 0.0), seconds)


def _steps(series: Series, start_s: float, end_s: float) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """From each look to the next, of those that lie in this time and not too far apart."""
    for (begin_s, before), (until_s, value) in pairwise(series.ring.since(start_s)):
        if begin_s >= start_s and until_s <= end_s and until_s - begin_s <= _MOST_APART_S:
            yield (begin_s, before), (until_s, value)


def _beyond(now: Counted, before: Counted) -> float:
    """By how many standard deviations a count is other than what was before lets expect; below 0, fewer."""
    share = now.seconds / before.seconds
    return 2.0 * (math.sqrt(now.number + 0.375) - math.sqrt((before.number + 0.375) * share)) / math.sqrt(1.0 + share)
