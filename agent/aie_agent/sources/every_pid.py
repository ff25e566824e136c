"""By which pids processes call themselves: in a container a process has another than the agent sees."""

from __future__ import annotations

from collections.abc import Iterable

from aie_agent.sources.procfs import Procfs


def every_pid(procfs: Procfs, tgids: Iterable[int]) -> frozenset[int]:
    """The pids of these processes, in the agent's namespace and in each further in. Those of one that /proc hides are only what the
    agent knows it by."""
    found: set[int] = set()
    for tgid in tgids:
        found.add(tgid)
        try:
            found.update(procfs.namespace_pids(tgid))
        except OSError:  # another user's, where /proc hides them
            continue
    return frozenset(found)
