"""The native half of `aie-agent stacks --kind locks`: a window of probes of its own, and what stands in /proc, while Python's
stacks are read."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    window was open, null where there was none."""

    tgid: int
    address: int
    threads: tuple[str, ...]
    waiting_threads: float | None = None


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
    window, problems = _window(tgids, command)
    stacks = [each for tgid in tgids for each in waiting_now(_NAME, tgid)]
    if window is not None:
        stacks += [each for report in window.reports for each in report.lock_stacks]
        problems += [window.closed.reason] if window.closed.reason else []
    resolved = resolve(stacks)
    return _seen(stacks, resolved.waits, window, (*problems, *resolved.problems))


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


def _seen(stacks: Sequence[LockStack], waits: Iterable[NativeWait], window: Window | None, problems: tuple[str, ...]) -> NativeSeen:
    by_lock: dict[Address, list[NativeWait]] = defaultdict(list)
    for each in waits:
        by_lock[each.tgid, each.address].append(each)
    waited = _waited(window) if window is not None and window.closed.open_s else None
    if waited is None:
        fought = [lock for lock, ways in by_lock.items() if sum(way.threads for way in ways) > 1]
    else:
        fought = sorted(by_lock.keys() & waited.keys(), key=lambda lock: -waited[lock])
    locks = tuple(
        NativeLock(
            tgid=lock[0],
            address=lock[1],
            threads=tuple(way.text for way in by_lock[lock][:WAYS_SHOWN]),
            waiting_threads=None if waited is None else waited[lock],
        )
        for lock in fought[:LOCKS_SHOWN]
    )
    idle = len({(each.tgid, each.address) for each in stacks} - set(fought))
    return NativeSeen(locks=locks, idle=idle, window_s=window.closed.open_s if window is not None else 0.0, problems=problems)


def _waited(window: Window) -> Mapping[Address, float]:
    """How many threads waited for each lock on average while the child looked; places where they wait for work are none."""
    seconds = sum(report.period_s for report in window.reports) or 1.0
    found: dict[Address, float] = defaultdict(float)
    for report in window.reports:
        for process in report.processes:
            for lock in process.locks:
                if lock.kind == LOCK:
                    found[process.tgid, lock.address] += lock.wait_s / seconds
    return found
