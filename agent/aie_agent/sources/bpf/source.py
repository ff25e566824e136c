"""The source "bpf": tells the child which processes to watch, and turns its reports into samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from aie_agent.config import BpfSection
from aie_agent.identity import Engines
from aie_agent.namesakes import ProcessId
from aie_agent.samples import Batch, Count
from aie_agent.sources.base import SourceError
from aie_agent.sources.bpf.child import COMMAND, Child, ChildError
from aie_agent.sources.bpf.keeper import Keeper
from aie_agent.sources.bpf.lock_windows import LockWindows, Looked
from aie_agent.sources.bpf.points import WHOLE, Levels, UnfitError, add_up, kinds_held
from aie_agent.sources.bpf.recent import RecentLocks, summaries
from aie_agent.sources.bpf.targets import Watched, search
from aie_agent.sources.process_tree import ProcessTree
from aie_agent.sources.procfs import Procfs
from aie_ebpf.messages import Coverage, OomKill, Ready, Report, Watch, WindowClosed
from aie_telemetry import api

SEARCH_EVERY_S: Final = 5.0
"""How often descendants of engines are looked for, if the engines' own processes stay the same."""

_PATIENCE_S: Final = 0.1
"""A report that is due is waited for so long: the periods of agent and child are equal, and drift."""

_OWNER_KEPT_S: Final = 60.0
"""For how long it is remembered whose a process was: that it was killed is told when it is gone."""

EVERYTHING: Final = "ebpf"
"""Stands for all sets where none works."""


XidTeller = Callable[[str, int, str, float], None]
"""Takes an error that the NVIDIA driver's tracepoint told of: device, number, words, when."""


def nobody(device: str, code: int, text: str, now_s: float) -> None:
    """Where no GPUs are read."""


