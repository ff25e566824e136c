"""What crosses the pipe between the agent and the child process that holds BCC: MessagePack, one length-prefixed frame a message.

All amounts in a report are increases since the report before it, except where a field says "now". Times are seconds, counted by the
kernel's monotonic clock; the agent dates a report when it arrives.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

_LENGTH: Final = struct.Struct("<I")
LARGEST_FRAME: Final = 16 << 20

HISTOGRAM_BOUNDS_S: Final = tuple(2.0**exponent * 1e-6 for exponent in range(27))
"""Upper bounds of every histogram of times that a program keeps: 1 us to 67 s, doubling. One more slot holds what is above."""

SIZE_BOUNDS_BYTES: Final = tuple(2.0**exponent for exponent in range(8, 35))
"""Upper bounds of every histogram of sizes: 256 B to 16 GiB, doubling. One more slot holds what is above."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all messages and their parts. None can hold itself, so that nobody has to look for cycles of them."""


class Target(_Message, frozen=True):
    """A process to watch. `start_ticks` (/proc/PID/stat, field 22) tells it from a later one with the same tgid."""

    engine: str
    tgid: int
    start_ticks: int


class Watch(_Message, frozen=True, tag=True):
    """All processes to watch from now on; what is not in it is released."""

    targets: tuple[Target, ...]


class OpenWindow(_Message, frozen=True, tag=True):
    """Attach a set that is not on by default to an engine's processes, and detach it after `seconds`. `locks` are the futexes
    (tgid, address) that lock_stacks is to look at; all where there are none."""

    set: str
    engine: str
    seconds: float
    locks: tuple[tuple[int, int], ...] = ()


class Histogram(_Message, frozen=True):
    """Observations by slot (not cumulative) and their sum: seconds over HISTOGRAM_BOUNDS_S, or bytes over SIZE_BOUNDS_BYTES."""

    slots: tuple[int, ...]
    total: float


class Lock(_Message, frozen=True):
    """Waits on one futex address of a process. `kind`: "gil"; "lock" when those who wake the waiters have waited for it themselves;
    "idle" otherwise: a queue or a condition, where waiting is how a thread has nothing to do. `waiters` is how many wait now."""

    address: int
    kind: str
    waits: int
    wait_s: float
    longest_s: float
    handoffs: int
    waiters: int


class Waits(_Message, frozen=True):
    """Thread-seconds that a process's threads spent waiting, by reason; each second of a thread counts once. None: not seen.

    `run_queue`: ready, and no CPU. `lock` and `gil`: as in `Lock`. `idle_futex`: on a futex of kind "idle". `page_fault`: until the
    disk brought a page. `disk`: otherwise uninterruptible. `gpu_sync`: inside a CUDA synchronisation, on a CPU or not (the
    library may spin). `sleep`: any other sleep, such as for a socket or a timer. `gpu_spin` is the part of `gpu_sync` that was on a
    CPU, and no reason of its own.
    """

    run_queue: float | None = None
    lock: float | None = None
    gil: float | None = None
    idle_futex: float | None = None
    page_fault: float | None = None
    disk: float | None = None
    gpu_sync: float | None = None
    sleep: float | None = None
    gpu_spin: float | None = None


class Allocations(_Message, frozen=True):
    """What a process asked the CUDA driver for. `kind`: device, managed, async, vmm, host, registered.

    `outstanding_*` are now: what was seen to be allocated and has not been freed. By kind, by the power of two that holds an
    allocation's size, and by the file whose code asked.
    """

    kind: str
    size_class_bytes: int
    module: str
    outstanding_bytes: int
    outstanding: int
    allocated_bytes: int
    allocations: int
    freed_bytes: int
    frees: int


class CudaFailure(_Message, frozen=True):
    """Calls that the driver refused, by function and CUresult."""

    call: str
    code: int
    count: int


class CudaSync(_Message, frozen=True):
    """Calls of one synchronising function: how long they took, and of those that have not returned now, how many and since when.
    `blocked_s` counts each second when it passes: those of calls that have not returned, too, and once."""

    call: str
    seconds: Histogram
    waiting: int
    longest_wait_s: float
    blocked_s: float = 0.0


class CudaCopy(_Message, frozen=True):
    """Copies asked for, by direction: htod, dtoh, dtod, peer, unified (the driver decides). `burst_bytes`: the most in 1 ms."""

    direction: str
    bytes: int
    sizes: Histogram
    burst_bytes: int


class Cuda(_Message, frozen=True):
    """What a process did with CUDA's driver API. `contexts` is now. `unknown_frees` freed what was allocated before we watched."""

    allocations: tuple[Allocations, ...] = ()
    failures: tuple[CudaFailure, ...] = ()
    syncs: tuple[CudaSync, ...] = ()
    copies: tuple[CudaCopy, ...] = ()
    launches: dict[str, int] = {}
    contexts: int | None = None
    unknown_frees: int = 0


class ProcessReport(_Message, frozen=True):
    """One watched process. `run_queue` and `off_cpu` are distributions of single delays; `gc` of Python's collections."""

    engine: str
    tgid: int
    waits: Waits = Waits()
    locks: tuple[Lock, ...] = ()
    run_queue: Histogram | None = None
    off_cpu: Histogram | None = None
    major_faults: int | None = None
    cuda: Cuda | None = None
    gc: Histogram | None = None


