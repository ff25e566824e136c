"""Who the processes on GPUs are: the engine and the container of each, what it calls the GPU, and whether anybody still wants it.

An orphan holds a context and belongs to no engine that lives, and nothing can come of it any more: it is gone from /proc (the
driver holds on to what it held), a zombie, was started by an engine whose processes have all ended, or hangs in the kernel (state
D): for ten seconds where an engine started it, for five minutes else, since another's job may well wait so long for a disk that is
far away. Everything else that is no engine of ours is another's work, and is left alone: a training job is no orphan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.identity import Engines
from aie_agent.namesakes import ProcessId
from aie_agent.neighbour import program_name
from aie_agent.samples import Point
from aie_agent.sources import procfs_text as text
from aie_agent.sources.containers import pod_uid
from aie_agent.sources.nvml.cuda_devices import GpuName, Numbering, numbering, parse_environ
from aie_agent.sources.nvml.device_files import DeviceFiles, read_device_files
from aie_agent.sources.nvml.processes import Context, total_of
from aie_agent.sources.procfs import Procfs
from aie_telemetry.api import GpuProcess
from aie_telemetry.catalogue import Kind

GONE_AFTER_S: Final = 5.0
"""A process that ends stays in NVML's list for a moment; one that is there for so long without being in /proc is held."""
STUCK_AFTER_S: Final = 10.0
"""Waiting in the kernel is normal for a moment, for what an engine started."""
STRANGER_STUCK_AFTER_S: Final = 300.0
"""Nobody knows what a process of no engine waits for: reading a checkpoint from a slow share takes minutes."""

_INIT_PID_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO: the kernel's own number for the first namespace
_GENERATIONS: Final = 8
_MOST_AT_ONCE: Final = 32

OTHER_NAMESPACE: Final = (
    "processes on GPUs cannot be told apart: the agent runs in a pid namespace of its own, and NVML gives the host's pids: "
    "run it with --pid=host (Docker) or hostPID: true (Kubernetes)"
)


class GpuContexts(NamedTuple):
    """The processes of one GPU as NVML has them, None where it does not tell; `used_bytes` is the memory in use on all of it."""

    gpu: GpuName
    contexts: Sequence[Context] | None
    used_bytes: float | None = None


class _Engine(NamedTuple):
    name: str
    processes: frozenset[ProcessId]


@dataclass(slots=True)
class _Known:
    """What is remembered of a process while it is on a GPU. `owner` is the engine that started it, with that engine's processes."""

    command: str
    container: str | None
    pod: str | None
    environ: dict[str, str] | None
    files: DeviceFiles | None = None
    owner: _Engine | None = None


@dataclass(slots=True)
class _Seen:
    """What /proc says of a pid at one look. `process` None: it is gone, or hidden where `hidden`."""

    process: ProcessId | None
    state: str = ""
    parent_tgid: int | None = None
    hidden: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing runs there any more."""
        return self.state == "Z" or (self.process is None and not self.hidden)


class _Doubt(NamedTuple):
    """Why a process may be an orphan, and for how long it must be so."""

    why: str
    patience_s: float


_GONE: Final = _Doubt("gone", GONE_AFTER_S)
_ZOMBIE: Final = _Doubt("zombie", GONE_AFTER_S)
_LEFT: Final = _Doubt("left", GONE_AFTER_S)
_STUCK: Final = _Doubt("stuck", STUCK_AFTER_S)
_STRANGER_STUCK: Final = _Doubt("stuck", STRANGER_STUCK_AFTER_S)


class _Row(NamedTuple):
    gpu: GpuName
    context: Context
    engine: str | None
    orphan: bool
    ended: bool
    known: _Known | None
    parent_tgid: int | None


@dataclass(slots=True)
class _Joined:
    """The outcome of one look."""

    points: list[Point] = field(default_factory=list)
    rows: dict[int, tuple[GpuProcess, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def in_other_pid_namespace(proc: Path = Path("/proc")) -> bool:
    """Whether our pids are not the host's. False where that cannot be seen."""
    try:
        return (proc / "self/ns/pid").stat().st_ino != _INIT_PID_NAMESPACE
    except OSError:
        return False


