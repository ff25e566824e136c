"""Which frame of a thread is where it waits, which threads wait for the same thing, and what stands where it stood.

Pure. A thread that waits sits in the standard library's `threading`, `queue` and the like; what is asked for is the line of the
program that went there. A thread with no frame outside of them (a pool's idle worker) waits nowhere of interest.

Threads that wait for one lock wait on one futex: with the address, that is certain. Without a look into the kernel's view (no
privilege) there are no addresses, and nothing is said about locks. One address is not yet a lock that is fought for: the idle
workers of a C-level queue share one too. Whoever knows which addresses are locks (probes do) passes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from aie_agent.stacks.model import Dump, Frame, Thread

_WAITS: Final = re.compile(
    r"(?:(?:^|/)(?:python3\.\d+t?|python\d+\.zip)/"
    r"(?:threading|queue|selectors|socket|ssl|subprocess|asyncio/\w+|concurrent/futures/\w+|multiprocessing/\w+)\.py"
    r"|<frozen [\w.]+>)$"
)
"""By the whole path: a program's own `queue.py` is not the standard library's."""

Address = tuple[int, int]
"""A process and an address in its memory."""


class Waiters(NamedTuple):
    """Threads of one process that wait on one futex at one line; `inside` is the one thread that is in the same function and does
    not wait there, with its innermost place: most likely it holds the lock."""

    tgid: int
    futex: int
    place: Frame
    threads: tuple[str, ...]
    inside: tuple[Thread, Frame] | None


class Standing(NamedTuple):
    """A thread whose whole stack is the same in all dumps: where it is, and the letters of its states."""

    tgid: int
    thread: str
    place: Frame
    states: tuple[str, ...]


def place(thread: Thread) -> Frame | None:
    """The innermost frame outside of the standard library's ways to wait; None where there is none."""
    return next((frame for frame in thread.frames if _WAITS.search(frame.path) is None), None)


def waiters(dump: Dump, locks: Collection[Address] | None = None) -> tuple[Waiters, ...]:
    """Threads that wait for a lock: on one of `locks`, or, where None are known, at least two on one futex. The most first."""
    groups: dict[tuple[int, Frame], list[Thread]] = {}
    for thread in dump.threads:
        where = place(thread)
        if thread.futex is not None and where is not None and (locks is None or (dump.tgid, thread.futex) in locks):
            groups.setdefault((thread.futex, where), []).append(thread)
    found = [
        Waiters(dump.tgid, futex, where, tuple(thread.name for thread in group), _inside(dump, futex, where))
        for (futex, where), group in groups.items()
        if locks is not None or len(group) >= 2
    ]
    return tuple(sorted(found, key=lambda each: -len(each.threads)))


def _inside(dump: Dump, futex: int, where: Frame) -> tuple[Thread, Frame] | None:
    """The thread that is in the function where others wait, and does not wait there; None where there is none, or several."""
    found = [
        (thread, innermost)
        for thread in dump.threads
        if thread.futex != futex
        and any((frame.path, frame.function) == (where.path, where.function) for frame in thread.frames)
        and (innermost := place(thread)) is not None
    ]
    return found[0] if len(found) == 1 else None


def line_of(dumps: Sequence[Dump], address: Address) -> Frame | None:
    """Where threads wait for a lock, if at least twice as many of them do so at one line as elsewhere, over all dumps; else None.

    Not all of them: the kernel is asked a moment after the stack was read, so that one that held the lock then may wait by now.
    """
    tgid, futex = address
    places = Counter(place(thread) for dump in dumps if dump.tgid == tgid for thread in dump.threads if thread.futex == futex)
    for where, count in places.most_common(1):
        if count >= 2 * (places.total() - count):
            return where
    return None


def idle_futexes(dumps: Sequence[Dump]) -> frozenset[Address]:
    """Where those that wait are idle workers of the standard library's pools. A pool's queue is a lock in C that its workers hand
    to each other while it is drained: to the kernel, that looks like a fight.

    The most of them decide: the kernel is asked a moment after the stack was read, so that a worker that was at work then may wait
    for more by now.
    """
    idle: Counter[Address] = Counter()
    others: Counter[Address] = Counter()
    for dump in dumps:
        for thread in dump.threads:
            if thread.futex is not None:
                (idle if place(thread) is None else others)[dump.tgid, thread.futex] += 1
    return frozenset(address for address, count in idle.items() if count >= 2 * others[address])


def standing(first: Dump, last: Dump) -> Iterator[Standing]:
    """Threads that are where they were, frame by frame, in the order of the dump. Both dumps are of one process."""
    before = {_key(thread): thread for thread in first.threads}
    for thread in last.threads:
        old, where = before.get(_key(thread)), place(thread)
        if old is not None and old.frames == thread.frames and where is not None:
            yield Standing(last.tgid, thread.name, where, (old.state, thread.state))


def _key(thread: Thread) -> tuple[int | None, str]:
    return thread.tid, thread.name
