"""Which processes are watched by which sets, and what came of it: attach, read, charge, detach, report. One object, one thread."""

from __future__ import annotations

import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from aie_ebpf import messages
from aie_ebpf.budget import Ledger
from aie_ebpf.charges import Charges
from aie_ebpf.closer import Closer
from aie_ebpf.cuda_libraries import CudaLibraries
from aie_ebpf.door import Bcc, BpfError
from aie_ebpf.host import HostProbes
from aie_ebpf.messages import Coverage, Report, SetState, Target
from aie_ebpf.probes import SETS, When
from aie_ebpf.python_runtime import gil_range
from aie_ebpf.readers.waits import HostUse
from aie_ebpf.uprobe_sets import Attached, UprobeSets
from aie_ebpf.windows import Windows

_WAIT_SETS: Final = ("locks", "sched", "faults")
_CUDA_SETS: Final = tuple(each.name for each in SETS if each.when is When.CUDA)
_WINDOW_SETS: Final = tuple(each.name for each in SETS if each.when is When.WINDOW)
# Libraries are loaded after a process has begun, some much later: how long after the last look it is looked at again.
_LOOKS_S: Final = (2.0, 3.0, 10.0, 15.0)
_LATER_S: Final = 30.0
# Attaching takes some milliseconds a probe; a report must not wait for many new processes.
_LOOKING_S: Final = 0.5
_PAGE: Final = resource.getpagesize()


@dataclass(slots=True)
class _Process:
    """A target, and what is attached to it."""

    target: Target
    look_at_s: float = 0.0
    looks: int = 0
    here: bool = False
    attached: dict[str, Attached] = field(default_factory=dict)
    coverage: dict[str, Coverage] = field(default_factory=dict)


