"""What the last reports said that is no series: single locks by address, and what can be seen of each engine."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from aie_ebpf.messages import Coverage, Lock, Report
from aie_telemetry import api

LOCKS_SHOWN: Final = 5
LOCKS_KEPT: Final = 32
"""Of one engine and report: those that were waited for longest."""
MISSING_SHOWN: Final = 12
"""Most sentences on what one set does not see."""
REASONS_SHOWN: Final = 4
"""Most reasons why a set sees nothing."""
TGIDS_SHOWN: Final = 4
"""Most processes that one of them names."""

_HELD: Final = ("lock", "gil")
_STATES: Final[tuple[api.CoverageState, ...]] = ("on", "part", "off", "none", "window")


class _Seen(NamedTuple):
    """One engine's locks in one report."""

    time_s: float
    period_s: float
    locks: tuple[tuple[int, Lock], ...]
    """With the tgid, since an address means nothing without its process."""


class RecentLocks:
    """The locks of the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: dict[str, deque[_Seen]] = {}

    def take(self, report: Report, now_s: float) -> None:
        """Notes the locks in a report that came at `now_s`, and forgets what is older than the window."""
        found: dict[str, list[tuple[int, Lock]]] = {}
        for process in report.processes:
            if process.waits.lock is not None or process.waits.gil is not None or process.locks:
                found.setdefault(process.engine, []).extend((process.tgid, lock) for lock in process.locks if lock.kind in _HELD)
        for engine, locks in found.items():
            worst = heapq.nlargest(LOCKS_KEPT, locks, key=lambda item: item[1].wait_s)
            self._seen.setdefault(engine, deque()).append(_Seen(now_s, report.period_s, tuple(worst)))
        for engine, seen in list(self._seen.items()):
            while seen and now_s - seen[0].time_s >= self._window_s:
                seen.popleft()
            if not seen:
                del self._seen[engine]

    def of(self, engine: str) -> tuple[api.Lock, ...]:
        """The worst locks of an engine by the time that threads waited for them, over the window or as long as it was watched."""
        seen = self._seen.get(engine)
        if not seen:
            return ()
        watched_s = sum(each.period_s for each in seen)
        by_place: dict[tuple[int, int], list[Lock]] = {}
        for each in seen:
            for tgid, lock in each.locks:
                by_place.setdefault((tgid, lock.address), []).append(lock)
        newest = dict.fromkeys((tgid, lock.address) for tgid, lock in seen[-1].locks)
        worst = heapq.nlargest(LOCKS_SHOWN, by_place.items(), key=lambda item: sum(lock.wait_s for lock in item[1]))
        return tuple(_row(place, locks, watched_s, place in newest) for place, locks in worst)


def _row(place: tuple[int, int], locks: Sequence[Lock], watched_s: float, is_current: bool) -> api.Lock:
    tgid, address = place
    return api.Lock(
        tgid=tgid,
        address=f"{address:#x}",
        kind="gil" if locks[-1].kind == "gil" else "lock",
        waiting_threads=sum(lock.wait_s for lock in locks) / watched_s,
        waits_per_second=sum(lock.waits for lock in locks) / watched_s,
        longest_seconds=max(lock.longest_s for lock in locks),
        waiters=locks[-1].waiters if is_current else 0,
    )


def summary(coverage: Iterable[Coverage], engine: str) -> tuple[api.Coverage, ...]:
    """What can be seen of an engine by each set, over all of its processes."""
    return summaries(coverage).get(engine, ())


def summaries(coverage: Iterable[Coverage]) -> dict[str, tuple[api.Coverage, ...]]:
    """The summary of each engine."""
    engines: dict[str, dict[str, list[Coverage]]] = {}
    for each in coverage:
        engines.setdefault(each.engine, {}).setdefault(each.set, []).append(each)
    return {engine: tuple(_of_set(*of_set) for of_set in by_set.items()) for engine, by_set in engines.items()}


def _of_set(name: str, parts: Sequence[Coverage]) -> api.Coverage:
    """Where processes differ, what is not seen of some of them is what is missing of the engine. A process in which there is
    nothing to see takes nothing from what is seen of others."""
    parts = [part for part in parts if part.state != "none"] or parts
    states = {part.state for part in parts}
    if len(states) == 1:
        return _coverage(name, parts[0].state, parts, _missing(parts, lambda part: part.missing))
    missing = _missing(parts, lambda part: part.missing or _apart(part))
    return _coverage(name, "part" if states & {"on", "part"} else "window" if "window" in states else "off", parts, missing)


def _apart(part: Coverage) -> tuple[str, ...]:
    return () if part.state in ("on", "window") else (part.reason or "not seen",)


def _missing(parts: Sequence[Coverage], texts: Callable[[Coverage], Iterable[str]]) -> Iterator[str]:
    """Each sentence once; with the processes that it is true of, where it is not true of all."""
    whose: dict[str, list[int]] = {}
    for part in parts:
        for text in dict.fromkeys(texts(part)):
            whose.setdefault(text, []).append(part.tgid)
    for text, tgids in whose.items():
        yield text if len(tgids) == len(parts) else f"{_processes(sorted(tgids))}: {text}"


def _processes(tgids: Sequence[int]) -> str:
    more = len(tgids) - TGIDS_SHOWN
    shown = ", ".join(map(str, tgids[:TGIDS_SHOWN]))
    return f"process{'es' if len(tgids) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"


def _coverage(name: str, state: str, parts: Sequence[Coverage], missing: Iterable[str]) -> api.Coverage:
    told = list(missing)
    more = len(told) - MISSING_SHOWN
    reasons = list(_missing(parts, lambda part: (part.reason,) if part.reason else ()))
    return api.Coverage(
        set=name,
        state=next((each for each in _STATES if each == state), "off"),
        reason="; ".join(reasons[:REASONS_SHOWN]),
        missing=(*told[:MISSING_SHOWN], *((f"and {more} more",) if more > 0 else ())),
        remedy=next((part.remedy for part in parts if part.remedy), ""),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes))[:MISSING_SHOWN],
    )
