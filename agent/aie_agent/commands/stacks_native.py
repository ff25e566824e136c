"""The native half of `aie-agent stacks --kind locks`: a window of probes of its own, and what stands in /proc, while Python's
stacks are read."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

import msgspec

from aie_agent.config import BpfSection
from aie_agent.namesakes import ProcessId
from aie_agent.sources.bpf.child import COMMAND, ChildError
from aie_agent.sources.bpf.targets import search
from aie_agent.sources.bpf.visit import Window, open_window
from aie_agent.sources.process_tree import ProcessTree
from aie_agent.sources.procfs import Procfs
from aie_agent.stacks.native.standing import waiting_now
from aie_agent.stacks.native.waits import NativeWait, resolve
from aie_ebpf import prerequisites
from aie_ebpf.lock_kinds import LOCK
from aie_ebpf.messages import LockStack
from aie_ebpf.probes import SETS

WINDOW_S: Final = 2.0
LOCKS_SHOWN: Final = 8
WAYS_SHOWN: Final = 4
"""Of one lock: how those that wait for it came there."""

_NAME: Final = "looked-at"
_SETS: Final = ("locks", "lock_stacks")
Address = tuple[int, int]


class NativeLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock and who waits for it, in sentences, most threads first. `waiting_threads` is how many waited on average while the
    window was open, null where there was none, and where threads stand still: `still_threads` waited there before it opened, and
    had not moved when it was closed. `is_lock` is false where they may as well wait for work: nobody comes or goes, and the code
    does not say."""

    tgid: int
    address: int
    threads: tuple[str, ...]
    waiting_threads: float | None = None
    still_threads: int = 0
    is_lock: bool = True


class NativeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. `window_s` is how long probes looked, 0 where they could not (`problems` say why): then locks are not told
    from places where threads wait for work, and all are shown where several do. `idle` is at how many places they wait for work."""

    locks: tuple[NativeLock, ...]
    idle: int
    window_s: float
    problems: tuple[str, ...]


class NativeLook:
    """Looks in a thread of its own from `with` on, for a few seconds. Of no processes it does nothing."""

    def __init__(self, tgids: Sequence[int], command: Sequence[str] = COMMAND) -> None:
        self._tgids = tgids
        self._command = command
        self._pool = ThreadPoolExecutor(1, "native")
        self._found: Future[NativeSeen] | None = None

    def __enter__(self) -> Self:
        if self._tgids:
            self._found = self._pool.submit(look, self._tgids, self._command)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def seen(self) -> NativeSeen | None:
        """Waits for it. None where nothing was asked for."""
        return None if self._found is None else self._found.result()


def look(tgids: Sequence[int], command: Sequence[str] = COMMAND) -> NativeSeen:
    """The locks that threads of these processes wait for, and which native code does. Takes the seconds that a child with probes
    takes to start, and `WINDOW_S`."""
    before = _waiting(tgids)
    window, problems = _window(tgids, command)
    if window is None:
        stacks, left_out = before
        return _seen(stacks, stacks, None, (*problems, *left_out))
    now, left_out = _waiting(tgids)
    # Who begins to wait is seen by probes; who waited all the time is at the same place of the same code as before.
    places = {(each.tgid, each.tid, each.address, each.pc, each.sp) for each in before[0]}
    still = [each for each in now if (each.tgid, each.tid, each.address, each.pc, each.sp) in places]
    stacks = [*now, *(each for report in window.reports for each in report.lock_stacks)]
    problems += [window.closed.reason] if window.closed.reason else []
    return _seen(stacks, still, window, (*problems, *left_out))


def _waiting(tgids: Sequence[int]) -> tuple[list[LockStack], list[str]]:
    """Who waits now, and what was left out."""
    found = [waiting_now(_NAME, tgid) for tgid in tgids]
    return [stack for each in found for stack in each.stacks], [each.problem for each in found if each.problem is not None]


def _window(tgids: Sequence[int], command: Sequence[str]) -> tuple[Window | None, list[str]]:
    unmet = prerequisites.unmet(prerequisites.check())
    if unmet:
        return None, ["; ".join(f"{item.name}: {item.found} ({item.remedy})" for item in unmet)]
    procfs = Procfs()
    processes = [ProcessId(tgid, ticks) for tgid in tgids if (ticks := procfs.start_ticks(tgid)) is not None]
    targets = [each for each in search({_NAME: processes}, ProcessTree(procfs)).targets if each.tgid in tgids]
    if not targets:
        return None, ["no process of it lives"]
    section = BpfSection(budget=1.0, without=tuple(each.name for each in SETS if each.name not in _SETS))
    try:
        return asyncio.run(open_window(targets, section, _SETS[1], WINDOW_S, command)), []
    except ChildError as error:
        return None, [str(error)]


def _seen(stacks: Sequence[LockStack], still: Sequence[LockStack], window: Window | None, problems: tuple[str, ...]) -> NativeSeen:
    """`still` are those of `stacks` that waited all the time."""
    resolved = resolve(stacks)
    by_lock: dict[Address, list[NativeWait]] = defaultdict(list)
    for each in resolved.waits:
        by_lock[each.tgid, each.address].append(each)
    is_open = window is not None and window.closed.open_s > 0
    waited, moved = _moved(window) if window is not None and is_open else ({}, set[Address]())
    fought = sorted(by_lock.keys() & waited.keys(), key=lambda lock: -waited[lock])
    standing = Counter((each.tgid, each.address) for each in still)
    stuck = {
        lock: any(way.is_lock for way in by_lock[lock])
        for lock in by_lock
        if lock not in moved and _stands(by_lock[lock], standing[lock], is_open)
    }
    locks = [
        *(_lock(lock, by_lock[lock], waiting_threads=waited[lock]) for lock in fought),
        *(
            _lock(lock, by_lock[lock], still_threads=standing[lock] if is_open else 0, is_lock=stuck[lock])
            for lock in sorted(stuck, key=lambda lock: (not stuck[lock], -standing[lock]))
        ),
    ]
    idle = len({(each.tgid, each.address) for each in stacks} - {(each.tgid, each.address) for each in locks})
    window_s = window.closed.open_s if window is not None else 0.0
    return NativeSeen(locks=tuple(locks[:LOCKS_SHOWN]), idle=idle, window_s=window_s, problems=(*problems, *resolved.problems))


def _lock(
    lock: Address, ways: Sequence[NativeWait], *, waiting_threads: float | None = None, still_threads: int = 0, is_lock: bool = True
) -> NativeLock:
    return NativeLock(
        tgid=lock[0],
        address=lock[1],
        threads=tuple(way.text for way in ways[:WAYS_SHOWN]),
        waiting_threads=waiting_threads,
        still_threads=still_threads,
        is_lock=is_lock,
    )


def _stands(ways: Collection[NativeWait], threads: int, is_open: bool) -> bool:
    """Whether threads that did not move are worth telling: those at a lock, however few, and several that are at no place where
    threads have nothing to do. Python code that waits has its own lines. Without a window nobody knows, and all are told."""
    if threads and any(way.is_lock for way in ways):
        return True
    if not is_open:
        return threads > 1
    return threads > 1 and not all(way.is_without_work for way in ways)


def _moved(window: Window) -> tuple[Mapping[Address, float], set[Address]]:
    """How many threads waited for each lock on average while the child looked; places where they wait for work are none. And every
    address at which a wait ended meanwhile, whatever it is."""
    seconds = sum(report.period_s for report in window.reports) or 1.0
    waited: dict[Address, float] = defaultdict(float)
    moved: set[Address] = set()
    for process in (each for report in window.reports for each in report.processes):
        for lock in process.locks:
            if lock.waits or lock.kind == LOCK:
                moved.add((process.tgid, lock.address))
            if lock.kind == LOCK:
                waited[process.tgid, lock.address] += lock.wait_s / seconds
    return waited, moved
