"""Which process sends for which engine: from the kernel's credentials on the Unix socket, or from the pid that a hello line claims.

A claimed pid is the sender's own idea of itself. In a container it means nothing out here, so it is looked for among the innermost
pids (`NSpid`) of all processes.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final, NamedTuple, TypeVar

from aie_agent.samples import Hello
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.statsd_series import Identity

REFRESH_S: Final = 5.0
"""A sender that goes on is reported so often; a new one at once."""

SCAN_EVERY_S: Final = 5.0
"""All processes are looked through at most so often: 10 us each."""

MAX_SENDERS: Final = 1024
_REMEMBER_S: Final = 60.0


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
        """For each claimed pid that could be looked for now, the process, or None where it cannot be told.

        Where exactly one process has it as its innermost pid, that one. Where none or several have, the process that has it
        out here, if there is one: a sender on the host itself.
        """
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
        tgid = candidates[0] if len(candidates) == 1 else claim
        start_ticks = self._procfs.start_ticks(tgid)
        if start_ticks is None:
            return None
        if len(self._found) >= MAX_SENDERS:
            self._found.clear()
        self._found[claim] = _Found(tgid, start_ticks, now_s)
        return tgid


class Heard:
    """Who was heard since the last `take`. Not thread-safe."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self._sure: set[tuple[str, int]] = set()  # plain, since this is looked up for every packet
        self._claims: set[Identity] = set()

    def add(self, identity: Identity, credential_tgid: int | None, *, may_claim: bool) -> None:
        """Somebody sent for an engine: a process that the kernel vouches for, or one that may claim a pid and does."""
        if credential_tgid is not None:
            self._keep(self._sure, (identity.engine, credential_tgid))
        elif identity.claimed_pid is not None:
            if may_claim:
                self._keep(self._claims, identity)
            else:
                self.refused["foreign_hello"] += 1

    def take(self) -> tuple[set[Hello], set[Identity]]:
        """Senders that are known for sure, and those that claim a pid."""
        sure, claims = self._sure, self._claims
        self._sure, self._claims = set(), set()
        return {Hello(*pair) for pair in sure}, claims

    def _keep(self, known: set[_Item], item: _Item) -> None:
        if item in known:
            return
        if len(known) >= MAX_SENDERS:
            self.refused["sender_limit"] += 1
        else:
            known.add(item)


class Introductions:
    """Turns what was heard into hellos: a new sender at once, one that goes on every few seconds."""

    def __init__(self, pids: NamespacePids) -> None:
        self._pids = pids
        self._pending: dict[Identity, float] = {}
        self._reported_s: dict[Hello, float] = {}

    def report(self, sure: set[Hello], claims: set[Identity], now_s: float) -> list[Hello]:
        """The hellos that are due. A claim that cannot be looked for yet waits for the next scan."""
        due = [*sure, *self._resolve(claims, now_s)]
        self._reported_s = {hello: at_s for hello, at_s in self._reported_s.items() if 0 <= now_s - at_s < REFRESH_S}
        new = sorted(hello for hello in dict.fromkeys(due) if hello not in self._reported_s)
        self._reported_s.update(dict.fromkeys(new, now_s))
        return new

    def _resolve(self, claims: set[Identity], now_s: float) -> list[Hello]:
        for identity in claims:
            if len(self._pending) < MAX_SENDERS:
                self._pending.setdefault(identity, now_s)
        wanted = {identity.claimed_pid for identity in self._pending if identity.claimed_pid is not None}
        resolved = self._pids.resolve(wanted, now_s) if wanted else {}
        hellos = []
        for identity in [identity for identity in self._pending if identity.claimed_pid in resolved]:
            del self._pending[identity]
            tgid = resolved[identity.claimed_pid or 0]
            if tgid is not None:
                hellos.append(Hello(identity.engine, tgid))
        return hellos
