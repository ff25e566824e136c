"""What ran in an engine that is gone when it was last heard, and whether it ran until the end.

What ran long before it went is not taken to be lost: a server that is asked to end closes its page first, works off what it has,
and goes. Not so where one of its processes went about when it was last heard, and others seconds later (`_fell_apart`): that is a
crash. Pages that show requests for a while after they ended are believed only while something moves on them.

What was told before its processes began is of others, which went before them: in a crash loop, what ran at the first crash was lost
once. Of one that dies before it tells anything, nothing is known.

The store forgets all that within minutes; `LastHeard` does not, for as long as the engine is down.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.readings import RUNNING
from aie_agent.analysis.findings import Heard, View
from aie_agent.analysis.hung import FRESH_S, last_move_s
from aie_agent.analysis.window import bucket_increase
from aie_agent.progress import STALE
from aie_agent.series import Series

INFO: Final = "aie_engine_info"
PROCESSES: Final = "aie_process_instances"
STARTED: Final = "aie_process_start_time_seconds"
ENDED: Final = "aie_engine_request_duration_seconds"
STATSD: Final = "statsd"

HOOKS_S: Final = 30.0
"""Hooks repeat a level that stays every ten seconds."""
AT_ONCE_S: Final = 3.0
"""Processes that go within so long go together."""
SETTLES_S: Final = 5.0
"""So long after an engine went, what it told before has come."""
_PERIODS: Final = 2.5


class _Kept(NamedTuple):
    since_s: float
    heard: Heard


class LastHeard:
    """Remembers of each engine that is down what was last heard of it, as was known `SETTLES_S` after it went."""

    def __init__(self) -> None:
        self._known: dict[str, _Kept] = {}

    def observe(self, view: View, now_s: float) -> None:
        """To be called at each look."""
        known = ((engine, self._of(view, engine, now_s)) for engine in view.engines if view.state(engine) == "down")
        self._known = {engine: kept for engine, kept in known if kept is not None}

    def of(self, engine: str) -> Heard | None:
        """What is remembered of an engine; None where it is not down, or nobody knew."""
        known = self._known.get(engine)
        return None if known is None else known.heard

    def _of(self, view: View, engine: str, now_s: float) -> _Kept | None:
        since_s = view.down_since_s(engine)
        if since_s is None:
            return None
        known = self._known.get(engine)
        if known is not None and known.since_s == since_s and now_s - since_s >= SETTLES_S:
            return known
        heard = last_heard(view, engine, since_s)
        if heard is None:  # the store forgets within `SETTLES_S` where the clock is set
            return known if known is not None and known.since_s == since_s else None
        return _Kept(since_s, heard)


def last_heard(view: View, engine: str, down_s: float) -> Heard | None:
    """As the source that heard an engine last tells it, which went down at `down_s`; None where nobody knows (any more), or
    its processes told nothing."""
    known = view.store.scalars(RUNNING, engine=engine)
    newest = max(known, key=lambda series: series.last_time_s, default=None)
    if newest is None or newest.last_time_s < _started_s(view, engine):
        return None
    running = sum(series.value for series in known if series.source == newest.source)
    before_s = max(down_s - newest.last_time_s, 0.0)
    patience_s = _patience_s(newest)
    is_fresh = before_s <= patience_s or _fell_apart(view, engine, newest.last_time_s, patience_s, down_s)
    is_of_end = is_fresh and not _may_have_ended(view, engine, newest, running)
    return Heard(running, before_s, is_of_end)


def _started_s(view: View, engine: str) -> float:
    """When the oldest of its last processes began; long ago where nobody knows. Of the last seconds: what began when the
    others went (whatever writes the core) is not all that there was."""
    known = view.store.scalars(STARTED, engine=engine)
    began = (value for series in known for _, value in series.ring.since(series.last_time_s - FRESH_S))
    return min(began, default=0.0)


def _patience_s(series: Series) -> float:
    """How old the last value of a source may be that was heard until the end: a few of its periods."""
    if series.source == STATSD:
        return HOOKS_S
    times = [time_s for time_s, _ in series.ring.since(series.last_time_s - HOOKS_S)]
    period_s = min((after - before for before, after in pairwise(times)), default=0.0)
    return max(FRESH_S, _PERIODS * period_s)


def _fell_apart(view: View, engine: str, heard_s: float, patience_s: float, down_s: float) -> bool:
    """Whether a process of it ended about when it was last heard, and others lived on for seconds. One that ends in good order goes
    as a whole, or its workers go long after its page closed, seconds before what serves."""
    points = [point for series in view.store.scalars(PROCESSES, engine=engine) for point in series.ring.since(heard_s - FRESH_S)]
    until_s = min(heard_s + patience_s, down_s - AT_ONCE_S)
    return any(after < before for (_, before), (time_s, after) in pairwise(points) if after > 0 and time_s <= until_s)


def _may_have_ended(view: View, engine: str, running: Series, count: float) -> bool:
    """Whether these requests, on a page that shows some for a while after they ended, may be such: nothing moved in the seconds
    before, or not at the last look, and as many had just ended."""
    kinds = {dict(series.tags).get("kind", "") for series in view.store.scalars(INFO, engine=engine)}
    if running.source == STATSD or not kinds & STALE.keys():
        return False
    moved_s, heard_s = last_move_s(view, engine), running.last_time_s
    if moved_s is None or heard_s - moved_s > FRESH_S:
        return True
    ended = sum(sum(bucket_increase(series, heard_s - FRESH_S)) for series in view.store.histograms(ENDED, engine=engine))
    return moved_s < heard_s and ended >= count
