"""Follows the hit rates of engines' caches over half an hour: what the rule of `cache` looks at.

A cache is cold after its engine was started: for `WARM_UP_S` after its counters began anew nothing is said of few hits, and what
was before stays the measure, over a restart of the agent as well. After half an hour the time before is forgotten, and a finding
ends although the cache may still not hit: the hit rate itself stays on the boards. When it fell is remembered for a fortnight: what
falls each night at about one time is a batch.

Two caches of one engine that fell are told in one finding, the graver first: a finding is known by its cause and its engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from aie_agent.analysis.engine_causes.cache import BLOCK_S, CACHES, HELD_S, LOW, PREFIX_QUERIES, Block, Cache, collapse, finding_of
from aie_agent.analysis.engine_causes.readings import REQUESTS, TTFT, WAITING, highest, observed, risen
from aie_agent.analysis.explain import RANK
from aie_agent.analysis.findings import View
from aie_agent.samples import Point
from aie_telemetry.api import Finding

BLOCKS: Final = 180
WARM_UP_S: Final = 300.0
DAY_S: Final = 86400.0
ABOUT_S: Final = 1800.0
"""So much earlier or later is the same time of the day, and the same fall."""
_DAYS: Final = 14

_Key = tuple[str, str]  # engine, cache


class CacheAnalyser:
    """See `Analyser`. A few KB an engine that has caches."""

    name = "caches"

    def __init__(self) -> None:
        self._blocks: dict[_Key, deque[Block]] = {}
        self._warm_s: dict[_Key, float] = {}
        self._fell_s: dict[_Key, deque[float]] = {}
        self._block_s = 0.0
        self._found: list[Finding] = []

    def observe(self, view: View, now_s: float) -> None:
        """Looks at the last seconds of each cache; every `BLOCK_S` they are kept."""
        is_due = not 0 <= now_s - self._block_s < BLOCK_S
        self._found = []
        for engine in view.engines:
            if view.state(engine) != "down":
                found = [fell for cache in CACHES if (fell := self._look(view, engine, cache, now_s, is_due)) is not None]
                self._found += [as_one(found)] if found else []
        if is_due:
            self._block_s = now_s
            self._blocks = {key: blocks for key, blocks in self._blocks.items() if key[0] in view.engines}
            self._warm_s = {key: until_s for key, until_s in self._warm_s.items() if until_s > now_s}
            self._fell_s = {key: times for key, times in self._fell_s.items() if times and now_s - times[-1] < _DAYS * DAY_S}

    def findings(self, now_s: float) -> Sequence[Finding]:
        """`cache_hit_collapse`, at most one an engine."""
        return self._found

    def points(self, now_s: float) -> Sequence[Point]:
        """None: the counters themselves are on the page."""
        return ()

    def dump(self) -> Mapping[str, Any]:
        """The blocks of each cache, and when its hit rate fell."""
        rows = [[engine, cache, [list(block) for block in blocks]] for (engine, cache), blocks in sorted(self._blocks.items())]
        return {"caches": rows, "fell": [[*key, list(times)] for key, times in sorted(self._fell_s.items())]}

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Raises ValueError for what `dump` did not give."""
        try:
            known = {
                (str(engine), str(cache)): deque((Block(*map(float, block)) for block in blocks), BLOCKS)
                for engine, cache, blocks in state["caches"]
            }
            fell = {(str(engine), str(cache)): deque(map(float, times), _DAYS) for engine, cache, times in state.get("fell", ())}
        except (TypeError, KeyError) as error:
            raise ValueError(f"not the blocks of caches: {error}") from error
        self._blocks, self._fell_s = known, fell

    def _look(self, view: View, engine: str, cache: Cache, now_s: float, is_due: bool) -> Finding | None:
        key, found = (engine, cache.name), None
        newest = _newest(view, engine, cache, now_s)
        if newest is None:
            if key not in self._blocks:
                return None
            newest = _block(view, engine, 0.0, 0.0, now_s)
        if key in self._blocks and _began_anew(view, engine, cache, now_s):
            self._warm_s[key] = now_s + WARM_UP_S
        if newest.queries > 0 and now_s < self._warm_s.get(key, 0.0):
            return None
        if newest.hits <= LOW * newest.queries:
            # The last kept block may reach into the newest seconds.
            fell = collapse([*list(self._blocks.get(key, ()))[:-1], newest], cache.together)
            if fell is not None:
                days_ago = self._note(key, now_s - fell.blocks * BLOCK_S, fell.blocks * BLOCK_S >= HELD_S)
                found = finding_of(engine, cache, fell, now_s, days_ago)
        if is_due and (newest.queries > 0 or newest.ended > 0 or key in self._blocks):
            self._blocks.setdefault(key, deque(maxlen=BLOCKS)).append(newest)
        return found

    def _note(self, key: _Key, since_s: float, has_held: bool) -> int | None:
        """Remembers when a hit rate fell, if it stays so. Returns how many days ago it last did at this time of the day."""
        times = self._fell_s.setdefault(key, deque(maxlen=_DAYS))
        if has_held and not any(abs(since_s - each) <= ABOUT_S for each in times):
            times.append(since_s)
        days = (round((since_s - each) / DAY_S) for each in times if _is_same_time(since_s - each))
        return min(days, default=None)