class Watcher:
    """All that the child does besides talking."""

    def __init__(self, bcc: Bcc, without: frozenset[str], ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        """Compiles and attaches what watches the whole host. Raises BpfError."""
        self._clock = clock
        self._closer = Closer()
        self._host = HostProbes(bcc, without)
        self._uprobes = UprobeSets(bcc, without)
        self._ledger = ledger
        self._charges = Charges(ledger, self._uprobes.mixes)
        self._windows = Windows(self._uprobes, self._closer)
        self._processes: dict[int, _Process] = {}
        self._reported_s = self._charged_s = clock()
        self._cpu_s = time.process_time()
        self._last_coverage: tuple[Coverage, ...] | None = None

    def states(self) -> tuple[SetState, ...]:
        """Every set: whether it can be used on this host."""
        return (*self._host.states(), *self._uprobes.states())

    @property
    def guards(self) -> bool:
        """Whether uprobes are attached, so that `guard` is to be called every budget.LOOK_S."""
        return bool(self._windows) or any(process.attached for process in self._processes.values())

    def watch(self, targets: Iterable[Target]) -> None:
        """These are to be watched, and no others."""
        wanted = {target.tgid: target for target in targets}
        before = self._engines()
        for tgid, process in list(self._processes.items()):
            if wanted.get(tgid) != process.target:
                self._leave(tgid, self._processes.pop(tgid))
        for tgid, target in wanted.items():
            self._processes.setdefault(tgid, _Process(target))
        self._charges.forget(before - self._engines(), self._clock())
        self._host.watch_processes(bool(self._processes))
        self._look()

    def open_window(self, window: messages.OpenWindow) -> None:
        """Attaches a set for a while; what comes of it is in a later `tick`."""
        targets = [each.target for each in self._processes.values() if each.here and each.target.engine == window.engine]
        self._windows.open(window, targets, self._clock())

    def guard(self) -> None:
        """Charges what probes took since the last call; who took too much leaves the engine alone from now on."""
        now_s = self._clock()
        period_s, self._charged_s = now_s - self._charged_s, now_s
        hits: dict[tuple[str, str], int] = defaultdict(int)
        by_process = self._host.watched.hits()
        for tgid, process in self._processes.items():
            for name, count in by_process.get(tgid, {}).items():
                hits[process.target.engine, name] += count
        took_s = self._charges.add(hits, period_s, now_s)
        self._windows.charge(hits, took_s)
        for engine in self._engines():
            for gone in self._ledger.judge(engine, now_s) or ():
                self._windows.close(engine, gone)
                for tgid, process in self._processes.items():
                    if process.target.engine == engine and process.here:
                        self._look_at(tgid, process)

    def tick(self) -> list[messages.ToAgent]:
        """What is due: looks at processes, reads the maps. The report, and windows that ended. Raises BpfError."""
        self._look()
        self.guard()
        now_s = self._clock()
        period_s, self._reported_s = max(now_s - self._reported_s, 1e-3), now_s
        before_s = self._cpu_s
        self._cpu_s = time.process_time()
        began_s = time.perf_counter()
        parts = self._read()
        coverage = tuple(row for process in self._processes.values() for row in process.coverage.values())
        changed = coverage != self._last_coverage
        self._last_coverage = coverage
        report = msgspec.structs.replace(
            parts,
            period_s=period_s,
            costs=self._charges.report(),
            coverage=coverage if changed else None,
            resident_bytes=_resident_bytes(),
            cpu_s=max(self._cpu_s - before_s, 0.0),
            read_s=time.perf_counter() - began_s,
        )
        return [report, *self._windows.tick(now_s)]

    def finish(self, timeout_s: float) -> None:
        """Detaches everything, as far as the time allows; the kernel detaches the rest when the process ends."""
        for tgid in list(self._processes):
            self._leave(tgid, self._processes.pop(tgid))
        for name in self._host.on:
            self._host.detach(name)
        self._closer.finish(timeout_s)

    def _read(self) -> Report:
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        uses = self._host.waits.read(now_ns, self._host.on)
        faults = self._host.watched.major_faults() if "faults" in self._host.on else {}
        cuda = self._uprobes.read_cuda(now_ns)
        gc = self._uprobes.read_gc()
        lost: Counter[str] = Counter()
        for each in (self._host.lost.read(), *self._uprobes.read_lost()):
            lost.update(each)
        return Report(
            period_s=0.0,
            processes=tuple(
                _report(process.target, uses.get(tgid), faults.get(tgid), cuda.get(tgid), gc.get(tgid))
                for tgid, process in self._processes.items()
                if process.here
            ),
            block_io=self._host.read_block_io(),
            oom_kills=self._host.read_oom_kills(),
            xids=self._host.read_xids(),
            lost=dict(lost),
        )

    def _engines(self) -> set[str]:
        return {process.target.engine for process in self._processes.values()}

    def _leave(self, tgid: int, process: _Process) -> None:
        """Gives back everything of a process: it is released, or gone."""
        for attached in process.attached.values():
            self._closer.close(attached.probes)
        process.attached.clear()
        process.here = False
        self._windows.forget(tgid)
        self._uprobes.forget(tgid)
        self._host.forget(tgid)

    def _look(self) -> None:
        """At processes that are due: do they live, what have they loaded since, what can be attached now."""
        until_s = self._clock() + _LOOKING_S
        for tgid, process in self._processes.items():
            now_s = self._clock()
            if process.look_at_s <= now_s < until_s:
                process.look_at_s = now_s + (_LOOKS_S[process.looks] if process.looks < len(_LOOKS_S) else _LATER_S)
                process.looks += 1
                self._look_at(tgid, process)

    def _look_at(self, tgid: int, process: _Process) -> None:
        if not self._is_here(tgid, process):
            return
        process.here = True
        self._watch_waits(tgid, process)
        libraries = self._uprobes.libraries(tgid)
        for name in _CUDA_SETS:
            self._attach(process, name, libraries)
        for name in _WINDOW_SETS:
            process.coverage[name] = self._uprobes.outlook(name, process.target, libraries)
        self._is_here(tgid, process)  # it may have ended meanwhile, and another have its number

    def _is_here(self, tgid: int, process: _Process) -> bool:
        if start_ticks(tgid) == process.target.start_ticks:
            return True
        self._leave(tgid, process)
        process.coverage = {name: _row(process.target, name, "the process has ended") for name in _WAIT_SETS}
        return False

    def _watch_waits(self, tgid: int, process: _Process) -> None:
        held = {name: reason for name in (*_WAIT_SETS, *_CUDA_SETS) if (reason := self._held(process, name))}
        gil, refused = gil_range(tgid, cache=self._uprobes.elfs), ""
        try:
            self._host.watch(tgid, gil, held)
        except BpfError as error:  # more processes than the map holds
            refused = str(error)
        for name in _WAIT_SETS:
            reason = held.get(name) or self._host.reason(name) or refused
            no_gil = name == "locks" and gil is None and not reason
            missing = ("the GIL: the process is no CPython that can be recognised",) if no_gil else ()
            process.coverage[name] = _row(process.target, name, reason, missing)

    def _attach(self, process: _Process, name: str, libraries: CudaLibraries) -> None:
        reason = self._held(process, name)
        if reason:
            known = process.attached.pop(name, None)
            self._closer.close(known.probes if known is not None else ())
            self._uprobes.leave(name, process.target.tgid)
            process.coverage[name] = _row(process.target, name, reason)
            return
        attached = self._uprobes.attach(name, process.target, libraries, process.attached.get(name))
        if attached.probes:
            process.attached[name] = attached
        process.coverage[name] = attached.coverage

    def _held(self, process: _Process, name: str) -> str:
        """Why a set must leave this process alone now, or ""."""
        held = self._ledger.held(process.target.engine, name, self._clock())
        return held.reason if held is not None else ""


def _row(target: Target, name: str, reason: str, missing: tuple[str, ...] = ()) -> Coverage:
    state = "off" if reason else "on"
    return Coverage(engine=target.engine, tgid=target.tgid, set=name, state=state, reason=reason, missing=missing)


def start_ticks(tgid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process started (field 22 of its stat), or None: it is gone."""
    try:
        after_name = (proc / str(tgid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(after_name[19])


def _report(
    target: Target, use: HostUse | None, faults: int | None, cuda: messages.Cuda | None, gc: messages.Histogram | None
) -> messages.ProcessReport:
    waits = use.waits if use is not None else messages.Waits()
    if cuda is not None and cuda.syncs:
        # What a synchronisation spent in the run queue is counted there.
        synced_s = sum(each.blocked_s for each in cuda.syncs) - (use.sync_run_queue_s if use is not None else 0.0)
        waits = msgspec.structs.replace(waits, gpu_sync=max(synced_s, 0.0))
    if use is None:
        return messages.ProcessReport(engine=target.engine, tgid=target.tgid, cuda=cuda, gc=gc, waits=waits)
    return messages.ProcessReport(
        engine=target.engine,
        tgid=target.tgid,
        waits=waits,
        locks=use.locks,
        run_queue=use.run_queue,
        off_cpu=use.off_cpu,
        major_faults=faults,
        cuda=cuda,
        gc=gc,
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
