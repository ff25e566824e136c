"""Which process sends for which engine: from the kernel's credentials on the Unix socket, or from the pid that a hello line claims.

A claimed pid is the sender's own idea of itself. In a container it means nothing out here, so it is looked for among the innermost
pids (`NSpid`) of all processes. What cannot be told apart is not guessed: such an engine is known by its name only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Set
from typing import Final, NamedTuple, TypeVar

from aie_agent.samples import Hello
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.statsd_reasons import Reason
from aie_agent.sources.statsd_series import Identity

REFRESH_S: Final = 5.0
"""A sender that goes on is reported so often; a new one at once."""

SCAN_EVERY_S: Final = 5.0
"""All processes are looked through at most so often: 10 us each."""

MAX_SENDERS: Final = 1024

MAX_NAMES: Final = 32
"""Engines known by name only at a time: anybody may make names up, and those with processes need room too."""

_REMEMBER_S: Final = 60.0
_INIT: Final = 1

_Item = TypeVar("_Item")


class _Found(NamedTuple):
    """A claimed pid that was found, valid while the process is that one, and not for ever: another one may claim it too."""

    tgid: int
    start_ticks: int
    time_s: float


class NamespacePids:
    """Finds the process that calls itself by a pid in a pid namespace of its own."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._own_tgid = os.getpid()  # in a container of its own, the agent is a pid 1 too
        self._found: dict[int, _Found] = {}
        self._scanned_s: float | None = None

    def resolve(self, claims: set[int], now_s: float) -> dict[int, int | None]:
        """For each claimed pid that could be looked for now: the one process that calls itself so, or None where there is none
        or more than one, so that it cannot be told."""
        resolved: dict[int, int | None] = {}
        unknown = set()
        for claim in claims:
            tgid = self._remembered(claim, now_s)
            if tgid is None:
                unknown.add(claim)
            else:
                resolved[claim] = tgid
        if unknown and (self._scanned_s is None or not 0 <= now_s - self._scanned_s < SCAN_EVERY_S):
            self._scanned_s = now_s
            by_pid = self._scan(unknown)
            for claim in unknown:
                resolved[claim] = self._settle(claim, by_pid[claim], now_s)
        return resolved

    def _remembered(self, claim: int, now_s: float) -> int | None:
        found = self._found.get(claim)
        if found is None:
            return None
        if 0 <= now_s - found.time_s < _REMEMBER_S and self._procfs.start_ticks(found.tgid) == found.start_ticks:
            return found.tgid
        del self._found[claim]
        return None

    def _scan(self, wanted: set[int]) -> dict[int, list[int]]:
        by_pid: dict[int, list[int]] = {claim: [] for claim in wanted}
        for tgid in self._procfs.pids():
            try:
                pids = self._procfs.namespace_pids(tgid)
            except PermissionError:
                continue  # hidden from us: then it cannot be told from one that does not exist
            if pids and pids[-1] in by_pid and tgid != self._own_tgid:
                by_pid[pids[-1]].append(tgid)
        return by_pid

    def _settle(self, claim: int, candidates: list[int], now_s: float) -> int | None:
        # Every container has a pid 1, seen from here or not. The one out here is init, which sends nothing.
        if len(candidates) != 1 or candidates[0] == _INIT:
            return None
        start_ticks = self._procfs.start_ticks(candidates[0])
        if start_ticks is None:
            return None
        if len(self._found) >= MAX_SENDERS:
            self._found.clear()
        self._found[claim] = _Found(candidates[0], start_ticks, now_s)
        return candidates[0]


class Senders(NamedTuple):
    """Who was heard: processes that the kernel vouches for, those that claim a pid, and engines of which there is only the name."""

    sure: Set[Hello] = frozenset()
    claims: Set[Identity] = frozenset()
    names: Set[str] = frozenset()


