"""One verdict about a whole recording: the same rules as live, over all of it, and the gravest that stood."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from aie_agent.analysis.leaks.block_floors import NO_ADJUST
from aie_agent.analysis.leaks.followed import Followed
from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.lines import ACCOUNTING, CACHES, IN_WORDS, LINES, LeakClass, LineSpec, Sample
from aie_agent.analysis.leaks.lives import Bursts, Lives
from aie_agent.analysis.leaks.over_days import DayRise, Plateau, Whole, days_of, has_paused, plateau, rises_by_days
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.sentences import MOST_OF_SUSPICION, confidence, in_hours, rate, rule, size
from aie_agent.analysis.leaks.settings import FAST_CELLS, TIERS, LeakSettings, Level
from aie_agent.analysis.leaks.standing import RANK, Standing, level_with
from aie_agent.analysis.leaks.watch import Found, Watch

Verdict = Literal["none", "suspect", "leak", "fragmentation", "retention", "accounting", "not_enough_data"]

_BY_CLASS: Final[dict[LeakClass, Verdict]] = {"fragmentation": "fragmentation", "kv_accounting": "accounting"}
_ENDS: Final = {
    "restarted": "the engine restarted then",
    "returned": "then 70 % of it or more was given back: a flush or a collection, or a restart that no row tells of",
    "probed": "then it was asked for, and half of it or more was given back: that was retained, not lost",
    "stopped": "then it rose no more: a cache or pool that filled",
}

_STANDS: Final = ("", "restarted")
"""A leak that ended so was one. One that stopped was not, and one that ended with all of it given back was retention."""
_OF_A_DAY: Final = frozenset(tier.name for tier in TIERS if tier.level == "leak")
"""Floors of 8 h still rise where those of 4 h have stopped; what they alone see, steps of hours, pauses for less than half a day."""
_MOST: Final = 0.5
_FILLS_DAYS: Final = 2.0
"""A cache is there to fill: a whole file of it, and two days at least, tell that it does not end."""
_RETAINED: Final = ("probed", "returned")
_OVER: Final = (
    "it goes on over restarts and loads, of which {events} are named: none of them gives back what came before. A leak looks so,"
    " and so does what each of them loads and keeps (adapters, graphs), for as long as there are new ones"
)
_CACHE: Final = (
    "it is a cache that grows, and what it holds is no leak of the rest: one without a limit, or with a limit that is not reached"
    " yet; physical memory grows with it"
)
_KEPT: Final = (
    "what the cache holds while no request runs rises: blocks that are lost, or a prefix cache that keeps them; a column"
    " evictable_bytes, what of it no request holds, would tell"
)

_PAUSED: Final = (
    "it has stood still for the last half day: a cache that has filled does so, and a leak that nobody asks anything of"
)
_BY_DAYS: Final = (
    "hour by hour it does not rise steadily: a leak beneath a day's traffic, in steps of half a day or more, or of which a part is"
    " given back looks so; traffic or data that grow from day to day do, too: a column load would tell"
)
_CRASHES: Final = "a leak whose process crashes, or a cache that is cleared; a column event (restart, flush) would tell"
_REMAINS: Final = "what is not given back adds up from day to day"
_FILLED: Final = (
    "the last life came to where an earlier one ended, or higher, and has stood there since, for a day of load or for a long"
    " weekend: a cache or pool that fills, and no leak"
)
_NO_ENGINE_BYTES: Final = 64e6
"""Less than any engine holds, and what one of tens of GB holds in KiB."""


class WholeVerdict(NamedTuple):
    """The verdict about a recording. What it has no number for is None. Rates and times are of the recording's own clock."""

    verdict: Verdict
    leak_class: LeakClass | None
    rate_bytes_per_s: float | None
    since_s: float | None
    confidence: float | None
    time_to_full_s: float | None
    evidence: tuple[str, ...]


def judge(samples: Iterable[Sample], seen: Seen, settings: LeakSettings, capacity_bytes: float | None = None) -> WholeVerdict:
    """The verdict about samples, times ascending. `seen` is what their reader noted; `capacity_bytes`, where it is known, is what
    the memory is full at."""
    followed = Followed(settings)
    followed.take(samples)
    whole = _whole(followed)
    lives = followed.repeats.told(whole.by)
    notes = (*([_KEPT] if _is_kept(followed) else []), *_notes(followed, seen, settings))
    chosen = _decided(followed, settings, capacity_bytes)
    by_days = rises_by_days(whole.bins, whole.by, settings)
    if by_days is not None and (chosen is None or chosen.verdict == "retention"):
        return _of_days(by_days, chosen, followed, settings, notes)
    if chosen is None:
        return _of_nothing(followed, lives, seen, settings, notes)
    verdict, found, watch, said = chosen
    full = _full(watch, found, capacity_bytes)
    again = () if lives is None else (_in_words(lives),)
    evidence = (*_evidence(found, watch, settings), *said, *again, *_others(watch, found), *(full[1:] if full else ()), *notes)
    sure = MOST_OF_SUSPICION if said else confidence(found.standing)
    return _verdict(verdict, found, sure, evidence, full[0] if full else None)


