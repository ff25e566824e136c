"""One verdict about a whole recording: the same rules as live, over all of it, and the gravest that stood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from aie_agent.analysis.leaks import evidence
from aie_agent.analysis.leaks.followed import Followed
from aie_agent.analysis.leaks.lines import ACCOUNTING, IN_WORDS, LeakClass, Sample
from aie_agent.analysis.leaks.lives import Lives
from aie_agent.analysis.leaks.over_days import DayRise, Plateau, has_paused, plateau, rises_by_days
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.sentences import MOST_OF_SUSPICION, confidence, in_hours, rate
from aie_agent.analysis.leaks.settings import TIERS, LeakSettings, Level
from aie_agent.analysis.leaks.standing import RANK, Standing, level_with
from aie_agent.analysis.leaks.watch import Found, Watch

Verdict = Literal["none", "suspect", "leak", "fragmentation", "retention", "accounting", "not_enough_data"]

_BY_CLASS: Final[dict[LeakClass, Verdict]] = {"fragmentation": "fragmentation", "kv_accounting": "accounting"}
_STANDS: Final = ("", "restarted")
"""A leak that ended so was one. One that stopped was not, and one that ended with all of it given back was retention."""
_OF_A_DAY: Final = frozenset(tier.name for tier in TIERS if tier.level == "leak")
"""Floors of 8 h still rise where those of 4 h have stopped. What they alone see pauses for up to half a day: steps."""
_MOST: Final = 0.5
_FILLS_DAYS: Final = 2.0
"""A cache is there to fill: a whole file of it, and two days at least, tell that it does not end."""
_RETAINED: Final = ("probed", "returned")


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
    whole = followed.whole
    lives = followed.repeats.told(whole.by)
    notes = (*([evidence.KEPT] if _is_kept(followed) else []), *evidence.notes(followed, seen, settings))
    chosen = _decided(followed, settings, capacity_bytes)
    by_days = rises_by_days(whole.bins, whole.by, settings)
    if by_days is not None and (chosen is None or chosen.verdict == "retention"):
        return _of_days(by_days, chosen, followed, settings, notes)
    if chosen is None:
        return _of_nothing(followed, lives, seen, settings, notes)
    verdict, found, watch, said = chosen
    full = _full(watch, found, capacity_bytes)
    again = () if lives is None else (evidence.of_lives(lives),)
    why = (*evidence.of_found(found, watch, settings), *said, *again, *evidence.others(watch, found))
    sure = MOST_OF_SUSPICION if said else confidence(found.standing)
    return _verdict(verdict, found, sure, (*why, *(full[1:] if full else ()), *notes), full[0] if full else None)


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
        return plain._replace(verdict="suspect", said=(_over(plain.found, followed),))
    return cut


def _chosen(watch: Watch, followed: Followed, settings: LeakSettings, capacity_bytes: float | None) -> _Chosen | None:
    told = [each for each in (*watch.found(), *watch.past) if _is_told(each, followed)]
    ends = [(each, _plateau(each, watch, followed, settings)) for each in told]
    best = _choose([(each, _level(each, watch, settings, capacity_bytes)) for each, end in ends if not end])
    stood = max((each for each, end in ends if end == "stands"), key=lambda each: RANK[each.standing.level], default=None)
    if stood is not None and (best is None or (best[0] == "suspect" and stood.standing.level == "leak")):
        return _Chosen("suspect", stood, watch, (evidence.PAUSED,))
    if best is None:
        return None
    if best[0] == "leak" and _has_paused(best[1], watch, settings):
        return _Chosen("suspect", best[1], watch, (evidence.PAUSED,))
    return _Chosen(*best, watch)


def _plateau(found: Found, watch: Watch, followed: Followed, settings: LeakSettings) -> Plateau:
    """Whether the life that runs has come to where an earlier one was restarted, and stands there: both filled a cache, or leaked
    until nobody asked for anything."""
    line = watch.lines.get(found.line.name)
    if line is None or found.how != "restarted":
        return ""
    return plateau(line.kept_bins, line.adjust, found.standing, followed.whole, settings)


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
    why = evidence.of_days(rise, settings)
    if chosen is not None:
        why += (*evidence.of_found(chosen.found, chosen.watch, settings), evidence.REMAINS)
    since_s = followed.repeats.begin_s(rise.begin_bin)
    return WholeVerdict("suspect", "unknown", rise.slope, since_s, MOST_OF_SUSPICION, None, (*why, *notes))


def _is_told(found: Found, followed: Followed) -> bool:
    """Whether what rises is something: what a cache holds at idle is only where it is told that it is lost."""
    return found.line.name != ACCOUNTING.name or followed.cache_use.tells_lost


def _is_kept(followed: Followed) -> bool:
    """Whether what a cache holds at idle rises, and nobody tells that it is lost."""
    return not all(_is_told(each, followed) for each in (*followed.watch.found(), *followed.watch.past))


def _verdict(verdict: Verdict, found: Found, sure: float | None, why: Sequence[str], full_s: float | None = None) -> WholeVerdict:
    slope, since_s = found.standing.slope.value, found.standing.since_s
    return WholeVerdict(verdict, found.leak_class, slope, since_s, sure, full_s, tuple(why))


def _of_nothing(followed: Followed, lives: Lives | None, seen: Seen, settings: LeakSettings, notes: Sequence[str]) -> WholeVerdict:
    """Where no line was found to rise by itself: what repeats, or goes on over restarts, or is a cache, may leak all the same."""
    watch = followed.watch
    beside = _beside(followed, settings)
    if beside is not None:
        found, by, said = beside
        return _verdict("suspect", found, MOST_OF_SUSPICION, (*evidence.of_found(found, by, settings), said, *notes))
    filled = _filled(followed, settings)
    again = () if lives is None else (evidence.of_lives(lives),)
    nothing = evidence.why_nothing(followed, settings, has_filled=filled)
    why = (*again, *nothing, *evidence.risen(followed), *notes)
    lives = None if filled else lives
    if lives is not None and lives.restarted:
        return WholeVerdict("suspect", "unknown", lives.slope, lives.since_s, MOST_OF_SUSPICION, None, why)
    with_load = any(line.may_be_load for line in watch.lines.values())
    doubted = with_load or (lives is not None and lives.is_large) or followed.bursts is not None or followed.is_tiny
    is_known = followed.is_judged and not doubted and not seen.shares_times
    return WholeVerdict("none" if is_known else "not_enough_data", None, None, None, None, None, why)


def _filled(followed: Followed, settings: LeakSettings) -> bool:
    return any(_plateau(each, followed.watch, followed, settings) == "filled" for each in followed.watch.past)


def _beside(followed: Followed, settings: LeakSettings) -> tuple[Found, Watch, str] | None:
    """A line that rises for a day over restarts and loads, or a cache that does for two; what sees it, and what else it may be."""
    if followed.through is not None:
        found = [each for each in followed.through.found() if _is_told(each, followed) and each.standing.level == "leak"]
        if found:
            return found[0], followed.through, _over(found[0], followed)
    caches = [each for each in followed.caches.found() if each.standing.level == "leak"]
    if caches and _grows_on(caches[0].standing, followed, settings):
        return caches[0], followed.caches, evidence.CACHE
    return None


def _over(found: Found, followed: Followed) -> str:
    """That it goes on over events: those that are named since it rises."""
    return evidence.OVER.format(events=followed.events_since(found.standing.since_s))


def _grows_on(standing: Standing, followed: Followed, settings: LeakSettings) -> bool:
    """Whether a cache has grown for longer than caches fill, and takes memory: one in a pool of fixed size takes none."""
    if followed.caches.last.time_s - standing.since_s < _FILLS_DAYS * settings.day_s:
        return False
    risen = followed.repeats.risen
    return risen is not None and risen[1] - risen[0] >= _MOST * (standing.peak.size_bytes - standing.base.size_bytes)


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


def as_words(verdict: WholeVerdict) -> str:
    """The verdict's first line, for people."""
    if verdict.leak_class is None or verdict.rate_bytes_per_s is None or verdict.since_s is None:
        return verdict.verdict.replace("_", " ")
    return f"{verdict.verdict}: {IN_WORDS[verdict.leak_class]}, {rate(verdict.rate_bytes_per_s)} since {verdict.since_s:.0f} s"
