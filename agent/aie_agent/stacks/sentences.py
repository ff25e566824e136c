"""Two dumps of an engine, some seconds apart, as sentences for findings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aie_agent.stacks.model import Dump, Frame, Thread
from aie_agent.stacks.waiting import Address, Standing, Waiters, place, standing, waiters

MOST_SENTENCES: Final = 4

_WORDS: Final = {"R": "runs", "T": "is stopped", "t": "is held by a debugger", "D": "waits in the kernel", "": "stands"}
"""By the letter of the kernel's state; anything else waits."""


def word(thread: Thread) -> str:
    """What a thread did at the moment of its dump: runs, waits, is stopped."""
    return _WORDS.get(thread.state, "waits")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two dumps of each process of an engine that could be read, in the same order, begun at `began_s`; `problems` say why others
    could not. Until the second ones are taken there are only first ones."""

    engine: str
    began_s: float
    first: tuple[Dump, ...]
    last: tuple[Dump, ...]
    problems: tuple[str, ...] = ()

    @property
    def dumps(self) -> tuple[Dump, ...]:
        """All of them, the first ones first."""
        return self.first + self.last


def hang_sentences(pair: Pair) -> tuple[str, ...]:
    """Threads whose stack is the same in both dumps, those of several processes at one line together; the main threads first."""
    groups: dict[tuple[str, str, str], list[Standing]] = {}
    for first, last in zip(pair.first, pair.last, strict=False):
        for each in standing(first, last):
            groups.setdefault((each.thread, _word(each.states), each.place.place), []).append(each)
    ranked = sorted(groups.items(), key=lambda item: item[0][0] != "MainThread")
    sentences = [_standing(*key, [each.tgid for each in group], pair) for key, group in ranked[:MOST_SENTENCES]]
    more = sum(len(group) for _, group in ranked[MOST_SENTENCES:])
    if more:
        sentences.append(f"{more} more threads are where they were")
    return tuple(sentences)


def _standing(thread: str, word: str, where: str, tgids: Sequence[int], pair: Pair) -> str:
    of = f" of process {tgids[0]}" if len(tgids) == 1 else f" of {len(tgids)} processes ({', '.join(map(str, tgids))})"
    return f"thread {thread}{of if len(pair.last) > 1 else ''} {word} at {where} in both dumps, {_apart(pair)} apart"


def _apart(pair: Pair) -> str:
    return f"{pair.last[0].time_s - pair.first[0].time_s:.0f} s"


def _word(states: Sequence[str]) -> str:
    return _WORDS.get(states[-1], "waits") if len(set(states)) == 1 else "stands"


def lock_sentences(pair: Pair, locks: Collection[Address] | None) -> tuple[str, ...]:
    """Where threads wait for locks, in both dumps, and who is inside. `locks` are those known to be fought for; None where nobody
    knows, and several threads at one line that wait on one futex are taken for it."""
    sentences = []
    for first, last in zip(pair.first, pair.last, strict=False):
        before = {(each.futex, each.place) for each in waiters(first, locks)}
        sentences += [_waiting(each, pair) for each in waiters(last, locks) if (each.futex, each.place) in before]
    return tuple(sentences[:MOST_SENTENCES])


def _waiting(found: Waiters, pair: Pair) -> str:
    who = f"{len(found.threads)} threads wait" if len(found.threads) > 1 else f"thread {found.threads[0]} waits"
    of = f" of process {found.tgid}" if len(pair.last) > 1 else ""
    text = f"{who} at {found.place.place}{of}"
    if found.inside is not None:
        thread, where = found.inside
        text += f", thread {thread.name} {word(thread)} at {where.place}"
    return text


def gil_sentences(pair: Pair) -> tuple[str, ...]:
    """Who held the GIL at the moments of the dumps, and where."""
    seen: dict[tuple[str, str], int] = {}
    for thread, where in _holders(pair.dumps):
        key = thread.name, where.place
        seen[key] = seen.get(key, 0) + 1
    ranked = sorted(seen.items(), key=lambda item: -item[1])
    return tuple(f"thread {name} held the GIL at {where}" for (name, where), _ in ranked[:MOST_SENTENCES])


def _holders(dumps: Sequence[Dump]) -> Iterator[tuple[Thread, Frame]]:
    for dump in dumps:
        for thread in dump.threads:
            where = place(thread)
            if thread.holds_gil and where is not None:
                yield thread, where