class GpuProcesses:
    """Joins the processes on GPUs to engines. `collect` belongs to the event loop's thread, and reads /proc on another."""

    def __init__(self, engines: Engines, procfs: Procfs, other_namespace: Callable[[], bool] = in_other_pid_namespace) -> None:
        self._engines = engines
        self._procfs = procfs
        self.other_namespace = other_namespace()
        self._known: dict[ProcessId, _Known] = {}
        self._doubtful_since_s: dict[tuple[int, str], float] = {}
        self._joined = _Joined()

    @property
    def note(self) -> str | None:
        """Why processes are not joined to anything, in one line with what to do."""
        return OTHER_NAMESPACE if self.other_namespace else None

    def exists(self) -> Callable[[int], bool] | None:
        """Whether there is a process of a pid of NVML's, for `ProcessReader`; None where we could not know."""
        if self.other_namespace or self._procfs.hides_processes():
            return None
        return lambda pid: self._procfs.start_ticks(pid) is not None

    def rows(self, gpu: int) -> tuple[GpuProcess, ...]:
        """The processes of a GPU (NVML's index) as of the last `collect`: those with most memory first."""
        return self._joined.rows.get(gpu, ())

    def engine_note(self, engine: str) -> str | None:
        """What of an engine's GPU memory is not exact, in one line."""
        return self._joined.notes.get(engine)

    async def collect(self, gpus: Sequence[GpuContexts], now_s: float) -> list[Point]:
        """`aie_gpu_processes` and orphans, and the GPU memory and contexts of each engine."""
        engines = [_Engine(name, frozenset(self._engines.processes(name))) for name in self._engines.names()]
        pids = {context.pid for each in gpus for context in each.contexts or ()}
        if len(pids) <= _MOST_AT_ONCE and pids <= {process.tgid for process in self._known}:
            # All were described: only their stat is read, which the kernel gives at once. To wake a thread takes longer.
            self._joined = self._join(engines, gpus, now_s)
        else:
            self._joined = await asyncio.to_thread(self._join, engines, gpus, now_s)
        return self._joined.points

    def _join(self, engines: Sequence[_Engine], gpus: Sequence[GpuContexts], now_s: float) -> _Joined:
        told = [each for each in gpus if each.contexts is not None]
        pids = {context.pid for each in told for context in each.contexts or ()}
        seen = {} if self.other_namespace else self._look(pids)
        owners = self._owners(engines, seen)
        orphans = self._orphans(seen, owners, now_s)
        rows = [
            _Row(
                each.gpu,
                context,
                owner.name if owner else None,
                context.pid in orphans,
                context.pid in seen and seen[context.pid].ended,
                self._of(seen, context.pid),
                _parent(seen, context.pid),
            )
            for each in told
            for context in each.contexts or ()
            for owner in (owners.get(context.pid),)
        ]
        joined = _Joined(rows={each.gpu.number: _processes(rows, each.gpu.number) for each in told})
        joined.points = [point for each in told for point in _gpu_points(rows, each.gpu.number)]
        for engine in engines:
            points, notes = _engine_points(engine.name, rows, gpus)
            joined.points += points
            if notes:
                joined.notes[engine.name] = "; ".join(notes)
        return joined

    # -- what /proc says ---------------------------------------------------------------------------------------------------------

    def _look(self, pids: Iterable[int]) -> dict[int, _Seen]:
        hides = self._procfs.hides_processes()
        seen = {pid: self._see(pid, hides=hides) for pid in pids}
        live = {each.process for each in seen.values() if each.process is not None}
        self._known = {process: known for process, known in self._known.items() if process in live}
        for process in live - self._known.keys():
            self._known[process] = self._describe(process.tgid)
        return seen

    def _see(self, pid: int, *, hides: bool) -> _Seen:
        try:
            stat = self._procfs.stat(pid)
        except (OSError, ValueError):
            return _Seen(None, hidden=True)
        if stat is None:
            return _Seen(None, hidden=hides)
        return _Seen(ProcessId(pid, stat.start_ticks), "Z" if stat.ended else stat.state, stat.parent_tgid or None)

    def _describe(self, pid: int) -> _Known:
        """What does not change while a process lives. What may not be read is left out."""
        container, pod, environ = None, None, None
        try:
            cgroup = self._procfs.read(f"{pid}/cgroup") or b""
            container, pod = text.container_id(cgroup), pod_uid(cgroup)
            content = self._procfs.read(f"{pid}/environ")
            environ = None if content is None else parse_environ(content)
        except OSError:
            pass  # another user's: the numbering says that it is a guess
        try:
            command = self._procfs.command(pid)
        except (OSError, ValueError):
            command = ""
        files = None if container is None else read_device_files(self._procfs, pid)
        return _Known(command, container, pod, environ, files)

    def _of(self, seen: Mapping[int, _Seen], pid: int) -> _Known | None:
        each = seen.get(pid)
        return None if each is None or each.process is None else self._known.get(each.process)

    # -- whose they are ----------------------------------------------------------------------------------------------------------

    def _owners(self, engines: Sequence[_Engine], seen: Mapping[int, _Seen]) -> dict[int, _Engine]:
        """The live engine of each pid: it is one of its processes, or descends from one."""
        by_process = {process: engine for engine in engines for process in engine.processes}
        by_tgid = {process.tgid: engine for process, engine in by_process.items()}
        parents = {pid: each.parent_tgid for pid, each in seen.items()}
        owners = {}
        for pid, each in seen.items():
            if each.process is None:
                continue
            engine = by_process.get(each.process) or self._inherited(each.parent_tgid, by_tgid, parents)
            if engine is not None:
                owners[pid] = engine
                self._known[each.process].owner = engine
        return owners

    def _inherited(self, parent: int | None, by_tgid: Mapping[int, _Engine], parents: dict[int, int | None]) -> _Engine | None:
        """The engine of the nearest ancestor that has one. `parents` is what was read of /proc at this look, and grows."""
        for _ in range(_GENERATIONS if by_tgid else 0):
            if parent is None or parent <= 1:
                return None
            if parent in by_tgid:
                return by_tgid[parent]
            if parent not in parents:
                parents[parent] = self._see(parent, hides=False).parent_tgid
            parent = parents[parent]
        return None

    def _orphans(self, seen: Mapping[int, _Seen], owners: Mapping[int, _Engine], now_s: float) -> set[int]:
        doubts = {pid: doubt for pid, each in seen.items() if pid not in owners and (doubt := self._doubt(each)) is not None}
        # By why: what waited in the kernel for minutes and then ends is gone since just now.
        self._doubtful_since_s = {
            (pid, doubt.why): self._doubtful_since_s.get((pid, doubt.why), now_s) for pid, doubt in doubts.items()
        }
        return {pid for pid, doubt in doubts.items() if now_s - self._doubtful_since_s[pid, doubt.why] >= doubt.patience_s}

    def _doubt(self, seen: _Seen) -> _Doubt | None:
        if seen.process is None:
            return None if seen.hidden else _GONE
        if seen.state == "Z":
            return _ZOMBIE
        owner = self._known[seen.process].owner
        elders = owner.processes - {seen.process} if owner is not None else frozenset()
        if elders and not any(self._procfs.start_ticks(each.tgid) == each.start_ticks for each in elders):
            return _LEFT
        if seen.state != "D":
            return None
        return _STRANGER_STUCK if owner is None else _STUCK


