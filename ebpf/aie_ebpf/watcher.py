"""Which processes are watched by which sets, and what came of it: attach, read, charge, detach, report. One object, one thread.

Attaching is work in steps (`work`), so that what those probes take that are attached already is charged in between (`guard`).
"""

from __future__ import annotations

import resource
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from aie_ebpf import messages
from aie_ebpf.attaching import Attached
from aie_ebpf.budget import Ledger
from aie_ebpf.charges import Charges
from aie_ebpf.closer import Closer
from aie_ebpf.cuda_libraries import CudaLibraries
from aie_ebpf.detaching import Detaching
from aie_ebpf.door import Bcc, BpfError
from aie_ebpf.host import OF_PROCESSES, HostProbes
from aie_ebpf.lives import Lives
from aie_ebpf.messages import Coverage, Report, SetState
from aie_ebpf.probes import SETS, When
from aie_ebpf.processes import Process, has_executed_another, has_loaded_cuda, image_of, row
from aie_ebpf.python_runtime import gil_range
from aie_ebpf.reports import process_report
from aie_ebpf.uprobe_links import Way
from aie_ebpf.uprobe_sets import UprobeSets
from aie_ebpf.windows import Windows

_CUDA_SETS: Final = tuple(each.name for each in SETS if each.when is When.CUDA)
_WINDOW_SETS: Final = tuple(each.name for each in SETS if each.when is When.WINDOW)
# Libraries are loaded after a process has begun, some much later: how long after the last look it is looked at again.
_LOOKS_S: Final = (2.0, 3.0, 10.0, 15.0)
_LATER_S: Final = 30.0
# Each probe is an open file: so large a part of those that we may have, and so many that wait to come off.
_PROBES_SHARE: Final = 1 / 3
_MOST_WAITING: Final = 1000
_PAGE: Final = resource.getpagesize()
_DONE: Final = object()


