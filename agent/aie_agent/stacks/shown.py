"""Dumps as others see them: what causes are told, where locks are waited for, and the page of the API. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from aie_agent.analysis.findings import Stacks
from aie_agent.sources.bpf.build import Probes
from aie_agent.stacks.model import Dump, Thread
from aie_agent.stacks.sentences import Pair, gil_sentences, hang_sentences, lock_sentences
from aie_agent.stacks.waiting import Address, idle_futexes, line_of, place, standing
from aie_telemetry import api

MOST_STUCK: Final = 16


def for_causes(
    pair: Pair,
    locks: Sequence[api.Lock],
    problems: tuple[str, ...] = (),
    native_of: Callable[[Address], Sequence[str]] = lambda _: (),
) -> Stacks:
    """What causes are told of a pair. `locks` are those that probes see; where they see none, shared futexes are taken for them.
    `problems` are more that stand beside the pair's. `native_of` tells who waits at a futex in native code, and so of a thread that
    hangs in a call into a library what holds it there."""
    return Stacks(
        hang_sentences(pair) + tuple(f"in native code, {text}" for lock in stuck(pair) for text in native_of(lock)),
        lock_sentences(pair, fought(locks) or None),
        gil_sentences(pair),
        idle_futexes(pair.dumps),
        pair.problems + problems,
    )


def fought(locks: Sequence[api.Lock]) -> tuple[Address, ...]:
    """The processes and addresses of locks. The interpreter lock's waiters are told by Python's stacks alone."""
    return tuple((lock.tgid, int(lock.address, 16)) for lock in locks if lock.kind == "lock")


def stuck(pair: Pair | None) -> tuple[Address, ...]:
    """The futexes at which Python threads wait that are where they were, each once. Idle workers of the standard library's pools
    are nowhere of interest."""
    found: dict[Address, None] = {}
    for first, last in zip(pair.first, pair.last, strict=False) if pair is not None else ():
        names = {each.thread for each in standing(first, last)}
        for thread in last.threads:
            if thread.futex is not None and thread.name in names and place(thread) is not None:
                found[last.tgid, thread.futex] = None
    return tuple(found)[:MOST_STUCK]


def with_lines(locks: Sequence[api.Lock], pair: Pair | None) -> tuple[api.Lock, ...]:
    """Locks with the line at which they are waited for, where all threads that were seen to wait did so at one. The interpreter
    lock is waited for everywhere."""
    if pair is None:
        return tuple(locks)
    return tuple(_with_line(lock, pair) if lock.kind == "lock" else lock for lock in locks)


def _with_line(lock: api.Lock, pair: Pair) -> api.Lock:
    where = line_of(pair.dumps, (lock.tgid, int(lock.address, 16)))
    return lock if where is None else msgspec.structs.replace(lock, line=where.place)


def _none(engine: str, lock: Address) -> tuple[str, ...]:
    """Where nobody looks at native stacks."""
    return ()


class LinedProbes:
    """Probes, whose locks have the lines that Python's stacks tell, and the callers that native ones do. `native_of` is asked for
    an engine and a lock."""

    def __init__(
        self, probes: Probes, pair_of: Callable[[str], Pair | None], native_of: Callable[[str, Address], tuple[str, ...]] = _none
    ) -> None:
        self._probes = probes
        self._pair_of = pair_of
        self._native_of = native_of
        self.lock_stacks = probes.lock_stacks
        self.coverage = probes.coverage
        self.note = probes.note
        self.counts = probes.counts

    def locks(self, engine: str) -> tuple[api.Lock, ...]:
        """As the probes tell them."""
        locks = with_lines(self._probes.locks(engine), self._pair_of(engine))
        return tuple(self._with_callers(engine, lock) for lock in locks)

    def _with_callers(self, engine: str, lock: api.Lock) -> api.Lock:
        told = self._native_of(engine, (lock.tgid, int(lock.address, 16))) if lock.kind == "lock" else ()
        return msgspec.structs.replace(lock, native=told) if told else lock


def page(pair: Pair) -> api.StacksPage:
    """`/api/v1/stacks` of an engine."""
    return api.StacksPage(
        version=api.VERSION, engine=pair.engine, dumps=tuple(as_api(dump) for dump in pair.dumps), problems=pair.problems
    )


def as_api(dump: Dump) -> api.StackDump:
    """One dump as the API gives it."""
    return api.StackDump(tgid=dump.tgid, time_s=dump.time_s, threads=tuple(_thread(thread) for thread in dump.threads))


def _thread(thread: Thread) -> api.ThreadStack:
    where = place(thread)
    return api.ThreadStack(
        name=thread.name,
        tid=thread.tid,
        state=thread.state or None,
        futex=None if thread.futex is None else f"{thread.futex:#x}",
        holds_gil=thread.holds_gil,
        place=None if where is None else where.place,
        frames=tuple(api.Frame(function=each.function, file=each.file, line=each.line) for each in thread.frames),
    )
