"""Who started whom, kept from one look to the next: a process is asked for its parent once, however many threads either has.

A parent changes only when it ends. So what was read holds while both live, and whoever is told is asked again, by a file that
tells its age, too. A parent that ended may stay as a zombie, and its children have another by then: who has children is asked at
each look whether it lives. Missed is who got, between two looks, the number of another that was there at both: with looks 5 s
apart and the fewest numbers that a kernel has (32768) that takes 6500 forks a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from aie_agent.namesakes import ProcessId
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.procfs_text import ProcessStat


class ProcessTree:
    """All processes of one /proc, as of the last `look`. For one thread at a time."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._parents: dict[int, int] = {}
        self._children: Mapping[int, Sequence[int]] = {}

    def look(self) -> None:
        """Finds who is new, and who lost its parent: one listing, and a small file for each of these and for each parent."""
        there = dict.fromkeys(self._procfs.pids())
        known = {tgid: parent for tgid, parent in self._parents.items() if tgid in there and parent in there}
        ended = {parent for parent in set(known.values()) if (stat := self._stat(parent)) is not None and stat.ended}
        kept = {tgid: parent for tgid, parent in known.items() if parent not in ended}
        asked = {tgid: stat.parent_tgid for tgid in there if tgid not in kept and (stat := self._stat(tgid)) is not None}
        self._parents = kept | asked
        children: dict[int, list[int]] = defaultdict(list)
        for tgid in sorted(self._parents):
            children[self._parents[tgid]].append(tgid)
        self._children = children

    def started_by(self, tgid: int) -> list[ProcessId]:
        """The processes that this one started, or that were left to it, and that live, by tgid."""
        found = []
        for child in self._children.get(tgid, ()):
            stat = self._stat(child)
            if stat is None or stat.parent_tgid != tgid:
                self._parents.pop(child, None)  # it is asked for at the next look
            elif not stat.ended:
                found.append(ProcessId(child, stat.start_ticks))
        return found

    def _stat(self, tgid: int) -> ProcessStat | None:
        try:
            return self._procfs.stat(tgid)
        except (OSError, ValueError):  # hidden from us, as if it were not there
            return None
