"""When an engine's threads wait for each other: at a lock of its own or its libraries' (`lock_contention`), or at Python's
interpreter lock (`gil_contention`).

The rule: so many threads, on average over the last seconds, waited for a lock; and so did half as many in most of these seconds
taken one by one, so that a burst that is over within two seconds is none, however many threads were in it. For the interpreter
lock these are ten seconds, or six in each of which so many waited: a burst of up to five seconds is none either way. A finding
ends when fewer than half as many wait, however long ago it began; one of the interpreter lock when over the last minute fewer than
a quarter did. Nothing is estimated: waiting time as the kernel saw it is added up.

What it takes for a lock comes from the probes: a futex whose wakers have waited for it themselves. Workers that wait for work
at a queue or a condition are of kind "idle", however many, and never count. One thread alone never waits for the GIL.

When it is wrong: where two threads hand each other work through one bounded queue, each waiting for the other, its lock looks
like one that is fought for; threads may wait for a lock while nobody waits for them (a logger's): then it is true that they wait,
and of no matter; and workers that sleep each on a semaphore of its own (oneTBB's) look so where they are woken without work and
sleep again within 50 us. No other false alarm is known, in no length of time: an engine whose threads wait for locks less than the
threshold in all of these windows is never reported; one that does so in its normal work is reported for as long as it does. What
waits near the threshold crosses it now and then: in a simulated hour of 0.6 to 0.8 threads on average, 0.2 to 0.3 up and down from
second to second, the ten seconds alone find 0 to 28 episodes. As one goes on until a quarter is left, that is one in any ten
minutes, and up to three where the load itself swings from nothing to twice the mean within half a minute. What cannot be seen is a
lock that spins, and one (not glibc's mutex) that its owner takes back ahead of those that it woke, more than 19 times in 20.

A pool of the standard library hands its queue, a lock in C, from worker to worker while it is drained, and its workers wait there
while they have nothing to do: to the kernel that is a fight. So for a lock the first look at the stacks is waited for, for
`_PATIENCE_S`, and what was waited for where only such workers wait is taken off. Without stacks (no py-spy, no privilege) a busy
pool is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Final, NamedTuple

from aie_agent.analysis.findings import Stacks, View
from aie_agent.analysis.window import gain, rate
from aie_agent.series import Series
from aie_telemetry.api import Evidence, Finding, Lock

WAIT_SECONDS: Final = "aie_process_wait_seconds_total"
LOCK_CONTENTION: Final = "lock_contention"
LOCK_WAITS: Final = "aie_process_lock_waits_total"

_LOCKS_SHOWN: Final = 3
_PATIENCE_S: Final = 3.0


class Unbroken(NamedTuple):
    """A shorter time that is enough as well, where each of its steps rises by at least so much a second: what is without a break
    needs no long look. Such a step must weigh more than one of the window, or a shorter window is all that this is."""

    for_s: float
    least: float


class _GoesOn(NamedTuple):
    """What was found goes on while at least so many threads wait, on average over so long: what waits about as much as it takes to
    begin is one finding then, and not one each time that it crosses that."""

    threads: float
    window_s: float


class _Rule(NamedTuple):
    """One cause: which reason of waiting, how many threads on average over how long, in words, and what to do."""

    cause: str
    reason: str
    threads: float
    window_s: float
    summary: str
    advice: str
    unbroken: Unbroken | None = None
    goes_on: _GoesOn | None = None


_LOCK: Final = _Rule(
    cause=LOCK_CONTENTION,
    reason="lock",
    threads=0.5,
    window_s=5.0,
    summary="engine {engine}: {mean:.1f} of its threads wait for a lock that another holds",
    advice="See who holds it (`aie-agent stacks --engine {engine}`, as root): hold it for less, or give each thread its own.",
)
_GIL: Final = _Rule(
    cause="gil_contention",
    reason="gil",
    threads=1.0,
    window_s=10.0,
    summary="engine {engine}: {mean:.1f} of its threads wait for Python's interpreter lock",
    advice=(
        "See which threads run Python code (`aie-agent stacks --engine {engine}`, as root), and move what is not the model loop"
        " (tokenising, JSON, logging) into another process."
    ),
    unbroken=Unbroken(for_s=6.0, least=1.0),
    goes_on=_GoesOn(threads=0.25, window_s=60.0),
)


class Episode(NamedTuple):
    """Threads that wait: since when, and how many at present, on average over the last `window_s`."""

    since_s: float
    mean: float
    window_s: float


def lock_contention(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `lock_contention` at `now_s`, or None."""
    return _finding(_LOCK, view, engine, now_s)


