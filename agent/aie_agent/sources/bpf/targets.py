"""Which processes the probes watch: those of the engines, and all that these started. Bounded, and what is left out is said."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.namesakes import ProcessId
from aie_agent.sources.process_tree import ProcessTree
from aie_ebpf.messages import Target

MOST_PROCESSES: Final = 256
"""Of one engine."""


class Watched(NamedTuple):
    """The targets, in a fixed order, and for each engine where something is left out, what."""

    targets: tuple[Target, ...]
    left_out: dict[str, str]


def search(engines: Mapping[str, Sequence[ProcessId]], tree: ProcessTree, own_tgid: int | None = None) -> Watched:
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
    tree.look()
    targets: list[Target] = []
    for engine, processes in engines.items():
        family = _family([process for process in processes if owners[process.tgid] == engine], engine, owners, tree)
        targets += (Target(engine=engine, tgid=each.tgid, start_ticks=each.start_ticks) for each in family[:MOST_PROCESSES])
        beyond = len(family) - MOST_PROCESSES
        if beyond > 0:
            left_out.setdefault(engine, []).append(f"{beyond} processes beyond {MOST_PROCESSES} are not watched")
    return Watched(
        tuple(sorted(targets, key=lambda each: (each.engine, each.tgid))), {k: "; ".join(v) for k, v in left_out.items()}
    )


def _family(named: Sequence[ProcessId], engine: str, owners: dict[int, str], tree: ProcessTree) -> list[ProcessId]:
    """One engine's processes, near descendants before far ones. Of those beyond the limit no children are looked for."""
    family = list(named)
    for process in itertools.islice(family, MOST_PROCESSES):  # it grows meanwhile
        for child in tree.started_by(process.tgid):
            if child.tgid not in owners:
                owners[child.tgid] = engine
                family.append(child)
    return family