class _Chosen(NamedTuple):
    verdict: Verdict
    found: Found
    watch: Watch
    said: tuple[str, ...] = ()


def _decided(followed: Followed, settings: LeakSettings, capacity_bytes: float | None) -> _Chosen | None:
    """The gravest of what rises. An event takes from that and adds nothing: it is no graver than without events, nor than what
    rises from their warm-ups on. A leak that goes on over them is a suspicion."""
    plain = _chosen(followed.watch, followed, settings, capacity_bytes)
    if plain is None or followed.fresh is None:
        return plain
    cut = _chosen(followed.fresh, followed, settings, capacity_bytes)
    if cut is not None and (plain.verdict == "suspect" or cut.verdict != "suspect"):
        return plain
    if plain.found.standing.level == "leak" and not plain.found.how:
        return plain._replace(verdict="suspect", said=(_OVER.format(events=followed.events),))
    return cut


def _chosen(watch: Watch, followed: Followed, settings: LeakSettings, capacity_bytes: float | None) -> _Chosen | None:
    told = [each for each in (*watch.found(), *watch.past) if _is_told(each, followed)]
    ends = [(each, _plateau(each, watch, followed, settings)) for each in told]
    best = _choose([(each, _level(each, watch, settings, capacity_bytes)) for each, end in ends if not end])
    stood = max((each for each, end in ends if end == "stands"), key=lambda each: RANK[each.standing.level], default=None)
    if stood is not None and (best is None or (best[0] == "suspect" and stood.standing.level == "leak")):
        return _Chosen("suspect", stood, watch, (_PAUSED,))
    if best is None:
        return None
    if best[0] == "leak" and _has_paused(best[1], watch, settings):
        return _Chosen("suspect", best[1], watch, (_PAUSED,))
    return _Chosen(*best, watch)


def _plateau(found: Found, watch: Watch, followed: Followed, settings: LeakSettings) -> Plateau:
    """Whether the life that runs has come to where an earlier one was restarted, and stands there: both filled a cache, or leaked
    until nobody asked for anything."""
    line = watch.lines.get(found.line.name)
    if line is None or found.how != "restarted":
        return ""
    return plateau(line.kept_bins, line.adjust, found.standing, _whole(followed), settings)


def _whole(followed: Followed) -> Whole:
    physical = followed.watch.lines.get("physical")
    return Whole(followed.repeats.bins, NO_ADJUST if physical is None else physical.adjust)


def _has_paused(found: Found, watch: Watch, settings: LeakSettings) -> bool:
    """Whether what rose for a day stands still for half a day, and no load tells that nothing was asked of it."""
    line = watch.lines.get(found.line.name)
    if line is None or found.how or found.standing.tier not in _OF_A_DAY or found.standing.load > 0:
        return False
    return has_paused(line.bins, line.adjust, found.standing, settings)


def _of_days(
    rise: DayRise, chosen: _Chosen | None, followed: Followed, settings: LeakSettings, notes: Sequence[str]
) -> WholeVerdict:
    """Where no block of hours rises as a leak does, and the least memory of each day does."""
    limit = rate(settings.limit_bytes_per_s)
    grown = f"from {size(rise.first_bytes)} on the first day to {size(rise.last_bytes)} on the last"
    evidence = [
        f"physical memory: the least of each of the last {rise.days} days rose {grown}, by {rate(rise.slope)} (limit {limit})",
        _BY_DAYS,
    ]
    if chosen is not None:
        evidence += [*_evidence(chosen.found, chosen.watch, settings), _REMAINS]
    since_s = followed.repeats.begin_s(rise.begin_bin)
    return WholeVerdict("suspect", "unknown", rise.slope, since_s, MOST_OF_SUSPICION, None, (*evidence, *notes))


def _is_told(found: Found, followed: Followed) -> bool:
    """Whether what rises is something: what a cache holds at idle is only where it is told that it is lost."""
    return found.line.name != ACCOUNTING.name or followed.cache_use.tells_lost


def _is_kept(followed: Followed) -> bool:
    """Whether what a cache holds at idle rises, and nobody tells that it is lost."""
    return not all(_is_told(each, followed) for each in (*followed.watch.found(), *followed.watch.past))