def gil_contention(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `gil_contention` at `now_s`, or None."""
    return _finding(_GIL, view, engine, now_s)


def contended(view: View, engine: str, now_s: float) -> tuple[str, ...]:
    """The causes of which stacks are to be looked at: threads wait, and maybe only for work."""
    return tuple(rule.cause for rule in (_LOCK, _GIL) if _raw(rule, view, engine, now_s) is not None)


def _raw(rule: _Rule, view: View, engine: str, now_s: float) -> Episode | None:
    if view.state(engine) == "down":
        return None
    current = [each for each in view.store.scalars(WAIT_SECONDS, engine=engine, reason=rule.reason) if each.valid_until_s >= now_s]
    if not current:
        return None
    held_since_s = view.held_since_s(rule.cause, engine)
    found = episode(current[0], rule.threads, rule.threads / 2, rule.window_s, None, rule.unbroken, held_since_s)
    return found or _going_on(rule, current, held_since_s, now_s)


def _going_on(rule: _Rule, current: Sequence[Series], held_since_s: float | None, now_s: float) -> Episode | None:
    """What was found before and has not ended."""
    if rule.goes_on is None or held_since_s is None:
        return None
    mean = rate(current[:1], now_s - rule.goes_on.window_s, now_s)
    return Episode(held_since_s, mean, rule.goes_on.window_s) if mean is not None and mean >= rule.goes_on.threads else None


def _without_idle(rule: _Rule, found: Episode, locks: Sequence[Lock], stacks: Stacks) -> Episode | None:
    """Less the share of waiting that was idle workers'; None where too little is left."""
    waited = sum(lock.waiting_threads for lock in locks)
    idle = sum(lock.waiting_threads for lock in locks if (lock.tgid, int(lock.address, 16)) in stacks.idle)
    if rule.reason == "gil" or not idle:
        return found
    mean = found.mean * (1.0 - idle / waited)
    return found._replace(mean=mean) if mean >= rule.threads / 2 else None


def _finding(rule: _Rule, view: View, engine: str, now_s: float) -> Finding | None:
    raw = _raw(rule, view, engine, now_s)
    seen = view.stacks(engine, rule.cause) if raw is not None else None
    if raw is None or (rule.reason == _LOCK.reason and seen is None and now_s - raw.since_s < _PATIENCE_S):
        return None
    stacks = seen or Stacks()
    locks = [lock for lock in view.locks(engine) if lock.kind == rule.reason]
    found = _without_idle(rule, raw, locks, stacks)
    if found is None:
        return None
    return Finding(
        cause=rule.cause,
        subject=engine,
        severity="warning",
        since_s=found.since_s,
        summary=rule.summary.format(engine=engine, mean=found.mean),
        evidence=tuple(_evidence(rule, found, view, engine, now_s, stacks, locks)),
        advice=rule.advice.format(engine=engine),
        not_visible=stacks.problems,
    )


def episode(
    series: Series,
    begins: float,
    ends: float,
    window_s: float,
    least: float | None = None,
    unbroken: Unbroken | None = None,
    held_since_s: float | None = None,
) -> Episode | None:
    """Whether a counter of seconds says that at least `begins` threads waited, and since then at no time fewer than `ends`; each an
    average over `window_s`. It begins only where most of its steps by themselves reach `least` (`ends`, if that is None); or as
    soon as it was `unbroken`. Looks as far back as the series goes; before its first window nothing else is said. What was found
    before, since `held_since_s`, goes on if it began earlier than the series can tell, and has not ended in it."""
    least = ends if least is None else least
    points = list(series.ring.since(0.0))
    times = [time_s for time_s, _ in points]
    steps = [gain(before, after) for (_, before), (_, after) in pairwise(points)]
    waited = list(accumulate(steps, initial=0.0))
    since_s = held_since_s if held_since_s is not None and times and held_since_s < times[0] + window_s else None
    mean, over_s, first, short = 0.0, 0.0, 0, 0
    for now, time_s in enumerate(times):
        first = _window(times, first, now, window_s)
        short = _window(times, short, now, window_s if unbroken is None else unbroken.for_s)
        is_full = times[first] <= time_s - window_s
        if is_full:
            over_s = time_s - times[first]
            mean = (waited[now] - waited[first]) / over_s
        if since_s is not None:
            since_s = None if is_full and mean < ends else since_s
        elif is_full and mean >= begins and median(_rates(times, steps, first, now)) >= least:
            since_s = time_s
        elif unbroken is not None and _is_unbroken(times, steps, short, now, unbroken):
            since_s, over_s = time_s, time_s - times[short]
            mean = (waited[now] - waited[short]) / over_s
    return None if since_s is None or not over_s else Episode(since_s, mean, over_s)


def _window(times: Sequence[float], first: int, now: int, window_s: float) -> int:
    """The point from which at least `window_s` have passed, the last of them, not before `first`; else the first there is."""
    while first + 1 < now and times[first + 1] <= times[now] - window_s:
        first += 1
    return first


def _rates(times: Sequence[float], steps: Sequence[float], first: int, now: int) -> list[float]:
    """Of each step between two points, how much a second; at least one."""
    pairs = zip(range(first, now), pairwise(times[first : now + 1]), strict=True)
    return [steps[at] / (after - before) for at, (before, after) in pairs if after > before] or [0.0]


def _is_unbroken(times: Sequence[float], steps: Sequence[float], first: int, now: int, unbroken: Unbroken) -> bool:
    """Whether so long is known, and each step of it reaches what it must."""
    if times[first] > times[now] - unbroken.for_s or steps[now - 1] < unbroken.least * (times[now] - times[now - 1]):
        return False
    return min(_rates(times, steps, first, now)) >= unbroken.least


def _evidence(
    rule: _Rule, found: Episode, view: View, engine: str, now_s: float, stacks: Stacks, locks: Sequence[Lock]
) -> Iterator[Evidence]:
    what = "Python's interpreter lock" if rule.reason == "gil" else "locks"
    text = f"its threads waited for {what} {found.mean:.2f} s a second in total over the last {found.window_s:.0f} s"
    yield Evidence(text=f"{text} ({_limit(rule, found)})", metric=WAIT_SECONDS)
    waits = rate(view.store.scalars(LOCK_WAITS, engine=engine, kind=rule.reason), now_s - rule.window_s, now_s)
    if waits is not None:
        yield Evidence(text=f"{waits:.0f} such waits a second", metric=LOCK_WAITS)
    fought = [lock for lock in locks if (lock.tgid, int(lock.address, 16)) not in stacks.idle]
    for lock in fought[:_LOCKS_SHOWN]:
        yield Evidence(text=_lock(lock), metric=LOCK_WAITS)
        yield from (Evidence(text=f"at lock {lock.address} {text}", metric=LOCK_WAITS) for text in lock.native)
    for sentence in stacks.gil if rule.reason == "gil" else stacks.locks:
        yield Evidence(text=sentence, metric=WAIT_SECONDS)


def _limit(rule: _Rule, found: Episode) -> str:
    """What it took to begin; and where less waits than that now, what it takes to go on."""
    begins = f"limit {rule.threads:g}"
    if found.mean >= rule.threads:
        return begins
    ends = rule.goes_on or _GoesOn(rule.threads / 2, rule.window_s)
    return f"{begins}; once begun, it ends below {ends.threads:g} over {ends.window_s:g} s"


def _lock(lock: Lock) -> str:
    name = "the interpreter lock" if lock.kind == "gil" else f"lock {lock.address}" + (f", {lock.line}" if lock.line else "")
    return (
        f"{name} of process {lock.tgid}: {lock.waiting_threads:.2f} threads waited on average, {lock.waits_per_second:.0f} waits a"
        f" second, the longest {lock.longest_seconds:.3f} s, {lock.waiters} threads wait now"
    )