class Heard:
    """Who was heard since the last `take`. Not thread-safe."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self._sure: set[tuple[str, int]] = set()  # plain, since this is looked up for every packet
        self._claims: set[Identity] = set()
        self._names: set[str] = set()

    def add(self, identity: Identity, credential_tgid: int | None, *, may_claim: bool) -> None:
        """Somebody sent for an engine: a process that the kernel vouches for, one that claims a pid, or nobody knows who."""
        if credential_tgid is not None:
            self._keep(self._sure, (identity.engine, credential_tgid))
        elif identity.claimed_pid is not None and may_claim:
            self._keep(self._claims, identity)
        else:
            if identity.claimed_pid is not None:
                self.refused[Reason.FOREIGN_HELLO] += 1
            self._keep(self._names, identity.engine)

    def take(self) -> Senders:
        """Everybody, once."""
        sure, claims, names = self._sure, self._claims, self._names
        self._sure, self._claims, self._names = set(), set(), set()
        return Senders({Hello(*pair) for pair in sure}, claims, names)

    def _keep(self, known: set[_Item], item: _Item) -> None:
        if item in known:
            return
        if len(known) >= MAX_SENDERS:
            self.refused[Reason.SENDER_LIMIT] += 1
        else:
            known.add(item)


class Introductions:
    """Turns what was heard into hellos: a new sender at once, one that goes on every few seconds."""

    def __init__(self, pids: NamespacePids) -> None:
        self.refused: Counter[str] = Counter()
        self._pids = pids
        self._pending: dict[Identity, float] = {}
        self._reported_s: dict[Hello, float] = {}
        self._placed_s: dict[str, float] = {}  # engines of which a process is known
        self._named_s: dict[str, float] = {}  # engines of which there is only the name

    def report(self, senders: Senders, now_s: float) -> list[Hello]:
        """The hellos that are due. A claim that cannot be looked for yet waits for the next scan."""
        found, unplaced = self._resolve(senders.claims, now_s)
        placed = [*senders.sure, *found]
        self._placed_s = _current(self._placed_s, now_s, _REMEMBER_S)
        for hello in placed:
            if hello.engine in self._placed_s or len(self._placed_s) < MAX_SENDERS:
                self._placed_s[hello.engine] = now_s
        due = [*placed, *self._by_name(senders.names | unplaced, now_s)]
        self._reported_s = _current(self._reported_s, now_s, REFRESH_S)
        new = sorted({hello for hello in due if hello not in self._reported_s}, key=lambda hello: (hello.engine, hello.tgid or 0))
        self._reported_s.update(dict.fromkeys(new, now_s))
        return new

    def _resolve(self, claims: Set[Identity], now_s: float) -> tuple[list[Hello], set[str]]:
        """What became of claims: the processes that were found, and the engines whose process was not."""
        for identity in claims:
            if len(self._pending) < MAX_SENDERS:
                self._pending.setdefault(identity, now_s)
        wanted = {identity.claimed_pid for identity in self._pending if identity.claimed_pid is not None}
        resolved = self._pids.resolve(wanted, now_s) if wanted else {}
        found: list[Hello] = []
        unplaced: set[str] = set()
        for identity in [identity for identity in self._pending if identity.claimed_pid in resolved]:
            del self._pending[identity]
            tgid = resolved[identity.claimed_pid or 0]
            if tgid is None:
                unplaced.add(identity.engine)
            else:
                found.append(Hello(identity.engine, tgid))
        return found, unplaced

    def _by_name(self, names: Set[str], now_s: float) -> list[Hello]:
        """Hellos without a process, for engines of which none is known nor being looked for."""
        self._named_s = _current(self._named_s, now_s, _REMEMBER_S)
        looked_for = {identity.engine for identity in self._pending}
        hellos = []
        for engine in sorted(names - looked_for - self._placed_s.keys()):
            if engine not in self._named_s and len(self._named_s) >= MAX_NAMES:
                self.refused[Reason.SENDER_LIMIT] += 1
                continue
            self._named_s[engine] = now_s
            hellos.append(Hello(engine, None))
        return hellos


def _current(times_s: dict[_Item, float], now_s: float, age_s: float) -> dict[_Item, float]:
    return {item: at_s for item, at_s in times_s.items() if 0 <= now_s - at_s < age_s}
