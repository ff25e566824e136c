"""Which processes the probes watch: those of the engines, and all that these started. Bounded, and what is left out is said."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.namesakes import ProcessId
from aie_agent.sources.procfs import Procfs
from aie_ebpf.messages import Target

MOST_PROCESSES: Final = 256
"""Of one engine."""

MOST_THREADS: Final = 4096
"""Whose children are asked for in one search, over all engines: 20 ms."""


class Watched(NamedTuple):
    """The targets, in a fixed order, and for each engine where something is left out, what."""

    targets: tuple[Target, ...]
    left_out: dict[str, str]


def search(engines: Mapping[str, Sequence[ProcessId]], procfs: Procfs, own_tgid: int | None = None) -> Watched:
    """The processes of the engines and their descendants, as they are now. Reads /proc; raises nothing for what is gone.

    A process belongs to one engine: to the first that names it, before any whose descendant it is. The agent itself (`own_tgid`)
    and what it started belong to none.
    """
    own_tgid = os.getpid() if own_tgid is None else own_tgid
    owners: dict[int, str] = {own_tgid: ""}
    left_out: dict[str, list[str]] = {}
    for engine, processes in engines.items():
        for process in processes:
            owner = owners.setdefault(process.tgid, engine)
            if owner != engine:
                whose = f"is watched as one of engine {owner}" if owner else "is the agent itself"
                left_out.setdefault(engine, []).append(f"process {process.tgid} {whose}")
    threads_left = MOST_THREADS
    targets: list[Target] = []
    for engine, processes in engines.items():
        named = [process for process in processes if owners[process.tgid] == engine]
        tree = _Tree(engine, named, owners, procfs, threads_left)
        targets += tree.targets
        threads_left = tree.threads_left
        if tree.left_out:
            left_out.setdefault(engine, []).append(tree.left_out)
    return Watched(
        tuple(sorted(targets, key=lambda each: (each.engine, each.tgid))), {k: "; ".join(v) for k, v in left_out.items()}
    )


class _Tree:
    """One engine's processes, breadth first: near descendants before far ones, should there be too many."""

    def __init__(self, engine: str, named: Sequence[ProcessId], owners: dict[int, str], procfs: Procfs, threads_left: int) -> None:
        self.threads_left = threads_left
        self.targets: list[Target] = []
        beyond = unasked = 0
        queue = deque(named)
        while queue:
            process = queue.popleft()
            if len(self.targets) >= MOST_PROCESSES:
                beyond += 1
                continue
            self.targets.append(Target(engine=engine, tgid=process.tgid, start_ticks=process.start_ticks))
            if self.threads_left <= 0:
                unasked += 1
                continue
            children, asked = _children(procfs, process.tgid, self.threads_left)
            self.threads_left -= asked
            for tgid in children:
                ticks = procfs.start_ticks(tgid) if tgid not in owners else None
                if ticks is not None:
                    owners[tgid] = engine
                    queue.append(ProcessId(tgid, ticks))
        self.left_out = "; ".join(
            text
            for text, count in (
                (f"{beyond} processes beyond {MOST_PROCESSES} are not watched", beyond),
                (f"what {unasked} processes started is not looked for: {MOST_THREADS} threads were asked", unasked),
            )
            if count
        )


def _children(procfs: Procfs, tgid: int, most_threads: int) -> tuple[list[int], int]:
    try:
        return procfs.children(tgid, most_threads)
    except PermissionError:
        return [], 0