def _verdict(
    verdict: Verdict, found: Found, sure: float | None, evidence: Sequence[str], full_s: float | None = None
) -> WholeVerdict:
    slope, since_s = found.standing.slope.value, found.standing.since_s
    return WholeVerdict(verdict, found.leak_class, slope, since_s, sure, full_s, tuple(evidence))


def _of_nothing(followed: Followed, lives: Lives | None, seen: Seen, settings: LeakSettings, notes: Sequence[str]) -> WholeVerdict:
    """Where no line was found to rise by itself: what repeats, or goes on over restarts, or is a cache, may leak all the same."""
    watch = followed.watch
    beside = _beside(followed, settings)
    if beside is not None:
        found, by, said = beside
        evidence = (*_evidence(found, by, settings), said, *notes)
        return _verdict("suspect", found, MOST_OF_SUSPICION, evidence)
    evidence = (*(() if lives is None else (_in_words(lives),)), *_quiet(followed, settings), *_risen(followed), *notes)
    lives = None if _filled(followed, settings) else lives
    if lives is not None and lives.restarted:
        return WholeVerdict("suspect", "unknown", lives.slope, lives.since_s, MOST_OF_SUSPICION, None, evidence)
    with_load = any(line.may_be_load for line in watch.lines.values())
    doubted = with_load or (lives is not None and lives.is_large) or _bursts(followed) is not None or _is_tiny(followed)
    is_known = _is_judged(followed) and not doubted and not seen.shares_times
    return WholeVerdict("none" if is_known else "not_enough_data", None, None, None, None, None, evidence)


def _filled(followed: Followed, settings: LeakSettings) -> bool:
    return any(_plateau(each, followed.watch, followed, settings) == "filled" for each in followed.watch.past)


def _bursts(followed: Followed) -> Bursts | None:
    return followed.repeats.bursts(_whole(followed).by)


def _is_tiny(followed: Followed) -> bool:
    """Whether all of its memory is less than an engine has: bytes would say another thing."""
    bins = followed.repeats.bins
    return bool(bins) and max(each.low.size_bytes for each in bins) < _NO_ENGINE_BYTES


def _beside(followed: Followed, settings: LeakSettings) -> tuple[Found, Watch, str] | None:
    """A line that rises for a day over restarts and loads, or a cache that does for two; what sees it, and what else it may be."""
    if followed.through is not None:
        found = [each for each in followed.through.found() if _is_told(each, followed) and each.standing.level == "leak"]
        if found:
            return found[0], followed.through, _OVER.format(events=followed.events)
    caches = [each for each in followed.caches.found() if each.standing.level == "leak"]
    if caches and _grows_on(caches[0].standing, followed, settings):
        return caches[0], followed.caches, _CACHE
    return None


def _grows_on(standing: Standing, followed: Followed, settings: LeakSettings) -> bool:
    """Whether a cache has grown for longer than caches fill, and takes memory: one in a pool of fixed size takes none."""
    if followed.caches.last.time_s - standing.since_s < _FILLS_DAYS * settings.day_s:
        return False
    risen = followed.repeats.risen
    return risen is not None and risen[1] - risen[0] >= _MOST * (standing.peak.size_bytes - standing.base.size_bytes)


def _risen(followed: Followed) -> Iterator[str]:
    """What rose where nothing can be said of it."""
    risen = followed.repeats.risen
    if risen is not None and risen[1] > risen[0] and not _is_judged(followed):
        first, last = risen
        yield f"over the whole recording physical memory rose by {size(last - first)}, from {size(first)} to {size(last)}"


def _in_words(lives: Lives) -> str:
    falls = "falls at restarts" if lives.restarted else "falls back at once"
    each = f"each of {lives.times} lives by {size(lives.risen_bytes)}, at {rate(lives.slope)} from {size(lives.first_bytes)}"
    told = f"physical memory rises in {each}, and {falls}"
    if lives.restarted:
        return f"{told}: a leak that is restarted before it is a day old looks so"
    return f"{told}: {_CRASHES}"


def _full(watch: Watch, found: Found, capacity_bytes: float | None) -> tuple[float, str] | None:
    """In how many seconds the memory is full, and a sentence; None where its size is not known, or it rises no more."""
    last = watch.last.physical_bytes
    if capacity_bytes is None or last is None or found.how:
        return None
    left, slope = max(capacity_bytes - last, 0.0), found.standing.slope
    text = f"at this rate it is full in {in_hours(left / slope.value)}, in {in_hours(left / slope.high)} at the earliest"
    return left / slope.value, text


def _level(found: Found, watch: Watch, settings: LeakSettings, capacity_bytes: float | None) -> Level:
    full = _full(watch, found, capacity_bytes)
    return level_with(found.standing, full[0] if full else None, settings)