class BpfSource:
    """`aie_process_wait_*`, `aie_cuda_*`, `aie_host_block_io_*` and the costs of probes. `window_s` is over how long locks are
    added up. `command` and `keeper` are for tests."""

    name = "bpf"

    def __init__(
        self,
        engines: Engines,
        procfs: Procfs,
        section: BpfSection,
        window_s: float,
        tell_xid: XidTeller = nobody,
        command: Sequence[str] = COMMAND,
        keeper: Callable[[Sequence[str], Callable[[], float]], Keeper] = Keeper,
    ) -> None:
        self.period_s = float(section.period)
        self._tell_xid = tell_xid
        self._engines = engines
        self._tree = ProcessTree(procfs)
        self._keeper = keeper((*command, *arguments(section)), time.monotonic)
        self._child: Child | None = None
        self._watched = Watched((), {})
        self._named: dict[str, list[ProcessId]] = {}
        self._searched_s = float("-inf")
        self._owners: dict[int, tuple[str, float]] = {}
        self._kinds: dict[str, dict[str, None]] = {}
        self._coverage: tuple[Coverage, ...] = ()
        self._summaries: dict[str, tuple[api.Coverage, ...]] = {}
        self._locks = RecentLocks(window_s)
        self._lock_windows = LockWindows()

    async def collect(self, now_s: float) -> Batch:
        """What the child reported since the last time. Raises SourceError while there is no child that works."""
        try:
            child = await self._keeper.child()
            await self._watch(child, now_s)
            messages = await child.reports(_PATIENCE_S)
            return self._batch(messages, await child.until_ready(), now_s)
        except ChildError as error:
            await self._keeper.failed(error)
            self._forget()
            self._lock_windows.fail(str(error))
            raise SourceError(str(error)) from error

    async def close(self) -> None:
        """Ends the child, which detaches its probes."""
        await self._keeper.close()

    def locks(self, engine: str) -> tuple[api.Lock, ...]:
        """The locks of an engine that threads waited for longest."""
        return self._locks.of(engine)

    async def lock_stacks(self, engine: str, locks: Sequence[tuple[int, int]], seconds: float) -> Looked:
        """Stacks of an engine's threads that begin to wait at these locks (tgid, address) within `seconds`."""
        if self._child is None:
            return Looked((), self._keeper.reason or "probes are not ready")
        return await self._lock_windows.look(self._child.send, engine, locks, seconds)

    def coverage(self, engine: str) -> tuple[api.Coverage, ...]:
        """What can be seen of an engine, and what cannot."""
        if self._keeper.reason:
            return (api.Coverage(set=EVERYTHING, state="off", reason=self._keeper.reason),)
        return self._summaries.get(engine, ())

    def note(self, engine: str) -> str | None:
        """Which processes of an engine are not watched; None where all are."""
        return self._watched.left_out.get(engine)

    def counts(self) -> Iterable[Count]:
        """For the agent's own metrics."""
        yield "aie_agent_bpf_starts_total", (), float(self._keeper.starts)
        if self._child is not None:
            yield "aie_agent_bpf_overrun_total", (), float(self._child.overrun)

    async def _watch(self, child: Child, now_s: float) -> None:
        """Sends the processes to watch where they are others than the child knows of."""
        named = {name: self._engines.processes(name) for name in self._engines.names()}
        is_new_child = child is not self._child
        if not is_new_child and named == self._named and 0 <= now_s - self._searched_s < SEARCH_EVERY_S:
            return
        watched = await asyncio.to_thread(search, named, self._tree)
        if is_new_child or watched.targets != self._watched.targets:
            child.send(Watch(targets=watched.targets))
        self._child, self._named, self._watched, self._searched_s = child, named, watched, now_s
        self._owners = {tgid: owner for tgid, owner in self._owners.items() if now_s - owner[1] < _OWNER_KEPT_S}
        self._owners |= {target.tgid: (target.engine, now_s) for target in watched.targets}
        self._kinds = {engine: kinds for engine, kinds in self._kinds.items() if engine in named}

    def _batch(self, messages: Sequence[Report | WindowClosed], ready: Ready, now_s: float) -> Batch:
        batch = Batch(self.name, now_s)
        self._lock_windows.take(messages)
        reports = [each for each in messages if isinstance(each, Report)]
        for report in reports:
            if report.coverage is not None:
                self._coverage, self._summaries = report.coverage, summaries(report.coverage)
            self._locks.take(report, now_s)
            batch.events += [self._oom_event(kill, now_s) for kill in report.oom_kills]
            for xid in report.xids:
                self._tell_xid(xid.device, xid.code, xid.text, now_s)
            for engine, kind in kinds_held(report):
                self._kinds.setdefault(engine, {})[kind] = None
        try:
            sums = add_up(messages, Levels(ready, self._coverage, self._kinds))
        except UnfitError as error:
            raise ChildError(f"the BPF child is of another version: {error}") from error
        batch.points, batch.histograms = sums.points(), sums.histograms()
        batch.whole = WHOLE if reports else ()
        return batch

    def _oom_event(self, kill: OomKill, now_s: float) -> api.Event:
        engine = self._owners.get(kill.tgid, ("", 0.0))[0]
        amounts = {"anon_bytes": kill.anon_bytes, "file_bytes": kill.file_bytes, "shmem_bytes": kill.shmem_bytes}
        command = "".join(each if each.isprintable() else "?" for each in kill.command)[:64] or "a process"
        return api.Event(
            time_s=now_s,
            kind="oom_kill",
            engine=engine,
            summary=f"the kernel killed {command} (pid {kill.tgid}) for lack of memory",
            details={"pid": str(kill.tgid)} | {name: float(each) for name, each in amounts.items() if each is not None},
        )

    def _forget(self) -> None:
        """What a child said that is gone is not so any more."""
        self._child = None
        self._coverage, self._summaries = (), {}


def arguments(section: BpfSection) -> list[str]:
    """The child's command line."""
    without = ["--without", ",".join(section.without)] if section.without else []
    return ["--budget", f"{section.budget:g}", "--period", f"{float(section.period):g}", *without]