class Watcher:
    """All that the child does besides talking."""

    def __init__(
        self, bcc: Bcc, without: frozenset[str], ledger: Ledger, way: Way, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Compiles and attaches what watches the whole host. Raises BpfError."""
        self._clock = clock
        self._closer = Closer()
        self._host = HostProbes(bcc, without)
        self._uprobes = UprobeSets(bcc, without, way)
        self._ledger = ledger
        self._charges = Charges(ledger, self._uprobes.mixes, clock())
        self._windows = Windows(self._uprobes, self._closer, clock)
        self._lives = Lives()
        self._processes: dict[int, Process] = {}
        self._leaving: dict[int, Process] = {}
        self._detaching = Detaching(self._closer, self._host.watched.entered)
        self._steps: deque[Iterator[None]] = deque()
        self._reported_s = clock()
        self._cpu_s = time.process_time()
        self._last_coverage: tuple[Coverage, ...] | None = None

    def states(self) -> tuple[SetState, ...]:
        """Every set: whether it can be used on this host."""
        return (*self._host.states(), *self._uprobes.states())

    @property
    def guards(self) -> bool:
        """Whether uprobes are attached, so that `guard` is to be called every budget.LOOK_S besides what `tick` charges."""
        return bool(self._windows) or bool(self._detaching) or any(process.attached for process in self._processes.values())

    @property
    def has_work(self) -> bool:
        """Whether `work` is to be called."""
        return bool(self._steps)

    def work(self, seconds: float) -> None:
        """Attaches what is to be attached, for about so long: one step may last longer. Raises BpfError."""
        until_s = self._clock() + seconds
        while self._steps and self._clock() < until_s:
            if next(self._steps[0], _DONE) is _DONE:
                self._steps.popleft()

    def watch(self, targets: Iterable[messages.Target]) -> None:
        """These are to be watched, and no others. Those that are not any more are in one more report."""
        wanted = {target.tgid: target for target in targets}
        before = self._engines()
        for tgid, process in list(self._processes.items()):
            if wanted.get(tgid) != process.target:
                self._leaving[tgid] = self._processes.pop(tgid)
        for tgid in self._leaving.keys() & wanted.keys():  # maps have a number once
            self._leave(self._leaving.pop(tgid))
        for tgid, target in wanted.items():
            if tgid not in self._processes:
                self._processes[tgid] = Process(target)
                self._lives.begin(tgid, target.start_ticks)
        self._charges.forget(before - self._engines(), self._clock())
        self._settle_host()
        self._look()

    def open_window(self, window: messages.OpenWindow) -> None:
        """Attaches a set for a while, before anything else; what comes of it is in a later `tick`."""
        processes = [each for each in self._processes.values() if each.target.engine == window.engine and self._is_here(each)]
        held = self._ledger.off(window.engine, self._clock()).get(window.set)
        self._steps.appendleft(self._windows.open(window, [each.target for each in processes], held))

    def guard(self) -> None:
        """Charges what probes took of the engines that have uprobes; who took too much leaves them alone from now on."""
        self._detaching.look()
        engines = {process.target.engine for process in self._processes.values() if process.attached} | self._windows.engines()
        self._charge(engines, [tgid for tgid, process in self._processes.items() if process.target.engine in engines])

    def _charge(self, engines: Collection[str], tgids: Collection[int] | None = None) -> None:
        """Charges what probes took of engines since each was charged last. `tgids` are their processes; None: all."""
        now_s = self._clock()
        hits: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for tgid, gained in self._host.watched.hits(tgids).items():
            process = self._processes.get(tgid)
            if process is not None:
                for name, by_kind in gained.items():
                    hits[process.target.engine, name].update(by_kind)
        took_s = self._charges.add(hits, engines, now_s)
        self._windows.charge({key: by_kind.total() for key, by_kind in hits.items()}, took_s)
        for engine in engines:
            for gone in self._ledger.judge(engine, now_s) or ():
                self._windows.close(engine, gone, self._ledger.off(engine, now_s)[gone])
                for process in self._processes.values():
                    if process.target.engine == engine and process.here:
                        self._hold(process)
                self._settle_host()

    def tick(self) -> list[messages.ToAgent]:
        """What is due: looks at processes, reads the maps. The report, and windows that ended. Raises BpfError."""
        self._call_up()
        self._settle_host()
        self._look()
        charging = _Stopwatch()
        self._charge(self._engines())
        charging.stop()
        now_s = self._clock()
        if (steps := self._host.catch_up(now_s)) is not None:
            self._steps.append(steps)
        period_s, self._reported_s = max(now_s - self._reported_s, 1e-3), now_s
        before_s = self._cpu_s
        self._cpu_s = time.process_time()
        reading = _Stopwatch()
        parts = self._read()
        self._release_ended()
        costs, coverage, resident_bytes = self._charges.report(), self._changed_coverage(), _resident_bytes()
        reading.stop()
        report = msgspec.structs.replace(
            parts,
            period_s=period_s,
            costs=costs,
            coverage=coverage,
            resident_bytes=resident_bytes,
            cpu_s=max(self._cpu_s - before_s, 0.0),
            read_s=charging.wall_s + reading.wall_s,
            read_cpu_s=charging.cpu_s + reading.cpu_s,
        )
        return [report, *self._windows.tick(now_s)]

    def finish(self, timeout_s: float) -> None:
        """Detaches everything, as far as the time allows; the kernel detaches the rest when the process ends."""
        for processes in (self._processes, self._leaving):
            for tgid in list(processes):
                self._leave(processes.pop(tgid))
        self._host.close()
        self._closer.finish(timeout_s)

    def _read(self) -> Report:
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        held = {tgid: each.held.keys() for tgid, each in (*self._processes.items(), *self._leaving.items())}
        uses = self._host.waits.read(now_ns, self._host.on, held)
        faults = self._host.watched.major_faults() if "faults" in self._host.on else {}
        cuda = self._uprobes.read_cuda(now_ns)
        gc = self._uprobes.read_gc()
        ended = self._lives.ended()
        lost: Counter[str] = Counter()
        for each in (*self._host.read_lost(now_ns), *self._uprobes.read_lost(now_ns)):
            lost.update(each)
        return Report(
            period_s=0.0,
            processes=tuple(
                process_report(
                    process.target,
                    uses.get(tgid),
                    faults.get(tgid) if "faults" not in process.held else None,
                    cuda.get(tgid),
                    gc.get(tgid),
                    sees_syncs=_sees(process, "cuda_sync"),
                    is_last=process.ended or tgid in ended,
                )
                for tgid, process in (*self._processes.items(), *self._leaving.items())
                if process.here
            ),
            block_io=self._host.read_block_io(),
            oom_kills=self._host.read_oom_kills(),
            xids=self._host.read_xids(),
            lock_stacks=self._uprobes.read_lock_stacks(),
            lost=dict(lost),
        )

    def _engines(self) -> set[str]:
        return {process.target.engine for process in self._processes.values()}

    def _leave(self, process: Process) -> None:
        """Gives back everything of a process: it is released, or gone."""
        tgid = process.target.tgid
        self._lives.end(tgid)
        for attached in process.attached.values():
            self._closer.close(attached.release())
        process.attached.clear()
        process.here = False
        self._windows.forget(tgid)
        self._uprobes.forget(tgid)
        self._host.forget(tgid)

    def _call_up(self) -> None:
        """Who is to be looked at before its turn: a set may have it again, or has something to see now."""
        self._notice_ended()
        self._notice_other_programs()
        now_s = self._clock()
        held = {engine: self._held(engine) for engine in self._engines()}
        for process in self._processes.values():
            if not process.here or process.ended:
                continue
            if process.held.keys() != held[process.target.engine].keys() or has_loaded_cuda(process, now_s):
                process.look_at_s = 0.0

    def _changed_coverage(self) -> tuple[Coverage, ...] | None:
        """What can be seen of all processes; None where it is as it was."""
        opened = self._windows.coverage()
        coverage = tuple(
            opened.get((tgid, name), told) if opened else told
            for tgid, process in self._processes.items()
            for name, told in process.coverage.items()
        )
        if coverage == self._last_coverage:
            return None
        self._last_coverage = coverage
        return coverage

    def _release_ended(self) -> None:
        """What the maps had of those that ended or are to be watched no more has been read."""
        for process in self._processes.values():
            if process.ended and process.here:
                self._leave(process)
        while self._leaving:
            self._leave(self._leaving.popitem()[1])

    def _look(self) -> None:
        """At processes that are due: do they live, what have they loaded since, what can be attached now. Done by `work`."""
        now_s = self._clock()
        for process in self._processes.values():
            if process.look_at_s <= now_s and not process.in_look:
                process.look_at_s = now_s + (_LOOKS_S[process.looks] if process.looks < len(_LOOKS_S) else _LATER_S)
                process.looks += 1
                process.in_look = True
                self._steps.append(self._look_at(process))

    def _look_at(self, process: Process) -> Iterator[None]:
        yield from self._look_closely(process)
        process.in_look = False

    def _look_closely(self, process: Process) -> Iterator[None]:
        """Until the process is released or has ended. Coverage is told as a whole, at the end."""
        tgid = process.target.tgid
        if self._processes.get(tgid) is not process or not self._is_here(process):
            return
        process.here = True
        if process.image is None:
            process.image = image_of(tgid)
        libraries = self._uprobes.libraries(tgid)
        process.gil = gil_range(tgid, cache=self._uprobes.elfs, files=libraries.files)
        coverage = self._watch_waits(process)
        for name in _CUDA_SETS:
            told = yield from self._attach(process, name, libraries)
            if not process.here or process.ended:
                return
            if told is not None:
                coverage[name] = told
        for name in _WINDOW_SETS:
            coverage[name] = self._uprobes.outlook(name, process.target, libraries)
        if self._is_here(process):  # it may have ended meanwhile, and another have its number
            process.coverage = coverage | self._held_rows(process)

    def _is_here(self, process: Process) -> bool:
        """Whether a process lives; if not, it is given back when what it did has been read."""
        self._notice_ended()
        return not process.ended

    def _notice_ended(self) -> None:
        for tgid in self._lives.ended():
            process = self._processes.get(tgid)
            if process is not None and not process.ended:
                self._end(process, OF_PROCESSES, "the process has ended")

    def _notice_other_programs(self) -> None:
        """Who has executed another program has ended, for all that is known of it; then it begins anew."""
        for tgid, process in list(self._processes.items()):
            if process.became_another and not process.here:
                self._processes[tgid] = Process(process.target)
                self._lives.begin(tgid, process.target.start_ticks)
            elif not process.ended and has_executed_another(process):
                process.became_another = True
                self._end(process, (*OF_PROCESSES, *_CUDA_SETS), "the process has executed another program")

    def _end(self, process: Process, sets: Iterable[str], reason: str) -> None:
        process.ended = True
        process.coverage = {name: row(process.target, name, reason, state="none") for name in sets}

    def _watch_waits(self, process: Process) -> dict[str, Coverage]:
        """Tells the programs which sets are to leave this process alone; what the host's sets see of it."""
        process.held = self._held(process.target.engine)
        refused = ""
        try:
            self._host.watch(process.target.tgid, process.gil, process.held)
        except BpfError as error:  # more processes than the map holds
            refused = str(error)
        coverage = {}
        for name in OF_PROCESSES:
            reason = process.held.get(name) or self._host.reason(name) or refused
            no_gil = name == "locks" and process.gil is None and not reason
            missing = ("the GIL: the process is no CPython that can be recognised",) if no_gil else ()
            coverage[name] = row(process.target, name, reason, missing)
        return coverage

    def _attach(self, process: Process, name: str, libraries: CudaLibraries) -> Generator[None, None, Coverage | None]:
        """None: the set was released meanwhile, or may not be attached."""
        if name in process.held:
            return None
        if name not in process.attached and not self._has_room():
            process.look_at_s = self._clock() + _LOOKS_S[0]
            return row(process.target, name, "later: as many probes as may be are attached, or wait to come off")
        attached = process.attached.setdefault(name, Attached())
        coverage = yield from self._uprobes.attach(name, process.target, libraries, attached)
        if attached.released:
            return None
        if not attached.probes:
            del process.attached[name]
        return coverage

    def _has_room(self) -> bool:
        """Whether more probes may be attached. They take longer off than on: those of processes that have ended would pile up where
        others come as fast."""
        waiting = self._closer.waiting
        held = sum(len(each.probes) for process in self._processes.values() for each in process.attached.values())
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return waiting <= _MOST_WAITING and waiting + held <= soft * _PROBES_SHARE

    def _hold(self, process: Process) -> None:
        """Sets took too much of a process's engine: they leave it alone from now on."""
        self._watch_waits(process)
        tgid = process.target.tgid
        for name in process.held.keys() & process.attached.keys():
            self._detaching.begin(tgid, process.attached.pop(name))
            self._uprobes.leave(name, tgid)
        if process.coverage:  # else it is told at the end of the first look
            process.coverage |= self._held_rows(process)

    def _held_rows(self, process: Process) -> dict[str, Coverage]:
        return {name: row(process.target, name, reason) for name, reason in process.held.items()}

    def _held(self, engine: str) -> dict[str, str]:
        """The sets that must leave an engine's processes alone now, each with the reason."""
        off = self._ledger.off(engine, self._clock())
        return {name: reason for name, reason in off.items() if name in OF_PROCESSES or name in _CUDA_SETS}

    def _settle_host(self) -> None:
        """The host's sets that watch processes are attached while one of them may have it: who is passed over pays, too."""
        last = [process for process in self._processes.values() if process.ended] + list(self._leaving.values())
        held = [process.held for process in last if process.here]
        held += [self._held(engine) for engine in {each.target.engine for each in self._processes.values() if not each.ended}]
        self._host.watch_processes({name for name in OF_PROCESSES if any(name not in each for each in held)})


class _Stopwatch:
    """What passes from now on until `stop`, by the clock and of this thread's CPU time."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = time.perf_counter(), time.thread_time()

    def stop(self) -> None:
        """Makes both what has passed."""
        self.wall_s, self.cpu_s = time.perf_counter() - self.wall_s, time.thread_time() - self.cpu_s


def _sees(process: Process, name: str) -> bool:
    """Whether a set of uprobes is attached to a process, and was told to be."""
    return name in process.attached and name in process.coverage


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
