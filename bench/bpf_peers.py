"""What one event costs under our programs, and under bpftrace's for the same question: paired, in one run."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from aie_ebpf.cuda_probes import CUDA_TEXT, Uprobe
from aie_ebpf.door import Bcc, Module, Probe, ProgramType
from aie_ebpf.elf import Elf
from aie_ebpf.probes import TRACEPOINTS, UPROBES
from aie_ebpf.readers.waits import WaitsReader
from aie_ebpf.readers.watched import STEPPED, WatchedProcesses
from aie_ebpf.uprobe_links import UPROBE_MULTI, Spot, Way, attach, choose
from bpf_victim import WORKS, Victim, Work

# How long waits take by process, how long threads are off the CPU, how long a call takes: what our sets answer, and no more.
_FUTEX: Final = """
tracepoint:syscalls:sys_enter_futex /pid == TGID/ { @at[tid] = nsecs; }
tracepoint:syscalls:sys_exit_futex /@at[tid]/ { @us = hist((nsecs - @at[tid]) / 1000); delete(@at[tid]); }
"""
_SCHED: Final = """
tracepoint:sched:sched_switch {
    if (pid == TGID) { @off[args->prev_pid] = nsecs; }
    if (@off[args->next_pid]) {
        @us = hist((nsecs - @off[args->next_pid]) / 1000);
        if (@ready[args->next_pid]) { @queue = hist((nsecs - @ready[args->next_pid]) / 1000); delete(@ready[args->next_pid]); }
        delete(@off[args->next_pid]);
    }
}
tracepoint:sched:sched_wakeup { if (@off[args->pid]) { @ready[args->pid] = nsecs; } }
"""
_CALL: Final = """
uprobe:LIBCUDA:FUNCTION { @at[tid] = nsecs; }
uretprobe:LIBCUDA:FUNCTION /@at[tid]/ { @us = hist((nsecs - @at[tid]) / 1000); delete(@at[tid]); }
"""
_READY: Final = 'interval:ms:300 { printf("ready\\n"); }'
_FUNCTIONS: Final = {"push": "cuStreamSynchronize", "step": "cuEventSynchronize"}
_SETS: Final = {"wake": "locks", "wait": "locks", "switch": "sched"}
_PEERS: Final = {"locks": _FUTEX, "sched": _SCHED}

_STATS: Final = Path("/proc/sys/kernel/bpf_stats_enabled")
_RUN_TIME: Final = re.compile(r"^run_time_ns:\s*(\d+)$", re.MULTILINE)


class Rows(NamedTuple):
    """Nanoseconds that an event costs more, a pair of ours and bpftrace's a round; and what of ours is inside our programs."""

    work: Work
    bare_ns: float
    ours_ns: list[float]
    peer_ns: list[float]
    body_ns: float

    @property
    def ratios(self) -> list[float]:
        """Ours to bpftrace's, by round; without bpftrace none."""
        return [ours / peer for ours, peer in zip(self.ours_ns, self.peer_ns, strict=False) if peer > 0]

    @property
    def ratio(self) -> float | None:
        """The median of them."""
        return statistics.median(self.ratios) if self.ratios else None

    def line(self) -> str:
        """A line of the table."""
        ours, peer = statistics.median(self.ours_ns), statistics.median(self.peer_ns or [math.nan])
        spread = f"{min(self.ratios):.2f} .. {max(self.ratios):.2f}" if self.ratios else "-"
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        return f"{self.work.what:34} {self.bare_ns:9.0f} {ours:9.0f} {self.body_ns:9.0f} {peer:9.0f} {ratio:>7} {spread:>14}"


HEADER: Final = f"{'':34} {'bare ns':>9} {'aie +ns':>9} {'programs':>9} {'bpftr +ns':>9} {'ratio':>7} {'of rounds':>14}"