class BlockIo(_Message, frozen=True):
    """Requests that a block device completed. `op`: read, write, other."""

    device: str
    op: str
    seconds: Histogram
    bytes: int


class OomKill(_Message, frozen=True):
    """The kernel chose a process to kill for lack of memory. Bytes are None where this kernel's tracepoint does not tell."""

    tgid: int
    command: str
    anon_bytes: int | None = None
    file_bytes: int | None = None
    shmem_bytes: int | None = None


class Xid(_Message, frozen=True):
    """The NVIDIA driver reported an error of a GPU."""

    device: str
    code: int
    text: str


class LockStack(_Message, frozen=True):
    """A thread of an engine about to wait at a futex: its registers (`registers` by their DWARF numbers), and as much of its stack
    from `sp` on as was copied. Nothing of it is interpreted yet."""

    engine: str
    tgid: int
    tid: int
    address: int
    pc: int
    sp: int
    registers: dict[int, int]
    stack: bytes


class Cost(_Message, frozen=True):
    """What one set took from one engine since the report before: how often its programs ran there, and how long that took by the
    calibrated cost of a hit. `ratio` is the average share of one CPU over the last 60 s."""

    engine: str
    set: str
    hits: int
    seconds: float
    ratio: float


class Coverage(_Message, frozen=True):
    """What can be seen of a process by one set, and what cannot. `state`: on; part (`missing` says what is not seen); off
    (`reason`); none (there is nothing to see, for `reason`); window (can be opened; while it
    is open: on or part). `remedy` is what to do about it, where
    something can be done. `notes` are what to know of it: they hide nothing."""

    engine: str
    tgid: int
    set: str
    state: str
    probes: int = 0
    reason: str = ""
    missing: tuple[str, ...] = ()
    remedy: str = ""
    notes: tuple[str, ...] = ()


class SetState(_Message, frozen=True):
    """A set on this host: loaded, or why not."""

    set: str
    loaded: bool
    reason: str = ""


class WindowClosed(_Message, frozen=True, tag=True):
    """A window ended. `stolen_s` is what it took from the engine: its hits by their cost, those while it was attached and detached
    included. For how long the engine stood still when breakpoints were set and taken away is not in it. `reason` is why it ended
    before its time, or was not opened."""

    set: str
    engine: str
    open_s: float
    hits: int
    stolen_s: float
    reason: str = ""


class Ready(_Message, frozen=True, tag=True):
    """Programs are compiled and costs known. `cost_ns` is what one hit takes: uprobe, uretprobe, tracepoint. `uprobes` is the way
    they are attached, links or events; `uprobes_reason` why it is not links."""

    sets: tuple[SetState, ...]
    cost_ns: dict[str, float]
    bcc_version: str
    uprobes: str = ""
    uprobes_reason: str = ""


class Report(_Message, frozen=True, tag=True):
    """Once a period: everything that rose since the last. `lost` counts what programs could not note, by map. `coverage` is all of
    it, and None where nothing changed. `read_s` is how long it took to read all maps once, those of the charges, too;
    `read_cpu_s` what that took of a core."""

    period_s: float
    processes: tuple[ProcessReport, ...] = ()
    block_io: tuple[BlockIo, ...] = ()
    oom_kills: tuple[OomKill, ...] = ()
    xids: tuple[Xid, ...] = ()
    costs: tuple[Cost, ...] = ()
    lock_stacks: tuple[LockStack, ...] = ()
    coverage: tuple[Coverage, ...] | None = None
    lost: dict[str, int] = {}
    resident_bytes: int = 0
    cpu_s: float = 0.0
    read_s: float = 0.0
    read_cpu_s: float = 0.0


class Failed(_Message, frozen=True, tag=True):
    """The child cannot do its work at all: one line that says why, and what to do. It ends after this."""

    reason: str
    remedy: str = ""


ToChild = Watch | OpenWindow
ToAgent = Ready | Report | WindowClosed | Failed

_encoder = msgspec.msgpack.Encoder()
_to_child = msgspec.msgpack.Decoder(ToChild)
_to_agent = msgspec.msgpack.Decoder(ToAgent)


class FrameError(Exception):
    """The other side sent what is no frame."""


def frame(message: ToChild | ToAgent) -> bytes:
    """A message as it goes over the pipe."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes as they come, into bodies of messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete with `data`. Raises FrameError at a length beyond LARGEST_FRAME."""
        self._rest += data
        bodies = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > LARGEST_FRAME:
                raise FrameError(f"a frame of {length} bytes: at most {LARGEST_FRAME} are accepted")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            bodies.append(bytes(self._rest[_LENGTH.size : end]))
            del self._rest[:end]
        return bodies


def for_child(body: bytes) -> ToChild:
    """A message that the agent sent. Raises FrameError."""
    try:
        return _to_child.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"not a message for the child: {error}") from error


def for_agent(body: bytes) -> ToAgent:
    """A message that the child sent. Raises FrameError."""
    try:
        return _to_agent.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"not a message for the agent: {error}") from error
