"""A cache of the engine does not hit any more, though it did minutes ago: a template, a tokenizer or a setting was changed.

The rule looks at the last `BLOCKS` blocks of `BLOCK_S` seconds, which is all that the store keeps by default. In the newest of
them the hit rate is at most `LOW` times what it was in those before (but for the one in which it changed), of which there must be
`BEFORE_LEAST`, with a hit rate of at least `HIGH` together. By chance alone so few hits would come less than once in 10^4 looks.
And there was no such time before: at most `LOW_BEFORE` of the blocks before were as low, and never as many in a row as now. So a
hit rate that goes up and down with traffic is none, nor one that was always low.

It is told while the store remembers the time before: for some three and a half minutes, then it is over, although the cache may
still not hit. The hit rate itself stays on the boards. When it is wrong: where traffic itself changed at once (a batch of prompts
nobody sent before, a cache emptied on purpose) the hit rate fell, and nothing is broken. Under independent requests the
false-alarm rate is below 1e-4 a look; what traffic does, it does not cover. Tokens of one prompt hit together, so of the prefix
cache a prompt counts once, at `TOKENS_A_PROMPT` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.readings import risen, risen_per_bin
from aie_agent.analysis.findings import View
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "cache_hit_collapse"

BLOCK_S: Final = 10.0
BLOCKS: Final = 30
HIGH: Final = 0.2
BEFORE_LEAST: Final = 9
LOW: Final = 0.3
LOW_BEFORE: Final = 0.1
CHANCE: Final = 1e-4
TOKENS_A_PROMPT: Final = 512.0


class _Cache(NamedTuple):
    """One kind of cache: its name, its counters, and how many lookups tell as much as one that is independent of the others."""

    name: str
    queries: str
    hits: str
    together: float
    advice: str


CACHES: Final = (
    _Cache(
        "prefix cache",
        "aie_engine_prefix_cache_queries_total",
        "aie_engine_prefix_cache_hits_total",
        TOKENS_A_PROMPT,
        "See what stands at the beginning of prompts now: a date, a user's name or an id there makes every prompt new; so does"
        " another chat template or tokenizer. Or the cache is off (vLLM --no-enable-prefix-caching, SGLang --disable-radix-cache),"
        " or its memory is taken by what runs.",
    ),
    _Cache(
        "response cache",
        "aie_engine_response_cache_queries_total",
        "aie_engine_response_cache_hits_total",
        1.0,
        "See whether requests carry something new each time (a date, an id, another temperature: only greedy ones are kept),"
        " whether the model was swapped, and whether the cache is large enough (aie-engine --response-cache-bytes).",
    ),
)


class Block(NamedTuple):
    """What was looked up in a stretch of time, and what was found."""

    queries: float
    hits: float


class Collapse(NamedTuple):
    """The lookups before and since, and for how many of the newest blocks."""

    before: Block
    since: Block
    blocks: int


def cache_hit_collapse(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `cache_hit_collapse` at `now_s`, or None."""
    for cache in CACHES:
        lately = risen(view, engine, cache.queries, now_s - BLOCK_S, now_s)
        hits = risen(view, engine, cache.hits, now_s - BLOCK_S, now_s)
        if lately and hits is not None and hits / lately <= LOW:  # seldom: the rest takes a hundred times as long
            edges = [now_s - BLOCK_S * (BLOCKS - index) for index in range(BLOCKS + 1)]
            queries, found = (risen_per_bin(view.store.scalars(name, engine=engine), edges) for name in (cache.queries, cache.hits))
            fell = collapse([Block(*pair) for pair in zip(queries, found, strict=True)], cache.together)
            if fell is not None:
                return _finding(engine, cache, fell, now_s)
    return None


def collapse(blocks: Sequence[Block], together: float) -> Collapse | None:
    """Whether the hit rate of the newest blocks has fallen, by the rule above: the longest time for which it has."""
    if not any(block.hits >= HIGH * block.queries > 0 for block in blocks):
        return None
    for newest in range(len(blocks) - BEFORE_LEAST, 0, -1):
        for mixed in (0, 1):  # the change may lie within a block
            before = [block for block in blocks[: len(blocks) - newest - mixed] if block.queries > 0]
            since = [block for block in blocks[len(blocks) - newest :] if block.queries > 0]
            if len(before) >= BEFORE_LEAST and since and _fell(before, since, together):
                return Collapse(_pooled(before), _pooled(since), newest)
    return None


def _fell(before: Sequence[Block], since: Sequence[Block], together: float) -> bool:
    pooled, now = _pooled(before), _pooled(since)
    usual = pooled.hits / pooled.queries
    if usual < HIGH or not all(_is_low(block, usual) for block in since):
        return False
    lows = [_is_low(block, usual) for block in before]
    longest = max((len(list(run)) for is_low, run in groupby(lows) if is_low), default=0)
    if longest >= len(since) or sum(lows) > LOW_BEFORE * len(lows):
        return False
    return chance(now.queries / together, now.hits / together, usual) <= CHANCE


def _is_low(block: Block, usual: float) -> bool:
    return block.hits <= LOW * usual * block.queries


def _pooled(blocks: Sequence[Block]) -> Block:
    return Block(sum(block.queries for block in blocks), sum(block.hits for block in blocks))


def chance(queries: float, hits: float, usual: float) -> float:
    """An upper bound (Chernoff's) of the chance of no more than so many hits, fewer than usual, at the usual rate."""
    rate = hits / queries
    part = 0.0 if rate <= 0 else rate * math.log(rate / usual)
    rest = 0.0 if rate >= 1 else (1 - rate) * math.log((1 - rate) / max(1 - usual, 1e-9))
    return math.exp(-queries * (part + rest))


def _finding(engine: str, cache: _Cache, fell: Collapse, now_s: float) -> Finding:
    since_s = now_s - fell.blocks * BLOCK_S
    before, since = (block.hits / block.queries for block in (fell.before, fell.since))
    text = (
        f"{since:.0%} of what was looked up in its {cache.name} in the last {now_s - since_s:.0f} s was there, {before:.0%} before"
    )
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=since_s,
        summary=f"engine {engine}: its {cache.name} hits {since:.0%}, and hit {before:.0%} minutes ago",
        evidence=(
            Evidence(text=f"{text} (limit {LOW:g} times as much)", metric=cache.hits),
            Evidence(text=f"{fell.since.queries:.0f} lookups since, {fell.before.queries:.0f} before", metric=cache.queries),
        ),
        advice=cache.advice,
    )
