"""When a cache of an engine does not hit any more, though it did before: a template, a tokenizer or a setting was changed.

The rule looks at blocks of `BLOCK_S` seconds. In the newest of them the hit rate is at most `LOW` times what it was in those before
(but for the one in which it changed), of which there must be `BEFORE_LEAST`, with a hit rate of at least `HIGH` together. By chance
alone so few hits would come less than once in 10^4 looks. And there was no such time before: at most `LOW_BEFORE` of the blocks
before were as low, and never as many in a row as now. So a hit rate that goes up and down with traffic is none, nor one that was
always low. Where nothing is looked up any more although requests end as before, the cache was switched off: so many lookups as
requests had before are taken to have missed. Or those that come now are not of the kind that is looked up: blocks before in which
requests ended and none was count as low then.

It is information until it has been so for `HELD_S`: traffic that changes for a minute is no fault. It stays information where the
mix of requests changed as well: prompts that are computed are `MIX` times as long on average as before, or as much shorter (tokens
looked up in the prefix cache, by requests that got a first token; not known of engines without a prefix cache).

It stays information, too, where as much is found a second as before (`STILL`), unless first tokens take `SLOWER` times as long or
`QUEUED` requests more wait: then more is asked, a batch beside the usual traffic, the cache works, and nobody feels it; and where
it was so at the same time of an earlier day (`cache_watch` remembers a fortnight): a batch each night.

When it is wrong: where traffic itself changed for longer, its prompts are about as long, and the usual traffic ended (a batch of
prompts nobody sent before, a cache emptied on purpose), the hit rate fell, and nothing is broken: one warning, and for a nightly
batch the first night only. What breaks at the very time of day of such a batch is information. Under independent requests the
false-alarm rate is below 1e-4 a look; what traffic does, it does not cover. Tokens of one prompt hit together, so of the prefix
cache a prompt counts once, at `TOKENS_A_PROMPT` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.readings import TTFT, WAITING, seconds
from aie_telemetry.api import Evidence, Finding, Severity

CAUSE: Final = "cache_hit_collapse"

BLOCK_S: Final = 10.0
HIGH: Final = 0.2
BEFORE_LEAST: Final = 9
LOW: Final = 0.3
LOW_BEFORE: Final = 0.1
CHANCE: Final = 1e-4
TOKENS_A_PROMPT: Final = 512.0
HELD_S: Final = 120.0
MIX: Final = 1.5
STILL: Final = 0.7
"""Of the hits a second that there were before: so many that the usual traffic finds what it found."""
SLOWER: Final = 1.5
QUEUED: Final = 2.0
"""More requests that waited at most in a block, on average: so many, and twice as many as before."""
MIX_LEAST: Final = 10.0
"""So many prompts on each side tell how long they are."""

PREFIX_QUERIES: Final = "aie_engine_prefix_cache_queries_total"


class Cache(NamedTuple):
    """One kind of cache: its name, its counters, and how many lookups tell as much as one that is independent of the others."""

    name: str
    queries: str
    hits: str
    together: float
    advice: str


CACHES: Final = (
    Cache(
        "prefix cache",
        PREFIX_QUERIES,
        "aie_engine_prefix_cache_hits_total",
        TOKENS_A_PROMPT,
        "See what stands at the beginning of prompts now: a date, a user's name or an id there makes every prompt new; so does"
        " another chat template or tokenizer. Or the cache is off (vLLM --no-enable-prefix-caching, SGLang --disable-radix-cache),"
        " or its memory is taken by what runs.",
    ),
    Cache(
        "response cache",
        "aie_engine_response_cache_queries_total",
        "aie_engine_response_cache_hits_total",
        1.0,
        "See whether requests carry something new each time (a date, an id, another temperature: only greedy ones are kept),"
        " whether the model was swapped, and whether the cache is large enough (aie-engine --response-cache-bytes).",
    ),
)


class Block(NamedTuple):
    """What was looked up in a stretch of time, what was found, and how many requests ended well; tokens of prompts, and of how
    many; the seconds to their first tokens, how many those were, and how many requests waited at most."""

    queries: float
    hits: float
    ended: float = 0.0
    prompt_tokens: float = 0.0
    prompts: float = 0.0
    first_token_s: float = 0.0
    first_tokens: float = 0.0
    waiting: float = 0.0


class Collapse(NamedTuple):
    """The lookups before and since, and for how many of the newest blocks. `is_off` is whether none is made any more;
    `blocks_before` are those before in which anything was looked up."""

    before: Block
    since: Block
    blocks: int
    is_off: bool
    blocks_before: int


def collapse(blocks: Sequence[Block], together: float) -> Collapse | None:
    """Whether the hit rate of the newest blocks has fallen, by the rule above: the longest time for which it has."""
    for newest in _candidates(blocks):
        for mixed in (0, 1):  # the change may lie within a block
            known = _with_requests(blocks[: len(blocks) - newest - mixed])
            before = [block for block in known if block.queries > 0]
            since = _with_requests(blocks[len(blocks) - newest :])
            if len(before) >= BEFORE_LEAST and since:
                pooled = _pooled(before)
                guessed = [_guessed(block, pooled) for block in since]
                is_off = not any(block.queries for block in since)
                earlier = [_guessed(block, pooled) for block in known] if is_off else before
                if _fell(pooled, earlier, guessed, together):
                    return Collapse(pooled, _pooled(guessed), newest, is_off, len(before))
    return None


def _with_requests(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.queries > 0 or block.ended > 0]


def _candidates(blocks: Sequence[Block]) -> Iterator[int]:
    """How many of the newest blocks may be low: about as many as are low beside the highest, or only the very last."""
    highest = max((block.hits / block.queries for block in blocks if block.queries > 0), default=0.0)
    if highest < HIGH:
        return
    high_from_end = (back for back, block in enumerate(reversed(blocks)) if not _is_low(block, highest))
    most = min(next(high_from_end, len(blocks)), len(blocks) - BEFORE_LEAST)
    yield from dict.fromkeys((*range(most, max(most - 4, 0), -1), *range(min(3, most), 0, -1)))


def _guessed(block: Block, before: Block) -> Block:
    """A block without lookups as if it had them, as many a request as before, and all had missed."""
    if block.queries > 0 or not before.ended:
        return block
    return block._replace(queries=block.ended * before.queries / before.ended)


def _fell(pooled: Block, before: Sequence[Block], since: Sequence[Block], together: float) -> bool:
    now = _pooled(since)
    usual = pooled.hits / pooled.queries
    if usual < HIGH or not now.queries or not all(_is_low(block, usual) for block in since):
        return False
    lows = [_is_low(block, usual) for block in before]
    longest = max((len(list(run)) for is_low, run in groupby(lows) if is_low), default=0)
    if longest >= len(since) or sum(lows) > LOW_BEFORE * len(lows):
        return False
    return chance(now.queries / together, now.hits / together, usual) <= CHANCE


def _is_low(block: Block, usual: float) -> bool:
    return block.hits <= LOW * usual * block.queries


def _pooled(blocks: Sequence[Block]) -> Block:
    return Block(*(sum(parts) for parts in zip(*blocks, strict=True)))


def chance(queries: float, hits: float, usual: float) -> float:
    """An upper bound (Chernoff's) of the chance of no more than so many hits, fewer than usual, at the usual rate."""
    rate = hits / queries
    part = 0.0 if rate <= 0 else rate * math.log(rate / usual)
    rest = 0.0 if rate >= 1 else (1 - rate) * math.log((1 - rate) / max(1 - usual, 1e-9))
    return math.exp(-queries * (part + rest))


def mix(fell: Collapse) -> float | None:
    """How long prompts are now, as a multiple of what they were before; None where too few are known."""
    if min(fell.before.prompts, fell.since.prompts) < MIX_LEAST or min(fell.before.prompt_tokens, fell.since.prompt_tokens) <= 0:
        return None
    before, since = (block.prompt_tokens / block.prompts for block in (fell.before, fell.since))
    return since / before


def _of_mix(fell: Collapse) -> Iterator[Evidence]:
    ratio = mix(fell)
    if ratio is not None:
        since = fell.since.prompt_tokens / fell.since.prompts
        text = f"prompts have {since:.0f} tokens on average, {ratio:.2g} times as many as before (limits {1 / MIX:.2g} and {MIX:g})"
        yield Evidence(text=text, metric=PREFIX_QUERIES)


def still(fell: Collapse) -> float:
    """How many hits a second there are, as a multiple of what there were before."""
    return (fell.since.hits / fell.blocks) / (fell.before.hits / fell.blocks_before)


def _felt(fell: Collapse) -> Iterator[Evidence]:
    """By what requests feel it: later first tokens, a longer queue."""
    if min(fell.before.first_tokens, fell.since.first_tokens) >= MIX_LEAST:
        before_s, since_s = (block.first_token_s / block.first_tokens for block in (fell.before, fell.since))
        if since_s >= SLOWER * before_s > 0:
            text = f"a first token takes {seconds(since_s)} on average, {seconds(before_s)} before (limit {SLOWER:g} times as much)"
            yield Evidence(text=text, metric=TTFT)
    before, since = fell.before.waiting / fell.blocks_before, fell.since.waiting / fell.blocks
    if since >= before + QUEUED and since >= 2 * before:
        yield Evidence(text=f"{since:.0f} requests waited, {before:.0f} before (limit {QUEUED:g} more)", metric=WAITING)


def _is_harmless(fell: Collapse) -> bool:
    return still(fell) >= STILL and not any(_felt(fell))


def _severity(fell: Collapse, days_ago: int | None) -> Severity:
    ratio = mix(fell)
    is_other = ratio is not None and not 1 / MIX <= ratio <= MIX
    is_passing = is_other or _is_harmless(fell) or days_ago is not None
    return "info" if is_passing or fell.blocks * BLOCK_S < HELD_S else "warning"


def _of_harm(fell: Collapse, days_ago: int | None, cache: Cache) -> Iterator[Evidence]:
    yield from _felt(fell)
    if _is_harmless(fell):
        text = f"it hits {still(fell):.0%} as often a second as before (limit {STILL:.0%}): more is asked, not less found"
        yield Evidence(text=text, metric=cache.hits)
    if days_ago is not None:
        when = "yesterday" if days_ago == 1 else f"{days_ago} days ago"
        yield Evidence(text=f"it fell at this time of the day {when} as well, and came back", metric=cache.hits)


def finding_of(engine: str, cache: Cache, fell: Collapse, now_s: float, days_ago: int | None = None) -> Finding:
    """`cache_hit_collapse`, told of what the rule found. `days_ago` is when it was so at the same time of the day, None if
    never."""
    lasted_s = fell.blocks * BLOCK_S
    before, since = (block.hits / block.queries for block in (fell.before, fell.since))
    was = f"of what was looked up in its {cache.name}"
    if fell.is_off:
        now = f"its {cache.name} is not asked any more"
        text = f"nothing was looked up in its {cache.name} in the last {lasted_s:.0f} s, and {fell.since.ended:.0f} requests ended"
    else:
        now = f"its {cache.name} hits {since:.0%}"
        text = f"{since:.0%} {was} in the last {lasted_s:.0f} s was there"
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity=_severity(fell, days_ago),
        since_s=now_s - lasted_s,
        summary=f"engine {engine}: {now}, and hit {before:.0%} before",
        evidence=(
            Evidence(text=f"{text}, {before:.0%} before (limit {LOW:g} times as much)", metric=cache.hits),
            Evidence(
                text=f"{fell.before.queries:.0f} lookups before that, {fell.before.hits:.0f} of them hits", metric=cache.queries
            ),
            *_of_mix(fell),
            *_of_harm(fell, days_ago, cache),
        ),
        advice=cache.advice,
    )