def _parent(seen: Mapping[int, _Seen], pid: int) -> int | None:
    each = seen.get(pid)
    return None if each is None else each.parent_tgid


def _shown(row: _Row) -> str:
    """The command line of an engine's process. Of a stranger's the program alone, as of a neighbour: what stands in its arguments
    is its owner's business."""
    if row.known is None:
        return ""
    return row.known.command if row.engine is not None else program_name(row.known.command)


def _processes(rows: Sequence[_Row], gpu: int) -> tuple[GpuProcess, ...]:
    mine = sorted(
        (row for row in rows if row.gpu.number == gpu), key=lambda row: (-(row.context.memory_bytes or 0), row.context.pid)
    )
    return tuple(
        GpuProcess(
            tgid=row.context.pid,
            command=_shown(row),
            engine=row.engine,
            orphan=row.orphan,
            ended=row.ended,
            kind=row.context.kind,
            memory_bytes=row.context.memory_bytes,
            sm_ratio=row.context.sm_ratio,
            container=row.known.container if row.known else None,
            pod=row.known.pod if row.known else None,
            parent_tgid=row.parent_tgid,
        )
        for row in mine
    )


def _gpu_points(rows: Sequence[_Row], gpu: int) -> list[Point]:
    tags = (("gpu", str(gpu)),)
    mine = [row for row in rows if row.gpu.number == gpu]
    orphans = [row.context.memory_bytes for row in mine if row.orphan]
    points = [
        Point("aie_gpu_processes", Kind.GAUGE, tags, float(len(mine))),
        Point("aie_gpu_orphan_processes", Kind.GAUGE, tags, float(len(orphans))),
    ]
    held = total_of(orphans)
    if held is not None:
        points.append(Point("aie_gpu_orphan_memory_bytes", Kind.GAUGE, tags, float(held)))
    return points


