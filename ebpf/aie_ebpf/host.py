"""The sets that watch the host: one module of tracepoint programs, each set attached by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from aie_ebpf import tracepoints
from aie_ebpf.door import Bcc, BpfError, Module, Probe, Ring
from aie_ebpf.late import LateTracepoint
from aie_ebpf.messages import BlockIo, OomKill, SetState, Xid
from aie_ebpf.probes import PERF_EVENTS, SETS, TRACEPOINTS, When
from aie_ebpf.readers.block_io import BlockIoReader
from aie_ebpf.readers.kernel_events import oom_kill, xid
from aie_ebpf.readers.lost import LostReader
from aie_ebpf.readers.waits import WaitsReader
from aie_ebpf.readers.watched import WatchedProcesses

HOST_SETS: Final = tuple(each.name for each in SETS if each.when is When.ALWAYS)
OF_PROCESSES: Final = ("locks", "sched", "faults")
"""They watch processes: without one there is nothing to see, and every system call of the host would pay for it."""

# A program whose maps another uses comes before it.
_NEEDS: Final = {"sched": ("locks",), "faults": ("locks", "sched")}
_BASE: Final = ("common.h", "watched.h", "watched_here.h")
# Where a program takes the offsets of a tracepoint's fields from tracefs: the prefix of their names.
_OFFSETS: Final = {"oom": ("OOM", "oom:mark_victim"), "xid": ("XID", "nvidia:nvidia_dev_xid")}


class HostProbes:
    """The host's sets, compiled. Those of the whole host are attached at once, those of processes while any is watched."""

    def __init__(self, bcc: Bcc, without: frozenset[str]) -> None:
        """Compiles. Raises BpfError when not even the maps can be had."""
        self._reasons: dict[str, str] = {}
        self._absent: set[str] = set()
        wanted = [name for name in HOST_SETS if self._may(name, without)]
        self.module = self._compile(bcc, wanted)
        self._loaded = [name for name in wanted if name not in self._reasons]
        self._attached: dict[str, list[Probe]] = {}
        self.watched = WatchedProcesses(self.module)
        self.waits = WaitsReader(self.module, self._loaded)
        self._block_io = BlockIoReader(self.module) if "block_io" in self._loaded else None
        self._rings = {name: ring for name in ("oom", "xid") if name in self._loaded and (ring := self._ring(name)) is not None}
        self._lost = LostReader(self.module)
        for name in self._loaded:
            if name not in OF_PROCESSES:
                self._attach(name)
        self._late = _late(bcc) if "xid" in self._absent else None

    @property
    def on(self) -> frozenset[str]:
        """The sets that are attached now."""
        return frozenset(self._attached)

    def reason(self, name: str) -> str:
        """Why a set is not attached, or ""."""
        return self._reasons.get(name, "")

    def states(self) -> tuple[SetState, ...]:
        """Every set of the host: whether it can be attached here, and if not, why."""
        return tuple(SetState(set=name, loaded=name not in self._reasons, reason=self.reason(name)) for name in HOST_SETS)

    def watch_processes(self, names: Collection[str]) -> None:
        """Attaches these of the sets that watch processes, and detaches the others. Raises BpfError."""
        for name in OF_PROCESSES:
            if name not in names and name in self._attached:
                self.detach(name)
            elif name in names and name in self._loaded and name not in self._attached and name not in self._reasons:
                self.waits.begin(name)
                self._attach(name)

    def detach(self, name: str) -> None:
        """Detaches a set, here and now: the kernel refuses a program that is on its tracepoint still."""
        for probe in self._attached.pop(name, ()):
            self.module.detach(probe)

    def watch(self, tgid: int, gil: tuple[int, int] | None, off: Collection[str]) -> None:
        """Begins to count for a process, or tells anew where its interpreter keeps the GIL and which sets leave it alone.
        Raises BpfError (too many)."""
        self.waits.watch(tgid)
        try:
            self.watched.watch(tgid, gil, off)
        except BpfError:  # nothing will be counted for it: that is not 0
            self.waits.forget(tgid)
            raise

    def forget(self, tgid: int) -> None:
        """Ends to count for a process."""
        self.watched.forget(tgid)
        self.waits.forget(tgid)

    def read_block_io(self) -> tuple[BlockIo, ...]:
        """What block devices completed. Raises BpfError."""
        return self._block_io.read() if self._block_io is not None else ()

    def read_oom_kills(self) -> tuple[OomKill, ...]:
        """Who was killed for memory."""
        return tuple(oom_kill(record) for record in self._records("oom"))

    def read_xids(self) -> tuple[Xid, ...]:
        """Errors of GPUs."""
        return tuple(xid(record) for record in self._records("xid"))

    def read_lost(self, now_ns: int) -> list[dict[str, int]]:
        """What could not be noted, by module; `now_ns` is the monotonic clock. Raises BpfError."""
        late = self._late.lost if self._late is not None else None
        return [reader.read(now_ns) for reader in (self._lost, late) if reader is not None]

    def catch_up(self, now_s: float) -> Iterator[None] | None:
        """The steps that attach what this kernel has only now: the driver of GPUs was loaded. None: nothing new is there."""
        return self._late.attach() if self._late is not None and self._late.is_due(now_s) else None

    def close(self) -> None:
        """Detaches everything."""
        for name in list(self._attached):
            self.detach(name)
        if self._late is not None:
            self._late.close()

    def _records(self, name: str) -> Sequence[bytes]:
        if name in self._rings:
            return self._rings[name].records()
        late = self._late.ring if self._late is not None and name == "xid" else None
        return late.records() if late is not None else ()

    def _ring(self, name: str) -> Ring | None:
        try:
            return self.module.ring({"oom": "oom_kills", "xid": "xids"}[name])
        except BpfError as error:
            self._reasons[name] = str(error)
            return None

    def _may(self, name: str, without: frozenset[str]) -> bool:
        missing = [row.tracepoint for row in TRACEPOINTS if row.set == name and tracepoints.format_of(row.tracepoint) is None]
        if name in without:
            self._reasons[name] = "left out by configuration"
        elif missing:
            self._absent.add(name)
            self._reasons[name] = f"this kernel has no tracepoint {', '.join(missing)}"
        elif any(need in self._reasons for need in _NEEDS.get(name, ())):
            self._reasons[name] = f"needs {' and '.join(_NEEDS[name])}"
        return name not in self._reasons

    def _compile(self, bcc: Bcc, wanted: list[str]) -> Module:
        """All together; where that fails, those that compile with what they need."""
        try:
            return _module(bcc, wanted)
        except BpfError:
            for name in wanted:
                self._try(name, lambda name=name: _module(bcc, [*_NEEDS.get(name, ()), name]).close())  # type: ignore[misc]
            return _module(bcc, [name for name in wanted if name not in self._reasons])

    def _attach(self, name: str) -> None:
        probes: list[Probe] = []

        def attach() -> None:
            # `extend` keeps what was attached before one failed.
            probes.extend(self.module.attach_tracepoint(row.tracepoint, row.handler) for row in TRACEPOINTS if row.set == name)
            probes.extend(
                self.module.attach_perf_event(row.type, row.config, row.handler, row.period)
                for row in PERF_EVENTS
                if row.set == name
            )

        if self._try(name, attach):
            self._attached[name] = probes
        else:
            for probe in probes:
                self.module.detach(probe)

    def _try(self, name: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except BpfError as error:
            self._reasons[name] = str(error)
            return False
        return True


def _late(bcc: Bcc) -> LateTracepoint:
    prefix, _ = _OFFSETS["xid"]
    return LateTracepoint(bcc, next(row for row in TRACEPOINTS if row.set == "xid"), prefix, "xids")


def _module(bcc: Bcc, programs: Sequence[str]) -> Module:
    defines: list[str] = []
    for program in programs:
        if program in _OFFSETS:
            prefix, tracepoint = _OFFSETS[program]
            defines += tracepoints.defines(prefix, tracepoints.format_of(tracepoint) or "")
    return bcc.compile(*_BASE, *programs, defines=defines)
