"""Looks through the host's processes for known engines that nobody announced: by command line and by listening socket.

What a scan costs is what it reads: one small file a process (10 us), the command line of those it has not seen before, and the
descriptors of an engine's processes until its socket is known. The environment of a process is never read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.samples import Batch, Found
from aie_agent.sources import procfs_text as text
from aie_agent.sources.base import SourceError
from aie_agent.sources.containers import Member, Root, computes_on_gpu, joined, pod_uid
from aie_agent.sources.known_engines import Known, engine_of, flag_value, is_title, port_of, read_command
from aie_agent.sources.listeners import Listener, held_sockets, listeners
from aie_agent.sources.procfs import Procfs
from aie_telemetry.names import is_engine_name

MAX_FOUND: Final = 32
"""Most engines that one scan reports: any user can start processes with any command line."""

_ARGV_BYTES: Final = 16384
_YOUNG_S: Final = 60.0
"""So long a process may still become another one under the same name (Python that starts Python), and is read again."""

_KERNEL: Final = 2  # the parent of all kernel threads
_TLS_FLAGS: Final = ("--ssl-certfile", "--ssl-keyfile", "--ssl-cert-file", "--ssl-key-file")


class Process(NamedTuple):
    """One process as a scan sees it. `known` is the engine that its command line names, `argv` is kept for those only."""

    tgid: int
    stat: text.ProcessStat
    known: Known | None = None
    argv: tuple[str, ...] = ()

    @property
    def is_started(self) -> bool:
        """Whether somebody started it as an engine: not one that an engine made, and named."""
        return self.known is not None and not is_title(self.argv, self.known)


class Endpoint(NamedTuple):
    """Where an engine listens. `here` is whether that is in the agent's own network namespace, `as_asked` whether at the port that
    its command line says."""

    inode: str
    at: Listener
    here: bool
    as_asked: bool


class DiscoverySource:
    """All known engines of the host, once a period, as `Batch.found`."""

    name = "discovery"

    def __init__(self, period_s: float = 10.0, proc: Path = Path("/proc")) -> None:
        self.period_s = period_s
        self._scanner = Scanner(proc)

    async def collect(self, now_s: float) -> Batch:
        """Scans in a thread. Raises SourceError where there is no /proc, and, with those that are, when not all are taken."""
        batch = Batch(self.name, now_s)
        batch.found = await asyncio.to_thread(self._scanner.scan)
        left_out = self._scanner.left_out
        if left_out:
            total = len(batch.found) + left_out.total()
            whose = ", ".join(f"{count} of user {uid}" for uid, count in sorted(left_out.items()))
            are = "is" if left_out.total() == 1 else "are"
            raise SourceError(f"the first {len(batch.found)} of {total} engines are watched, {whose} {are} not", batch)
        return batch

    async def close(self) -> None:
        """Holds nothing."""


class Scanner:
    """Scans again and again, and remembers what it read. Not thread-safe."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._procfs = Procfs(proc)
        self._seen: dict[tuple[int, int, bytes], Process] = {}
        self._containers: dict[tuple[int, int, bytes], str | None] = {}
        self._sockets: dict[tuple[int, int], str] = {}  # the socket of an engine, by its first process
        self.left_out: Counter[int] = Counter()
        """Engines that the last scan found and did not report, by user."""

    def scan(self) -> list[Found]:
        """The engines that listen at present, by the tgid of the process that was started. Raises SourceError without a /proc."""
        processes = self._processes()
        groups = groups_of(processes)
        self.left_out = Counter()
        if not groups:
            self._sockets, self._containers = {}, {}
            return []
        for tgid, root in self._beside(processes, groups):
            groups[root].append(tgid)
        here = listeners(self._proc)
        found: dict[int, list[Found]] = {}
        sockets = {}
        for root, members in sorted(groups.items()):
            process = processes[root]
            key = (root, process.stat.start_ticks)
            endpoint = self._endpoint(process, [processes[tgid] for tgid in members], here, self._sockets.get(key))
            if endpoint is not None:
                sockets[key] = endpoint.inode
                uid = self._procfs.uid(root)
                found.setdefault(-1 if uid is None else uid, []).append(self._found(process, members, endpoint))
        self._sockets = sockets
        taken, self.left_out = in_turn(found, {0, os.geteuid()}, MAX_FOUND)
        return taken

    def _processes(self) -> dict[int, Process]:
        uptime_s = self._procfs.uptime_s()
        if uptime_s is None:
            raise SourceError("there is no /proc/uptime: is /proc mounted?")
        seen = {}
        for tgid in self._procfs.pids():
            try:
                stat = self._procfs.stat(tgid)
            except (OSError, ValueError):  # hidden from us, as if it were not there
                continue
            if stat is None or stat.ended or stat.parent_tgid == _KERNEL:
                continue
            # A process that runs another program has another name from then on, and stays the same process.
            key = (tgid, stat.start_ticks, stat.comm)
            known = self._seen.get(key)
            young = uptime_s - stat.start_ticks / self._procfs.ticks_per_second < _YOUNG_S
            seen[key] = known._replace(stat=stat) if known is not None and not young else self._identify(tgid, stat)
        self._seen = seen
        return {process.tgid: process for process in seen.values()}

    def _identify(self, tgid: int, stat: text.ProcessStat) -> Process:
        try:
            line = self._procfs.read(f"{tgid}/cmdline") or b""
        except OSError:
            line = b""
        argv = tuple(line[:_ARGV_BYTES].rstrip(b"\0").decode("utf-8", "replace").split("\0"))
        known = engine_of(argv)
        return Process(tgid, stat) if known is None else Process(tgid, stat, known, argv)

    def _beside(self, processes: Mapping[int, Process], groups: Mapping[int, list[int]]) -> list[tuple[int, int]]:
        """Processes that belong to an engine since they compute in its container, each with the root of its engine."""
        known, self._containers = self._containers, {}

        def container_of(tgid: int) -> str | None:
            # A process that becomes another program has another name; until then it may be on its way into its container.
            stat = processes[tgid].stat
            key = (tgid, stat.start_ticks, stat.comm)
            self._containers[key] = known[key] if key in known else self._container(tgid)
            return self._containers[key]

        roots = [Root(tgid, _kind(processes[tgid])) for tgid in groups]
        members = {
            tgid: Member(each.stat.parent_tgid, each.stat.start_ticks, each.is_started, _kind(each))
            for tgid, each in processes.items()
            if tgid != os.getpid()
        }
        grouped = frozenset(tgid for of_engine in groups.values() for tgid in of_engine)
        return list(joined(roots, members, grouped, container_of, lambda tgid: computes_on_gpu(self._proc / str(tgid))))

    def _container(self, tgid: int) -> str | None:
        return text.container_id(self._cgroup(tgid))

    def _cgroup(self, tgid: int) -> bytes:
        try:
            return self._procfs.read(f"{tgid}/cgroup") or b""
        except OSError:
            return b""

    def _endpoint(self, root: Process, members: list[Process], here: Mapping[str, Listener], before: str | None) -> Endpoint | None:
        assert root.known is not None
        wanted = port_of(root.argv, root.known)
        if before in here:  # nothing else can have this inode as long as the socket is open
            return Endpoint(str(before), here[str(before)], True, here[str(before)].port == wanted)
        theirs: Mapping[str, Listener] = here
        held = [(process, held_sockets(self._proc / str(process.tgid))) for process in members]
        chosen = _choose(held, here, wanted)
        if chosen is None:
            theirs = listeners(self._proc / str(root.tgid))
            chosen = _choose(held, theirs, wanted)
        if chosen is None and any(sockets is None for _, sockets in held):
            # Another user's: who holds the socket cannot be seen, only that somebody listens where the command line says. It has to
            # be that user: a command line can name any port, and so make the agent ask what its writer may not.
            uid = self._procfs.uid(root.tgid)
            chosen = next((inode for inode, at in theirs.items() if at.port == wanted and at.uid == uid), None)
        return None if chosen is None else Endpoint(chosen, theirs[chosen], chosen in here, theirs[chosen].port == wanted)

    def _found(self, root: Process, members: Iterable[int], endpoint: Endpoint) -> Found:
        assert root.known is not None
        container = self._container(root.tgid)
        url, note = page_of(root, endpoint, container)
        flag = root.known.page_flag
        hint = f"it was started without {flag}" if flag and flag not in root.argv else None
        place = _place(root, endpoint, container)
        pod = pod_uid(self._cgroup(root.tgid))
        return Found(_given_name(root) or place, root.known.kind, tuple(members), url, container, note, hint, place, pod)