def _engine_points(engine: str, rows: Sequence[_Row], gpus: Sequence[GpuContexts]) -> tuple[list[Point], list[str]]:
    """Memory and contexts of an engine by the device's name in its own words, and what is not exact about them."""
    everything = [each.gpu for each in gpus]
    contexts: dict[str, int] = {}
    memory: dict[str, list[int | None]] = {}
    notes: dict[str, None] = {}
    for row in (row for row in rows if row.engine == engine and row.context.kind != "graphics"):
        device, doubt = _device(row, everything)
        if doubt:
            notes[f"{device}: {doubt}"] = None
        contexts[device] = contexts.get(device, 0) + 1
        held: float | None = row.context.memory_bytes
        if held is None:
            held = _whole(engine, row.gpu.number, rows, gpus)
            notes[_whole_note(device, known=held is not None)] = None
        memory.setdefault(device, []).append(None if held is None else int(held))
    points = []
    for device, count in contexts.items():
        tags = (("device", device), ("engine", engine))
        points.append(Point("aie_engine_gpu_contexts", Kind.GAUGE, tags, float(count)))
        total = total_of(memory[device])
        if total is not None:
            points.append(Point("aie_engine_memory_physical_bytes", Kind.GAUGE, tags, float(total)))
    return points, list(notes)


def _device(row: _Row, gpus: Sequence[GpuName]) -> tuple[str, str | None]:
    """What the process calls the GPU, and why that may be wrong."""
    known = row.known
    environ = known.environ if known else None
    if environ is not None and environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return "cuda0", None  # CUDA shows a process one MIG instance, and calls it 0
    is_in_container = known is not None and known.container is not None
    found = numbering(environ, gpus, in_container=is_in_container, files=known.files if known else None)
    name = found.name(row.gpu.number)
    if name is not None:
        return name, found.doubt
    # It holds a context on a GPU that its first environment hides: most likely it has set another one since.
    in_pci_order = Numbering(tuple(sorted(gpu.number for gpu in gpus))).name(row.gpu.number) or f"cuda{row.gpu.number}"
    return in_pci_order, "the process changed its CUDA_VISIBLE_DEVICES after its start, so PCI order is assumed"


def _whole(engine: str, gpu: int, rows: Sequence[_Row], gpus: Sequence[GpuContexts]) -> float | None:
    """The memory of the whole GPU where nobody but one process of this engine is on it."""
    on_it = [row for row in rows if row.gpu.number == gpu]
    if len(on_it) != 1 or on_it[0].engine != engine:
        return None
    return next((each.used_bytes for each in gpus if each.gpu.number == gpu), None)


def _whole_note(device: str, *, known: bool) -> str:
    if known:
        return f"{device}: the driver does not tell memory by process: this is all that is in use on the GPU, where it is alone"
    return f"{device}: the driver does not tell memory by process, and it is not alone on the GPU"