class Ours:
    """Our programs for the victim, one set at a time."""

    def __init__(self, bcc: Bcc, victim: Victim) -> None:
        """Compiles. Raises BpfError."""
        self._host = bcc.compile("common.h", "watched.h", "watched_here.h", "locks", "sched")
        self._way = choose(bcc).way
        has_links = self._way is Way.LINKS
        self._attach_type = UPROBE_MULTI if has_links else None
        defines = ("COOKIES",) if has_links else ()
        self._cuda = bcc.compile("common.h", "watched.h", "watched_there.h", *CUDA_TEXT, defines=defines)
        self._victim = victim
        WaitsReader(self._host, ("locks", "sched")).watch(victim.tgid)
        WatchedProcesses(self._host).watch(victim.tgid, None, ())

    def body_ns(self, work: Work) -> float:
        """What our programs take for an event by the kernel's own count: the rest of the cost is the way there and back."""
        with _kernel_counts(), self.attached(work):
            before_ns = self._run_time_ns(work)
            self._victim.each_ns(work)
            return (self._run_time_ns(work) - before_ns) / work.times

    def _run_time_ns(self, work: Work) -> int:
        if work.name in _FUNCTIONS:
            row = self._row(work)
            names = (name for name in (row.entry, row.on_return) if name is not None)
            programs = [self._cuda.program(name, ProgramType.KPROBE, self._attach_type) for name in names]
        else:
            rows = [row for row in TRACEPOINTS if row.set == _SETS[work.name]]
            programs = [self._host.program(row.handler, ProgramType.TRACEPOINT) for row in rows]
        return sum(int(_RUN_TIME.findall(Path(f"/proc/self/fdinfo/{fd}").read_text())[0]) for fd in programs)

    @staticmethod
    def _row(work: Work) -> Uprobe:
        return next(row for row in UPROBES if _FUNCTIONS[work.name] in row.symbols)

    @contextlib.contextmanager
    def attached(self, work: Work) -> Iterator[None]:
        """Attached as the child does it. Raises BpfError."""
        module, probes = self._of_function(work) if work.name in _FUNCTIONS else self._of_set(work)
        try:
            yield
        finally:
            for probe in probes:
                module.detach(probe)

    def _of_set(self, work: Work) -> tuple[Module, list[Probe]]:
        rows = [row for row in TRACEPOINTS if row.set == _SETS[work.name]]
        return self._host, [self._host.attach_tracepoint(row.tracepoint, row.handler) for row in rows]

    def _of_function(self, work: Work) -> tuple[Module, list[Probe]]:
        row = self._row(work)
        with Elf.open(self._victim.libcuda) as elf:
            symbol = elf.exported(_FUNCTIONS[work.name])
        assert symbol is not None
        assert row.on_return is not None
        where = str(self._victim.libcuda), [Spot(symbol.offset, cookie=STEPPED)]
        return self._cuda, [
            attach(self._cuda, self._way, *where, row.on_return, self._victim.tgid, on_return=True),
            attach(self._cuda, self._way, *where, row.entry, self._victim.tgid),
        ]


@contextlib.contextmanager
def _kernel_counts() -> Iterator[None]:
    """The kernel counts how often each program runs, and for how long; which costs, too, and so is not on beside the rest."""
    before = _STATS.read_text()
    _STATS.write_text("1")
    try:
        yield
    finally:
        _STATS.write_text(before)


@contextlib.contextmanager
def bpftrace(victim: Victim, work: Work) -> Iterator[None]:
    """bpftrace, attached."""
    program = _CALL if work.name in _FUNCTIONS else _PEERS[_SETS[work.name]]
    for name, value in (
        ("TGID", str(victim.tgid)), ("LIBCUDA", str(victim.libcuda)), ("FUNCTION", _FUNCTIONS.get(work.name, "")),
    ):  # fmt: skip
        program = program.replace(name, value)
    command = ["bpftrace", *(["-p", str(victim.tgid)] if work.name in _FUNCTIONS else []), "-e", program + _READY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == "ready\n":
                    break
            else:
                raise RuntimeError(f"bpftrace ended: {process.communicate()[1]}")
            yield
        finally:
            while process.poll() is None:  # it heeds a signal only where that interrupts its waiting
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=1)


def compare(bcc: Bcc, victim: Victim, rounds: int) -> list[Rows]:
    """Each work, `rounds` times: bare, under ours, bare, under bpftrace. Without bpftrace, only ours."""
    ours = Ours(bcc, victim)
    has_peer = shutil.which("bpftrace") is not None
    rows = []
    for work in WORKS:
        bare, added, peers = [], [], []
        for _ in range(rounds):
            bare.append(victim.each_ns(work))
            with ours.attached(work):
                added.append(victim.each_ns(work) - bare[-1])
            if has_peer:
                bare.append(victim.each_ns(work))
                with bpftrace(victim, work):
                    peers.append(victim.each_ns(work) - bare[-1])
        rows.append(Rows(work, statistics.median(bare), added, peers, ours.body_ns(work)))
    return rows