def in_turn(found: Mapping[int, Sequence[Found]], first: Set[int], most: int) -> tuple[list[Found], Counter[int]]:
    """The `most` that are taken of what was found of each user, and how many of whom are not: all of the users `first` come before,
    then one of each other user in turn, so that nobody can push out what others run."""
    order = [(uid, each) for uid in sorted(first & found.keys()) for each in found[uid]]
    others = [uid for uid in sorted(found) if uid not in first]
    for nth in range(max((len(found[uid]) for uid in others), default=0)):
        order += [(uid, found[uid][nth]) for uid in others if nth < len(found[uid])]
    return [each for _, each in order[:most]], Counter(uid for uid, _ in order[most:])


def groups_of(processes: Mapping[int, Process]) -> dict[int, list[int]]:
    """The processes of each engine, by the one that was started, which comes first: itself, all that it started, and what stayed of
    its session after their parent ended. What computes beside it in its container is added later (`containers`)."""
    roots: dict[int, int | None] = {}

    def root_of(tgid: int, depth: int = 0) -> int | None:
        if tgid not in roots:
            process = processes.get(tgid)
            roots[tgid] = None  # parents are read one by one: a circle is not impossible
            if process is not None and depth < 200:
                above = root_of(process.stat.parent_tgid, depth + 1)
                same = above is not None and process.known in (None, processes[above].known)
                roots[tgid] = above if same else tgid if process.is_started else None
        return roots[tgid]

    groups: dict[int, list[int]] = {}
    for tgid in processes:
        if root_of(tgid) == tgid:
            groups[tgid] = [tgid]
    for tgid, process in sorted(processes.items()):
        root = root_of(tgid)
        if root is None and process.stat.session in groups:
            root = process.stat.session
        if root is not None and root != tgid:
            groups[root].append(tgid)
    return groups


