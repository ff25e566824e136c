"""What an engine is: a name and a set of processes, each a tgid with its start time (a tgid alone is reused).

Three things name engines: the configuration, the StatsD `engine` tag with the sender's credentials, and the scan for the processes
of known engines. They are merged by tgid; the configuration wins the name, and StatsD wins it over the scan.

Anybody can start a process that calls itself as an engine of the configuration. So such an engine takes only processes that the
configuration leads to (the socket of its page, its pid file), and others of the same user, of root or of the agent's user; none at
all when its page is on another host; the first that comes where the configuration gives its name only. The rest get another name.

And two engines may announce one name, if only because both took the default: see `namesakes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

from aie_agent.namesakes import Namesakes, ProcessId, other_name

ROOT_UID: Final = 0


def _of_root(_: int) -> int:
    return ROOT_UID


def _of_none(_: int) -> None:
    """No process belongs to a known engine."""


class Origin(IntEnum):
    """Who named an engine; the higher one wins the name."""

    SCAN = 1
    STATSD = 2
    CONFIG = 3


class Home(IntEnum):
    """What the configuration says of where an engine's processes are."""

    HERE = 1
    """Its page or its pid file is on this host, and leads to them."""
    ELSEWHERE = 2
    """Its page is on another host."""
    UNSAID = 3
    """There is only its name."""


@dataclass(slots=True)
class _Entry:
    origin: Origin
    home: Home = Home.UNSAID
    uids: set[int] = field(default_factory=set)
    """Whose processes the configuration led to."""
    processes: set[ProcessId] = field(default_factory=set)
    ever_alive: bool = False
    down_since_s: float | None = None
    back_since_s: float | None = None
    declared: bool = True
    declared_s: float | None = None


