"""What is said of a recording beside its verdict: what rises and how, why nothing does, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.leaks.followed import NO_ENGINE_BYTES, Followed
from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.lines import ACCOUNTING, CACHES, LINES, LineSpec
from aie_agent.analysis.leaks.lives import Lives
from aie_agent.analysis.leaks.over_days import DayRise, days_of
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.sentences import in_hours, rate, rule, size
from aie_agent.analysis.leaks.settings import FAST_CELLS, LeakSettings
from aie_agent.analysis.leaks.watch import Found, Watch

_ENDS: Final = {
    "restarted": "the engine restarted then",
    "returned": "then 70 % of it or more was given back: a flush or a collection, or a restart that no row tells of",
    "probed": "then it was asked for, and half of it or more was given back: that was retained, not lost",
    "stopped": "then it rose no more: a cache or pool that filled",
}
OVER: Final = (
    "it goes on over restarts and loads, of which {events} are named: none of them gives back what came before. A leak looks so,"
    " and so does what each of them loads and keeps (adapters, graphs), for as long as there are new ones"
)
CACHE: Final = (
    "it is a cache that grows, and what it holds is no leak of the rest: one without a limit, or with a limit that is not reached"
    " yet; physical memory grows with it"
)
KEPT: Final = (
    "what the cache holds while no request runs rises: blocks that are lost, or a prefix cache that keeps them; a column"
    " evictable_bytes, what of it no request holds, would tell"
)
PAUSED: Final = "it has stood still for the last half day: a cache that has filled does so, and a leak that nobody asks anything of"
_BY_DAYS: Final = (
    "hour by hour it does not rise steadily: a leak beneath a day's traffic, in steps of half a day or more, or of which a part is"
    " given back looks so; traffic or data that grow from day to day do, too: a column load would tell"
)
_CRASHES: Final = "a leak whose process crashes, or a cache that is cleared; a column event (restart, flush) would tell"
REMAINS: Final = "what is not given back adds up from day to day"
_FILLED: Final = (
    "the last life came to where an earlier one ended, or higher, and has stood there since, for a day of load or for a long"
    " weekend: a cache or pool that fills, and no leak"
)


def of_found(found: Found, watch: Watch, settings: LeakSettings) -> Iterator[str]:
    """How a line rises, from where to where, what of it is taken off, and how it ended."""
    standing, spec = found.standing, found.line
    by = f"by {rate(standing.slope.value)} ({rate(standing.slope.low)} to {rate(standing.slope.high)})"
    yield f"{spec.words} rises {by}: {rule(standing.tier)} (limit {rate(settings.limit_bytes_per_s)})"
    rose = size(standing.peak.size_bytes - standing.base.size_bytes)
    yield f"its floor rose by {rose}, from {size(standing.base.size_bytes)} to {size(standing.peak.size_bytes)}"
    line = watch.lines.get(spec.name)
    if line is not None and line.bytes_per_load >= 1:
        yield f"{size(line.bytes_per_load)} that go with each request in flight are taken off"
    yield from _of_caches(line)
    if found.leak_class == "unknown":
        yield "which class it is cannot be told: " + (
            "no column says what the allocator holds" if len(watch.lines) == 1 else "no part of it rises by itself"
        )
    if found.how:
        yield _ENDS[found.how]


def _of_caches(line: Line | None) -> Iterator[str]:
    """How much was taken off as what known caches hold."""
    first, last = (0.0, 0.0) if line is None else line.cache_bytes
    if last > 0 or first > 0:
        yield f"what known caches hold is taken off: {size(first)} of the first floor, {size(last)} of the last"


def others(watch: Watch, chosen: Found) -> Iterator[str]:
    """What the lines beside it did meanwhile."""
    for name, line in watch.lines.items():
        if name != chosen.line.name and line.standing.level == "none" and not chosen.how:
            risen = line.risen_since(chosen.standing.since_s)
            spec = _spec(name)
            if risen is not None and not spec.total:
                yield f"{spec.words} changed by {size(risen)} meanwhile"


def _spec(name: str) -> LineSpec:
    return next(spec for spec in (*LINES, ACCOUNTING, CACHES) if spec.name == name)


def of_days(rise: DayRise, settings: LeakSettings) -> tuple[str, ...]:
    """Of the least memory of each day that rises."""
    limit = rate(settings.limit_bytes_per_s)
    grown = f"from {size(rise.first_bytes)} on the first day to {size(rise.last_bytes)} on the last"
    told = f"physical memory: the least of each of the last {rise.days} days rose {grown}, by {rate(rise.slope)} (limit {limit})"
    return told, _BY_DAYS


def of_lives(lives: Lives) -> str:
    """Of rises that repeat."""
    falls = "falls at restarts" if lives.restarted else "falls back at once"
    each = f"each of {lives.times} lives by {size(lives.risen_bytes)}, at {rate(lives.slope)} from {size(lives.first_bytes)}"
    told = f"physical memory rises in {each}, and {falls}"
    if lives.restarted:
        return f"{told}: a leak that is restarted before it is a day old looks so"
    return f"{told}: {_CRASHES}"


def risen(followed: Followed) -> Iterator[str]:
    """What rose where nothing can be said of it."""
    whole = followed.repeats.risen
    if whole is not None and whole[1] > whole[0] and not followed.is_judged:
        first, last = whole
        yield f"over the whole recording physical memory rose by {size(last - first)}, from {size(first)} to {size(last)}"


def why_nothing(followed: Followed, settings: LeakSettings, *, has_filled: bool) -> Iterator[str]:
    """Why nothing was found. `has_filled`: the last life has filled what an earlier one was filling when it was restarted."""
    watch = followed.watch
    for name, line in watch.lines.items():
        if line.may_be_load:
            told = "rises evenly with the load: whether requests need it or it leaks is not told by that"
            yield f"{_spec(name).words} {told}{_beyond_load(line)}"
    if not followed.is_judged:
        need = in_hours(settings.warm_up_s + 12 * 3600 / settings.time_scale)
        quiet = in_hours(settings.warm_up_s + FAST_CELLS * settings.cell_s)
        yield f"too short without a break: a warm-up and six floors of two hours take {need}, quiet counters {quiet}"
        return
    for name, line in watch.lines.items():
        floors = line.floors
        if floors is not None and not line.may_be_load:
            yield f"{_spec(name).words}: no steady rise above {rate(settings.limit_bytes_per_s)}, last floor {size(floors[1])}"
            yield from _of_caches(line)
    yield from _over_all(followed)
    if has_filled:
        yield _FILLED
    for each in watch.past:
        yield f"{each.line.words} rose by {rate(each.standing.slope.value)}; {_ENDS[each.how]}"


def _over_all(followed: Followed) -> Iterator[str]:
    """What the whole file says beside its blocks of hours."""
    days = days_of(*followed.whole)
    if len(days) > 1:
        yield f"the least of its first whole day is {size(days[0][0])}, of its last one {size(days[-1][0])}"
    bursts = followed.bursts
    if bursts is not None:
        levels = f"from {size(bursts.first_bytes)} to {size(bursts.last_bytes)}"
        yield f"{bursts.times} times it rose {levels} within eight hours, and fell back at once: {_CRASHES}"


def _beyond_load(line: Line) -> str:
    """A warning: so much of the rise may be a leak."""
    grown, apart_s = line.risen or (0.0, 0.0)
    if grown <= 0 or apart_s <= 0:
        return ""
    told = f"; warning: {size(grown)} in {in_hours(apart_s)}, {rate(grown / apart_s)}, are beyond what is known to go with requests"
    each = f" ({size(line.bytes_per_load)} each)" if line.bytes_per_load >= 1 else ""
    return f"{told}{each}; half a day of steady load would tell"


def notes(followed: Followed, seen: Seen, settings: LeakSettings) -> Iterator[str]:
    """What limits the verdict."""
    watch, restarts = followed.watch, followed.cut.restarts
    if restarts:
        yield f"{restarts} times the engine restarted or loaded something: its warm-up began anew each time"
    if followed.is_tiny:
        yield f"all of it is less than {size(NO_ENGINE_BYTES)}, which is no engine's: if it is in KiB or MB, nothing here is meant"
    if watch.gaps:
        yield f"{watch.gaps} physical sizes of less than half were passed over: memory was back after each"
    yield from seen.notes
    if seen.missing:
        yield f"{seen.missing} empty or NaN cells of sizes were passed over"
    if watch.zeros:
        yield f"{watch.zeros} physical sizes of 0 were passed over: a process that lives has memory"
    if seen.back_steps:
        yield f"{seen.back_steps} times the clock was set back: the rows after it count on from there"
    if seen.longest_gap_s > settings.bin_s:
        yield f"the longest gap between rows is {in_hours(seen.longest_gap_s)}"