def _kind(process: Process) -> str:
    return process.known.kind if process.known is not None else ""


def _choose(held: Iterable[tuple[Process, set[str] | None]], known: Mapping[str, Listener], wanted: int) -> str | None:
    """The socket at which an engine serves: where its command line says, else the lowest port of a process that was started as an
    engine. (Workers listen too, for each other, at any port and before the engine is ready.)"""
    own = [(process, inode) for process, sockets in held for inode in sockets or () if inode in known]
    asked = [inode for _, inode in own if known[inode].port == wanted]
    served = sorted((inode for process, inode in own if process.is_started), key=lambda inode: known[inode].port)
    return next(iter(asked or served), None)


def page_of(root: Process, endpoint: Endpoint, container: str | None) -> tuple[str | None, str | None]:
    """The URL of an engine's page, if it can be read over this host's loopback; else why not."""
    assert root.known is not None
    known, at = root.known, endpoint.at
    give = "give its page with --engine NAME=URL"
    if not endpoint.here:
        where = f"container {container}" if container else "another network namespace"
        return None, f"it listens at port {at.port} of {where}, not of this host: publish the port and {give}"
    if known.page_apart and not endpoint.as_asked:
        return None, f"it does not listen at port {port_of(root.argv, known)}, where its metrics page would be"
    if flag_value(read_command(root.argv).arguments, _TLS_FLAGS) is not None:
        return None, f"it serves TLS: {give}"
    if at.address.is_unspecified:
        host = "127.0.0.1" if isinstance(at.address, ipaddress.IPv4Address) else "[::1]"
    elif at.address.is_loopback:
        host = str(at.address) if at.address.version == 4 else f"[{at.address}]"
    else:
        return None, f"it listens at {at.address} only, not on loopback: {give}"
    return f"http://{host}:{at.port}{known.path}", None


def _given_name(root: Process) -> str | None:
    """The name that its command line gives it."""
    assert root.known is not None
    given = flag_value(read_command(root.argv).arguments, (root.known.name_flag,)) if root.known.name_flag else None
    return given if given is not None and is_engine_name(given) else None


def _place(root: Process, endpoint: Endpoint, container: str | None) -> str:
    assert root.known is not None
    if endpoint.here:
        return f"{root.known.kind}-{endpoint.at.port}"
    return f"{root.known.kind}-{container or f'pid{root.tgid}'}"