def _choose(everything: Sequence[tuple[Found, Level]]) -> tuple[Verdict, Found] | None:
    """The gravest of all that stood: a leak that goes on or was cut short, then what was given back, then a suspicion."""
    leaks = [each for each, level in everything if level == "leak" and each.how in _STANDS]
    if leaks:
        worst = max(leaks, key=lambda each: (not each.line.total, each.standing.slope.value))
        return _BY_CLASS.get(worst.leak_class, "leak"), worst
    retained = [each for each, _ in everything if each.how in _RETAINED]
    if retained:
        return "retention", retained[-1]
    suspects = [each for each, level in everything if level == "suspect" and each.how in _STANDS]
    return ("suspect", suspects[0]) if suspects else None


def _evidence(found: Found, watch: Watch, settings: LeakSettings) -> Iterator[str]:
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


def _others(watch: Watch, chosen: Found) -> Iterator[str]:
    for name, line in watch.lines.items():
        if name != chosen.line.name and line.standing.level == "none" and not chosen.how:
            risen = line.risen_since(chosen.standing.since_s)
            spec = _spec(name)
            if risen is not None and not spec.total:
                yield f"{spec.words} changed by {size(risen)} meanwhile"


def _spec(name: str) -> LineSpec:
    return next(spec for spec in (*LINES, ACCOUNTING, CACHES) if spec.name == name)


def _is_judged(followed: Followed) -> bool:
    """Whether nothing found means that nothing rises: not where something rises over events, and each stretch is too short."""
    watch = followed.watch
    return watch.judged and (followed.cut.judged or not (watch.found() or watch.past))


def _quiet(followed: Followed, settings: LeakSettings) -> Iterator[str]:
    """Why nothing was found."""
    watch = followed.watch
    for name, line in watch.lines.items():
        if line.may_be_load:
            told = "rises evenly with the load: whether requests need it or it leaks is not told by that"
            yield f"{_spec(name).words} {told}{_beyond_load(line)}"
    if not _is_judged(followed):
        need = in_hours(settings.warm_up_s + 12 * 3600 / settings.time_scale)
        quiet = in_hours(settings.warm_up_s + FAST_CELLS * settings.cell_s)
        yield f"too short without a break: a warm-up and six floors of two hours take {need}, quiet counters {quiet}"
        return
    for name, line in watch.lines.items():
        floors = line.floors
        if floors is not None and not line.may_be_load:
            yield f"{_spec(name).words}: no steady rise above {rate(settings.limit_bytes_per_s)}, last floor {size(floors[1])}"
            yield from _of_caches(line)
    yield from _over_all(followed, settings)
    for each in watch.past:
        yield f"{each.line.words} rose by {rate(each.standing.slope.value)}; {_ENDS[each.how]}"


def _over_all(followed: Followed, settings: LeakSettings) -> Iterator[str]:
    """What the whole file says beside its blocks of hours."""
    days = days_of(*_whole(followed))
    if len(days) > 1:
        yield f"the least of its first whole day is {size(days[0][0])}, of its last one {size(days[-1][0])}"
    bursts = _bursts(followed)
    if bursts is not None:
        levels = f"from {size(bursts.first_bytes)} to {size(bursts.last_bytes)}"
        yield f"{bursts.times} times it rose {levels} within eight hours, and fell back at once: {_CRASHES}"
    if _filled(followed, settings):
        yield _FILLED


def _beyond_load(line: Line) -> str:
    """A warning: so much of the rise may be a leak."""
    grown, apart_s = line.risen or (0.0, 0.0)
    if grown <= 0 or apart_s <= 0:
        return ""
    told = f"; warning: {size(grown)} in {in_hours(apart_s)}, {rate(grown / apart_s)}, are beyond what is known to go with requests"
    each = f" ({size(line.bytes_per_load)} each)" if line.bytes_per_load >= 1 else ""
    return f"{told}{each}; half a day of steady load would tell"


def _notes(followed: Followed, seen: Seen, settings: LeakSettings) -> Iterator[str]:
    """What limits the verdict."""
    watch, restarts = followed.watch, followed.cut.restarts
    if restarts:
        yield f"{restarts} times the engine restarted or loaded something: its warm-up began anew each time"
    if _is_tiny(followed):
        yield f"all of it is less than {size(_NO_ENGINE_BYTES)}, which is no engine's: if it is in KiB or MB, nothing here is meant"
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


def as_words(verdict: WholeVerdict) -> str:
    """The verdict's first line, for people."""
    if verdict.leak_class is None or verdict.rate_bytes_per_s is None or verdict.since_s is None:
        return verdict.verdict.replace("_", " ")
    return f"{verdict.verdict}: {IN_WORDS[verdict.leak_class]}, {rate(verdict.rate_bytes_per_s)} since {verdict.since_s:.0f} s"