class Engines:
    """The engines that the agent knows of. `start_ticks(tgid)` says when a live process started, `uid_of(tgid)` whose it is, or
    None. Of `trusted_uids` any process may be an engine of the configuration. `root_of(tgid)` is the process that was started as
    the known engine that a process belongs to, None where it belongs to none.

    Not thread-safe: belongs to the event-loop thread.
    """

    MAX_ENGINES = 64
    MAX_PROCESSES = 256
    MAX_NAMES_OF_A_PROCESS = 8
    FORGET_DOWN_AFTER_S = 3600.0
    FORGET_UNSEEN_AFTER_S = 300.0
    AWAY_S = 600.0
    """So long without a process it was stopped; what dies and is started again waits for less (Kubernetes: 300 s at most)."""

    def __init__(
        self,
        start_ticks: Callable[[int], int | None],
        uid_of: Callable[[int], int | None] = _of_root,
        trusted_uids: frozenset[int] = frozenset({ROOT_UID}),
        root_of: Callable[[int], int | None] = _of_none,
    ) -> None:
        self._start_ticks = start_ticks
        self._uid_of = uid_of
        self._trusted_uids = trusted_uids
        self._entries: dict[str, _Entry] = {}
        self._aliases: dict[str, str] = {}
        self.namesakes = Namesakes(start_ticks, root_of)
        self.displaced: list[str] = []
        """Names that went over to an older engine: what was kept under them is not of that one. For whoever keeps it to clear."""
        self.refused = 0
        """Declarations that the full table had no room for."""

    def canonical(self, name: str) -> str:
        """The name under which an engine is known that calls itself `name`."""
        return self._aliases.get(name, name)

    def aliases(self) -> dict[str, str]:
        """The names that engines are known by, by other names of theirs."""
        return dict(self._aliases)

    def configure(self, name: str, home: Home) -> None:
        """Notes that the configuration names an engine. Before anything else is declared."""
        entry = self._entry(name, Origin.CONFIG)
        if entry is not None:
            entry.home = home

    def declare(self, name: str, origin: Origin, tgid: int | None = None) -> str | None:
        """Notes that engine `name` exists, and, with a tgid, that this process is one of its.

        Returns the name under which the engine is known, which is another where the configuration names its process, or names the
        engine and this process is none of its; None when the caps are reached or the process is gone. Engines that announce
        themselves may share a process.
        """
        if tgid is None:
            name = name if origin is Origin.CONFIG else self.canonical(name)
            return name if self._entry(name, origin) is not None else None
        ticks = self._start_ticks(tgid)
        if ticks is None:
            return None
        process = ProcessId(tgid, ticks)
        known: set[ProcessId] = set()
        if origin is Origin.CONFIG:
            known = self._absorb(name, process)
            self.namesakes.lead(process)
        else:
            root = self.namesakes.root(process)
            name = name if root is None else self._claimed(name, root)
            name = self._configured_name(name, process)
            if not self._admits(name, process):
                name = other_name(name, process)
            if self._has_names_enough(name, process):
                return None
        known |= self._unscan(name, process)
        entry = self._entry(name, origin)
        self._note_owner(entry, process, origin)
        known = {each for each in known if self._admits(name, each)}
        if entry is None or (process not in entry.processes and len(entry.processes) >= self.MAX_PROCESSES):
            return None
        entry.processes.add(process)
        entry.processes |= set(sorted(known - entry.processes)[: self.MAX_PROCESSES - len(entry.processes)])
        entry.ever_alive = True
        return name

    def discover(self, name: str, tgids: Iterable[int], place: str | None = None) -> str | None:
        """Notes that the scan found an engine, of these processes, that it would call `name`.

        Returns the name under which it is known: whoever else named one of the processes wins it, and gets the others. None as in
        `declare`. `place` is what it would be called by where it serves, if another engine has its name.
        """
        processes = [ProcessId(tgid, ticks) for tgid in tgids if (ticks := self._start_ticks(tgid)) is not None]
        if not processes:
            return None
        if place is not None:
            self.namesakes.place(processes[0], place)
            name = self._claimed(name, processes[0])
            for before, after in self.namesakes.better_names(processes[0]):
                self._rename(before, after)
                name = after if name == before else name
        owner = self._owner_of(processes)
        if owner is not None:
            if name != owner and name in self._entries and self._entries[name].origin is Origin.SCAN:
                del self._entries[name]  # found before its process was named
            self._alias(name, owner)
            name = owner
        else:
            name = self._unaliased(name)
            known = self._entries.get(name)
            is_configured = known is not None and known.origin is Origin.CONFIG
            if known is not None and is_configured and (known.processes or not self._admits(name, processes[0])):
                # Any user can start something that calls itself so: the configured engine is another one, and stays alone.
                name = other_name(name, processes[0])
        entry = self._entry(name, Origin.SCAN)
        if entry is None:
            return None
        self._note_owner(entry, processes[0], Origin.SCAN)
        for process in [each for each in processes if self._admits(name, each)]:
            if len(entry.processes) < self.MAX_PROCESSES:
                entry.processes.add(process)
        entry.ever_alive = True
        return name

    def _claimed(self, name: str, root: ProcessId) -> str:
        """The name of the engine of this root that announces `name`; what a younger one did under that name becomes its own."""
        claim = self.namesakes.claim(name, root)
        if claim.displaced is None:
            return name if claim.own is None else claim.own
        other, own = claim.displaced
        entry = self._entries.get(self.canonical(name))
        theirs = set() if entry is None else {each for each in entry.processes if self.namesakes.root(each) == other}
        if entry is not None and theirs:
            self._aliases.pop(own, None)
            apart = self._entry(own, Origin.STATSD)
            entry.processes -= theirs
            self.displaced.append(name)
            if apart is not None:
                apart.processes |= theirs
                apart.ever_alive = True
        return name

    def _rename(self, before: str, after: str) -> None:
        """Another name for an engine that is known by its pid, unless a living one has that."""
        entry, there = self._entries.get(before), self._entries.get(after)
        if entry is None or (there is not None and (there.processes - entry.processes or there.origin is Origin.CONFIG)):
            return
        del self._entries[before]
        self._entries[after] = entry
        self._aliases.pop(after, None)
        self._alias(before, after)
        self.namesakes.rename(before, after)

    def note(self, name: str) -> str | None:
        """Why an engine does not go by the name that it announces; None where it does."""
        return self.namesakes.note([name, *(alias for alias, owner in self._aliases.items() if owner == name)])

    def _admits(self, name: str, process: ProcessId) -> bool:
        """Whether a process that the scan found, or that announced itself, may be one of engine `name`."""
        entry = self._entries.get(name)
        if entry is None or entry.origin is not Origin.CONFIG or process in entry.processes:
            return True
        if entry.home is Home.ELSEWHERE:
            return False
        uid = self._uid_of(process.tgid)
        is_first = entry.home is Home.UNSAID and not entry.processes
        return is_first or uid in self._trusted_uids or uid in entry.uids

    def _note_owner(self, entry: _Entry | None, process: ProcessId, origin: Origin) -> None:
        """The configuration led to this process; or it is the first of an engine of which the configuration gives the name only."""
        if entry is None or entry.origin is not Origin.CONFIG:
            return
        is_first = entry.home is Home.UNSAID and not entry.processes
        if is_first:
            entry.uids.clear()
        if origin is Origin.CONFIG or is_first:
            uid = self._uid_of(process.tgid)
            entry.uids |= {uid} if uid is not None else set()

    def _owner_of(self, processes: Iterable[ProcessId]) -> str | None:
        """The engine that was named by others than the scan and has one of these processes; the configuration's first."""
        wanted = set(processes)
        owners = [(e.origin, name) for name, e in self._entries.items() if e.origin > Origin.SCAN and e.processes & wanted]
        return max(owners, key=lambda owner: owner[0])[1] if owners else None

    def _unscan(self, name: str, process: ProcessId) -> set[ProcessId]:
        """Somebody named a process that the scan had found: it is that engine, and so are the processes found with it."""
        found = next(
            (n for n, e in self._entries.items() if e.origin is Origin.SCAN and n != name and process in e.processes), None
        )
        if found is None:
            return set()
        processes = self._entries.pop(found).processes
        self._alias(found, name)
        return processes

    def _make_room(self) -> bool:
        """Forgets the engine that is down for longest and that the configuration does not name."""
        down = {
            name: e.down_since_s
            for name, e in self._entries.items()
            if e.origin is not Origin.CONFIG and e.down_since_s is not None
        }
        if down:
            del self._entries[min(down, key=lambda name: down[name])]
        return bool(down)

    def _has_names_enough(self, name: str, process: ProcessId) -> bool:
        """One process must not fill the table with names."""
        others = sum(process in entry.processes for other, entry in self._entries.items() if other != name)
        return others >= self.MAX_NAMES_OF_A_PROCESS

    def _entry(self, name: str, origin: Origin) -> _Entry | None:
        entry = self._entries.get(name)
        if entry is None:
            if len(self._entries) >= self.MAX_ENGINES and not self._make_room():
                self.refused += 1
                return None
            entry = self._entries[name] = _Entry(origin)
        entry.origin = max(entry.origin, origin)
        entry.declared = True
        return entry

    def _configured_name(self, name: str, process: ProcessId) -> str:
        """What the engine that calls itself `name` is called in the configuration, if that names its process."""
        for owner, entry in self._entries.items():
            if entry.origin is Origin.CONFIG and process in entry.processes:
                known = self._entries.get(name)
                if known is not None and known.origin is not Origin.CONFIG and not known.processes:
                    del self._entries[name]  # announced before its process was seen to be the configured one
                self._alias(name, owner)
                return owner
        return self._unaliased(name)

    def _unaliased(self, name: str) -> str:
        """The engine that is known by another name than `name`; after a restart it is that one again."""
        owner = self._aliases.get(name, name)
        known = self._entries.get(owner)
        if owner != name and (known is None or known.processes):
            # That engine lives, and this is none of its processes (or it is forgotten): another engine of that name.
            del self._aliases[name]
            return name
        return owner

    def _absorb(self, name: str, process: ProcessId) -> set[ProcessId]:
        """The configuration names a process: the engine that announced it by another name is this one, if it is the only one.
        Returns that one's processes."""
        announced = [
            other
            for other, entry in self._entries.items()
            if other != name and entry.origin is Origin.STATSD and process in entry.processes
        ]
        if len(announced) != 1:
            return set()
        processes = self._entries.pop(announced[0]).processes
        self._alias(announced[0], name)
        return processes

    def _alias(self, name: str, owner: str) -> None:
        if name not in self._entries and name != owner and len(self._aliases) < self.MAX_ENGINES:
            self._aliases[name] = owner

    def silent(self) -> list[str]:
        """Names under which nothing may be current: of engines that are down, and those that the configuration replaced."""
        return [name for name in self._entries if self.state(name) == "down"] + list(self._aliases)

    def prune(self, now_s: float, alive: Collection[ProcessId] = ()) -> list[str]:
        """Forgets processes that ended, and returns the engines that lost their last one just now. Those that were seen `alive`
        since the call before are not looked at again.

        An engine stays when it is down, since that is what people want to see. One that the configuration does not name is
        forgotten after an hour, or after five minutes of silence if no process of it was ever seen: names cannot fill the table.
        """
        went_down = []
        self.namesakes.prune()
        for name, entry in list(self._entries.items()):
            entry.processes = {p for p in entry.processes if p in alive or self._start_ticks(p.tgid) == p.start_ticks}
            if entry.declared or entry.declared_s is None:
                entry.declared, entry.declared_s = False, now_s
            if entry.processes or not entry.ever_alive:
                if entry.down_since_s is not None and now_s - entry.down_since_s >= self.AWAY_S:
                    entry.back_since_s = now_s
                entry.down_since_s = None
            elif entry.down_since_s is None:
                entry.down_since_s = now_s
                went_down.append(name)
            if entry.origin is not Origin.CONFIG and self._is_forgotten(entry, now_s):
                del self._entries[name]
        self._aliases = {name: owner for name, owner in self._aliases.items() if owner in self._entries}
        return went_down

    def _is_forgotten(self, entry: _Entry, now_s: float) -> bool:
        if entry.down_since_s is not None:
            return now_s - entry.down_since_s > self.FORGET_DOWN_AFTER_S
        unseen = not entry.ever_alive and entry.declared_s is not None
        return unseen and now_s - (entry.declared_s or now_s) > self.FORGET_UNSEEN_AFTER_S

    def recall(self, name: str, last_s: float) -> bool:
        """Notes that an engine had a process at `last_s`, before the agent was restarted, and has none now. Returns whether it is
        so: not of one that lives, that goes by another name, or whose page the configuration now says is elsewhere."""
        known = self._entries.get(name)
        is_elsewhere = known is not None and known.home is Home.ELSEWHERE
        if self.state(name) != "unknown" or self.canonical(name) != name or is_elsewhere:
            return False
        entry = self._entry(name, Origin.SCAN)
        if entry is None:
            return False
        entry.ever_alive, entry.down_since_s = True, last_s
        return True

    def names(self) -> list[str]:
        """All engines, in the order in which they became known."""
        return list(self._entries)

    def processes(self, name: str) -> list[ProcessId]:
        """The processes of an engine, by tgid."""
        entry = self._entries.get(name)
        return sorted(entry.processes, key=lambda process: process.tgid) if entry else []

    def state(self, name: str) -> Literal["up", "down", "unknown"]:
        """ "up" with a live process, "down" after the last one ended, "unknown" while none was ever seen."""
        entry = self._entries.get(name)
        if entry is None or not (entry.processes or entry.ever_alive):
            return "unknown"
        return "up" if entry.processes else "down"

    def down_since_s(self, name: str) -> float | None:
        """When the last process of an engine was found to be gone, in the time of `prune`; None while it is not down."""
        entry = self._entries.get(name)
        return entry.down_since_s if entry else None

    def back_since_s(self, name: str) -> float | None:
        """When an engine last had a process again after `AWAY_S` or longer without; None where it never was away so long."""
        entry = self._entries.get(name)
        return entry.back_since_s if entry else None
