"""Engines of one host that announce themselves by one name: the oldest has it, the others go by the names of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

MAX_NAMES: Final = 256


class ProcessId(NamedTuple):
    """A process for as long as it lives: `start_ticks` is field 22 of /proc/TGID/stat, clock ticks after boot."""

    tgid: int
    start_ticks: int


class Claim(NamedTuple):
    """What became of a name that an engine announced. `own` is the other one that it goes by, None where it has the name.
    `displaced` is the younger engine that had it until now, with its own name."""

    own: str | None = None
    displaced: tuple[ProcessId, str] | None = None


class Namesakes:
    """Who has which name. An engine is told by its root, the process that was started as one (`root_of`): processes without one,
    as the workers of a pool, are not told apart. Not thread-safe."""

    def __init__(self, start_ticks: Callable[[int], int | None], root_of: Callable[[int], int | None]) -> None:
        self._start_ticks = start_ticks
        self._root_of = root_of
        self._holders: dict[str, ProcessId] = {}
        self._own: dict[tuple[str, ProcessId], str] = {}
        self._places: dict[ProcessId, str] = {}
        self._led: set[ProcessId] = set()

    def root(self, process: ProcessId) -> ProcessId | None:
        """The root of the engine that a process belongs to; None where there is none."""
        tgid = self._root_of(process.tgid)
        ticks = None if tgid is None else self._start_ticks(tgid)
        return None if tgid is None or ticks is None else ProcessId(tgid, ticks)

    def lead(self, process: ProcessId) -> None:
        """The configuration leads to this process: its engine has the name that it announces, however young it is."""
        root = self.root(process)
        if root is not None and len(self._led) < MAX_NAMES:
            self._led.add(root)

    def place(self, root: ProcessId, place: str) -> None:
        """What the scan calls the engine of this root by where it serves."""
        if root in self._places or len(self._places) < MAX_NAMES:
            self._places[root] = place

    def claim(self, name: str, root: ProcessId) -> Claim:
        """An engine announces itself as `name`."""
        known = self._own.get((name, root))
        holder = self._holders.get(name)
        if known is not None:  # and keeps that one, also when the other engine ends
            return Claim(known)
        if holder == root or len(self._holders) >= MAX_NAMES or len(self._own) >= MAX_NAMES:
            return Claim()
        if holder is None or not self._lives(holder):
            self._holders[name] = root
            return Claim()
        if self._rank(root) < self._rank(holder):
            self._holders[name] = root
            return Claim(displaced=(holder, self._call(name, holder)))
        return Claim(self._call(name, root))

    def better_names(self, root: ProcessId) -> list[tuple[str, str]]:
        """The names by pid of an engine of which it is known by now where it serves, each with the name by that."""
        place = self._places.get(root)
        found = []
        for (name, of_root), own in list(self._own.items()):
            if of_root == root and own == other_name(name, root) and place not in (None, name):
                found.append((own, str(place)))
        return found

    def rename(self, before: str, after: str) -> None:
        """Says that a name was changed."""
        self._own = {key: after if own == before else own for key, own in self._own.items()}

    def prune(self) -> None:
        """Forgets what ended."""
        self._holders = {name: root for name, root in self._holders.items() if self._lives(root)}
        self._own = {key: own for key, own in self._own.items() if self._lives(key[1])}
        self._places = {root: place for root, place in self._places.items() if self._lives(root)}
        self._led = {root for root in self._led if self._lives(root)}

    def holders(self) -> dict[str, int]:
        """The root of the engine that has a name, by name."""
        return {name: root.tgid for name, root in self._holders.items()}

    def own(self) -> dict[tuple[str, int], str]:
        """The names of the others, by the announced name and root."""
        return {(name, root.tgid): own for (name, root), own in self._own.items()}

    def note(self, names: Collection[str]) -> str | None:
        """Why the engine that is known by one of `names` does not go by the name that it announces; None where it does."""
        for (announced, _), own in self._own.items():
            if own in names:
                holder = self._holders.get(announced)
                whose = f"is process {holder.tgid}'s" if holder is not None else "was another engine's when it came"
                return f"it announces itself as {announced}, which {whose}: give each engine a name of its own"
        return None

    def _call(self, name: str, root: ProcessId) -> str:
        place = self._places.get(root)
        own = place if place is not None and place != name else other_name(name, root)
        self._own[name, root] = own
        return own

    def _rank(self, root: ProcessId) -> tuple[bool, int, int]:
        return root not in self._led, root.start_ticks, root.tgid

    def _lives(self, process: ProcessId) -> bool:
        return self._start_ticks(process.tgid) == process.start_ticks


def other_name(name: str, process: ProcessId) -> str:
    """The name of an engine that announces one that is another's, as long as nothing better is known."""
    return f"{name[:50]}-pid{process.tgid}"
