"""Several dumps as one: how often each thread was seen with which stack; as folded lines, and as a tree for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aie_agent.stacks.model import Dump, Frame

Stack = tuple[Frame, ...]
"""Frames from the root to the leaf."""


@dataclass(frozen=True, slots=True)
class MergedThread:
    """One thread over several dumps: how often it was seen with each stack, the most frequent first."""

    tgid: int
    tid: int | None
    name: str
    stacks: tuple[tuple[Stack, int], ...]


def merge(dumps: Iterable[Dump]) -> tuple[MergedThread, ...]:
    """The threads of all dumps, in the order in which they were first seen."""
    counts: dict[tuple[int, int | None, str], Counter[Stack]] = {}
    for dump in dumps:
        for thread in dump.threads:
            counts.setdefault((dump.tgid, thread.tid, thread.name), Counter())[thread.frames[::-1]] += 1
    return tuple(MergedThread(*key, tuple(stacks.most_common())) for key, stacks in counts.items())


def folded(threads: Sequence[MergedThread]) -> Iterator[str]:
    """Brendan Gregg's folded stacks, which flame graphs are made of: `process 1;MainThread;f (a.py:3);g (a.py:9) 2`. In names, `;`
    is written `:` and what ends a line a blank, as they have a meaning there. Equal lines are added up."""
    lines: Counter[str] = Counter()
    for thread in threads:
        for stack, count in thread.stacks:
            parts = (f"process {thread.tgid}", thread.name, *(_shown(frame) for frame in stack))
            lines[";".join(_escaped(part) for part in parts)] += count
    return (f"{line} {count}" for line, count in lines.items())


def _escaped(part: str) -> str:
    return " ".join(part.replace(";", ":").split()) or "?"


def _shown(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def tree(thread: MergedThread, indent: str = "  ") -> Iterator[str]:
    """The stacks of one thread as lines, root first, each with how often it was seen. What several stacks share stands once; a line
    is indented where they part, so that a deep stack stays readable."""
    yield from _subtree(thread.stacks, 0, "", indent)


def _subtree(stacks: Sequence[tuple[Stack, int]], depth: int, margin: str, indent: str) -> Iterator[str]:
    """Recursion ends: no stack is deeper than `model.MOST_FRAMES`."""
    branches: dict[Frame, list[tuple[Stack, int]]] = {}
    for stack, count in stacks:
        if len(stack) > depth:
            branches.setdefault(stack[depth], []).append((stack, count))
    inner = margin + indent if len(branches) > 1 else margin
    for frame, below in branches.items():
        yield f"{inner}{sum(count for _, count in below)} {_shown(frame)}"
        yield from _subtree(below, depth + 1, inner, indent)
