"""What `aie-agent stacks` prints for people. Pure: lines of what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from aie_agent.commands.stacks_native import NativeLock, NativeSeen
from aie_agent.stacks.merge import MergedThread, tree
from aie_agent.stacks.model import Dump, Frame, clean
from aie_agent.stacks.sentences import word
from aie_agent.stacks.waiting import Waiters, line_of, place, waiters
from aie_telemetry import api

_INDENT: Final = "    "
_Key = tuple[int, int | None, str]
"""A thread in several dumps: its process, tid and name."""


def locks(dumps: Sequence[Dump], threads: Sequence[MergedThread], engine: api.Engine | None) -> Iterator[str]:
    """What is waited for, as the agent sees it and as the dumps do; then every thread, those first that wait for another."""
    known = [lock for lock in engine.locks if lock.kind == "lock"] if engine is not None else []
    yield from _agents_view(engine)
    addresses = {(lock.tgid, int(lock.address, 16)) for lock in known} or None
    found = [each for dump in dumps for each in waiters(dump, addresses)]
    yield from _waiting(found, Counter(dump.tgid for dump in dumps))
    waiting = {(each.tgid, name) for each in found for name in each.threads}
    yield from _threads(dumps, threads, waiting)


def native(seen: NativeSeen, dumps: Sequence[Dump]) -> Iterator[str]:
    """The locks that native code waits for or Python code, with who called; beside each the line of Python, where it is known."""
    title = "threads that wait for locks" if seen.window_s else "threads that wait at one place, for a lock or for work"
    yield f"{title}, by native code: {'' if seen.locks else 'none were seen'}".rstrip()
    for lock in seen.locks:
        where = line_of(dumps, (lock.tgid, lock.address))
        python = f", at {where.place}" if where is not None else ""
        what = "lock" if lock.is_lock else "place"
        yield f"{_INDENT}{what} {lock.address:#x} of process {lock.tgid}{python}:{_waited(lock)}"
        yield from (f"{_INDENT * 2}{text}" for text in lock.threads)
    if seen.idle:
        yield f"{_INDENT}and {seen.idle} places where they wait for work, or one thread by itself"
    for problem in seen.problems:
        yield f"{_INDENT}not seen: {clean(problem, 500)}"


def _waited(lock: NativeLock) -> str:
    if lock.still_threads:
        who = "threads stand" if lock.still_threads > 1 else "thread stands"
        return f" {lock.still_threads} {who} still{'' if lock.is_lock else ', for a lock or for work'}"
    return "" if lock.waiting_threads is None else f" {lock.waiting_threads:.2f} threads wait on average"


def memory(
    dumps: Sequence[Dump], threads: Sequence[MergedThread], before: api.Engine | None, after: api.Engine | None
) -> Iterator[str]:
    """GPU memory by who asked for it and by size, now and how much it grew meanwhile; then every thread."""
    use = after.cuda if after is not None else None
    if after is None or use is None:
        reasons = [f"{each.set}: {each.reason or each.state}" for each in after.coverage] if after is not None else []
        yield f"GPU memory: not seen ({clean('; '.join(reasons), 500) or 'no probe watches CUDA here'})"
    else:
        old = (before.cuda if before is not None else None) or api.CudaUse()
        yield from _amounts("GPU memory by kind", use.outstanding_bytes, old.outstanding_bytes)
        yield from _amounts("by the file whose code asked for it", use.by_module, old.by_module)
        yield from _amounts("by size of an allocation, up to", use.by_size_class_bytes, old.by_size_class_bytes)
    yield from _threads(dumps, threads, ())


def _amounts(title: str, now: Mapping[str, float], before: Mapping[str, float]) -> Iterator[str]:
    """What grew most first."""
    yield f"{title}:" if now else f"{title}: none"
    for name in sorted(now, key=lambda name: (before.get(name, 0.0) - now[name], -now[name])):
        grew = now[name] - before.get(name, 0.0)
        yield f"{_INDENT}{clean(name)}: {now[name] / 2**20:.1f} MiB, {grew / 2**20:+.1f} MiB meanwhile"


def _agents_view(engine: api.Engine | None) -> Iterator[str]:
    if engine is None:
        yield "locks: the agent does not know this process, so how long is waited for what is not known"
    elif not engine.locks:
        seen = "no thread waited for a lock" if _sees_locks(engine) else "no probe watches them"
        yield f"locks, as the agent sees engine {clean(engine.name)}: {seen}"
    else:
        yield f"locks, as the agent sees engine {clean(engine.name)}:"
    for lock in engine.locks if engine is not None else ():
        what = "interpreter lock" if lock.kind == "gil" else f"lock {clean(lock.address)}"
        line = f" at {clean(lock.line)}" if lock.line else ""
        yield (
            f"{_INDENT}{what} of process {lock.tgid}{line}: {lock.waiting_threads:.2f} threads wait on average,"
            f" {lock.waits_per_second:.0f} waits a second, the longest {lock.longest_seconds:.3f} s"
        )


def _sees_locks(engine: api.Engine) -> bool:
    return engine.waits is not None and engine.waits.lock is not None


def _waiting(found: Sequence[Waiters], looks: Mapping[int, int]) -> Iterator[str]:
    """The same lock and line over all looks is one row."""
    rows: dict[tuple[int, int, Frame], list[Waiters]] = {}
    for each in found:
        rows.setdefault((each.tgid, each.futex, each.place), []).append(each)
    yield "threads that wait for one lock:" if rows else "threads that wait for one lock: none were seen"
    for (tgid, futex, where), times in rows.items():
        counts = sorted(len(each.threads) for each in times)
        many = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        yield f"{_INDENT}{many} of process {tgid} at {where.place}, on {futex:#x}, in {len(times)} of {looks[tgid]} looks"
        for (name, inside), count in Counter(_inside(times)).items():
            yield f"{_INDENT * 2}inside meanwhile: thread {name} at {inside}, in {count} of them"


def _inside(times: Sequence[Waiters]) -> Iterator[tuple[str, str]]:
    return ((each.inside[0].name, each.inside[1].place) for each in times if each.inside is not None)


def _threads(dumps: Sequence[Dump], threads: Sequence[MergedThread], waiting: Collection[tuple[int, str]]) -> Iterator[str]:
    states = _states(dumps)
    for thread in sorted(threads, key=lambda each: (each.tgid, (each.tgid, each.name) not in waiting)):
        mark = "WAITS FOR A LOCK  " if (thread.tgid, thread.name) in waiting else ""
        tid = "" if thread.tid is None else f" ({thread.tid})"
        yield ""
        yield f"{mark}process {thread.tgid}, thread {thread.name}{tid}: {states[thread.tgid, thread.tid, thread.name]}"
        yield from (f"{_INDENT}{line}" for line in tree(thread))


def _states(dumps: Sequence[Dump]) -> dict[_Key, str]:
    """What each thread did, in a few words: `waits at a.py:3 (f) in 2 of 3, runs at ...`."""
    seen: dict[_Key, Counter[str]] = {}
    for dump in dumps:
        for thread in dump.threads:
            where = place(thread)
            text = word(thread) + (f" at {where.place}" if where is not None else "")
            text += ", holding the interpreter lock" if thread.holds_gil else ""
            seen.setdefault((dump.tgid, thread.tid, thread.name), Counter())[text] += 1
    return {
        key: "; ".join(f"{text}, {count} of {texts.total()} times" for text, count in texts.most_common())
        for key, texts in seen.items()
    }