def as_one(found: Sequence[Finding]) -> Finding:
    """What was found of the caches of one engine, together: as grave as the gravest, which stands first, as old as the oldest."""
    first, *others = sorted(found, key=lambda each: (RANK[each.severity], each.since_s))
    summaries = (first.summary, *(each.summary.removeprefix(f"engine {each.subject}: ") for each in others))
    return msgspec.structs.replace(
        first,
        since_s=min(each.since_s for each in found),
        summary="; ".join(summaries),
        evidence=(*first.evidence, *(evidence for each in others for evidence in each.evidence)),
        advice=" ".join(each.advice for each in (first, *others)),
    )


def _is_same_time(apart_s: float) -> bool:
    days = round(apart_s / DAY_S)
    return 1 <= days <= _DAYS and abs(apart_s - days * DAY_S) <= ABOUT_S


def _newest(view: View, engine: str, cache: Cache, now_s: float) -> Block | None:
    """The last seconds of a cache; None where its counters are not current."""
    queries = risen(view, engine, cache.queries, now_s - BLOCK_S, now_s)
    hits = risen(view, engine, cache.hits, now_s - BLOCK_S, now_s)
    return None if queries is None or hits is None else _block(view, engine, queries, hits, now_s)


def _block(view: View, engine: str, queries: float, hits: float, now_s: float) -> Block:
    """With what else is known of these seconds: requests that ended, and the prompts that were computed (TTFT has one a prompt)."""
    begin_s = now_s - BLOCK_S
    ended = risen(view, engine, REQUESTS, begin_s, now_s, outcome="ok") or 0.0
    tokens = risen(view, engine, PREFIX_QUERIES, begin_s, now_s) or 0.0
    first = observed(view, engine, TTFT, begin_s, now_s)
    first_token_s, first_tokens = (0.0, 0.0) if first is None else (first.total, first.count)
    waiting = highest(view, engine, WAITING, begin_s, now_s) or 0.0
    return Block(queries, hits, ended, tokens, first_tokens if tokens else 0.0, first_token_s, first_tokens, waiting)


def _began_anew(view: View, engine: str, cache: Cache, now_s: float) -> bool:
    """Whether its counter of lookups began within the last seconds, or fell, as with a new process."""
    for series in view.store.scalars(cache.queries, engine=engine):
        points = list(series.ring.since(now_s - BLOCK_S))
        is_new = bool(points) and points[0][0] > now_s - BLOCK_S and len(points) == len(series.ring)
        if is_new or any(not after >= before for (_, before), (_, after) in pairwise(points)):
            return True
    return False
