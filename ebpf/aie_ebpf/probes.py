"""The sets of probes and what each attaches to, as data. Attachment, `aie-agent check` and docs/ebpf.md all read these tables."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from aie_ebpf.cuda_probes import CUDA_UPROBES


class When(StrEnum):
    """When a set is attached."""

    ALWAYS = "always"
    CUDA = "watched engines with CUDA"
    WINDOW = "on demand, for a bounded window"


class ProbeSet(NamedTuple):
    """Probes that are attached and detached together. `program` is its file in `programs/`, without `.bpf.c`.
    `pays` is what costs a hit of each of its probes."""

    name: str
    program: str
    when: When
    sees: str
    blind: str
    pays: str


class Tracepoint(NamedTuple):
    """A program on a tracepoint of the kernel: `handler` is its function. `optional`: its kernel module may be absent."""

    set: str
    tracepoint: str
    handler: str
    optional: bool = False


class PerfEvent(NamedTuple):
    """A program on a software event of the kernel (type and config of perf_event_open), at every `period`-th."""

    set: str
    type: int
    config: int
    handler: str
    period: int = 1


SETS: Final[tuple[ProbeSet, ...]] = (
    ProbeSet("locks", "locks", When.ALWAYS,
             sees="futex waits by address; the GIL by its address inside _PyRuntime",
             blind="locks that spin, or park each thread at an address of its own (absl, parking_lot, Go, CPython 3.14's PyMutex); "
                   "one that was not given back twice yet (until then who waits there is idle); "
                   "which thread holds one; the line of code (see aie-agent stacks)",
             pays="a futex call of a watched thread, once or twice"),
    ProbeSet("sched", "sched", When.ALWAYS,
             sees="delays in the run queue, and time off the CPU by reason",
             blind="what a thread does while it runs; how long a new thread waited for its first CPU",
             pays="a watched thread that leaves a CPU or comes back to one"),
    ProbeSet("faults", "faults", When.ALWAYS,
             sees="page faults that needed the disk",
             blind="the address that was touched; faults on CPUs that were brought online after the agent came",
             pays="a page fault that needed the disk"),
    ProbeSet("block_io", "block_io", When.ALWAYS,
             sees="latency and bytes of block devices, host-wide",
             blind="network file systems; who asked",
             pays="a request to a block device, twice: in the kernel, no engine's"),
    ProbeSet("oom", "oom", When.ALWAYS,
             sees="which process the kernel killed for lack of memory",
             blind="kills by a user-space OOM daemon",
             pays="a kill"),
    ProbeSet("xid", "xid", When.ALWAYS,
             sees="errors that the NVIDIA driver reports (driver 575 and later)",
             blind="older drivers: the kernel log has them. It was never tried on a driver",
             pays="an error"),
    ProbeSet("cuda_memory", "cuda_memory", When.CUDA,
             sees="memory asked from the CUDA driver and not given back: kind, size, calling file",
             blind="what was allocated before the agent came; what a caching allocator does inside its segments; memory that goes "
                   "with one of several contexts; memory that stays mapped after cuMemRelease; CUDA arrays; what async pools keep "
                   "of what was freed",
             pays="an allocation or a free that reaches the driver: caching allocators ask seldom"),
    ProbeSet("cuda_sync", "cuda_sync", When.CUDA,
             sees="time blocked in synchronisation, and calls that do not return",
             blind="polling with cuStreamQuery or cuEventQuery; waits inside synchronous copies; a call that hung already when the "
                   "agent came",
             pays="a synchronisation, at its call and its return"),
    ProbeSet("cuda_copy", "cuda_copy", When.CUDA,
             sees="bytes that copies ask for, by direction, and the largest burst in 1 ms",
             blind="copies inside graphs and kernels; how long a copy takes; of a batch what is beyond its first 256; 2D and 3D "
                   "copies from host to host",
             pays="a copy"),
    ProbeSet("cuda_launch", "cuda_launch", When.WINDOW,
             sees="kernel and graph launches by function",
             blind="kernels inside a graph; GPU time",
             pays="a launch, while the window is open"),
    ProbeSet("gc", "gc", When.WINDOW,
             sees="collections of CPython's garbage collector and how long they take",
             blind="interpreters built without USDT (--with-dtrace), such as most that are built by hand",
             pays="a collection, while the window is open"),
    ProbeSet("lock_stacks", "lock_stacks", When.WINDOW,
             sees="which native code waits at a futex: registers and the top 4 KiB of the stack, a few of each thread",
             blind="kernels older than 5.15 or without BTF; locks that spin; frames beyond the copy; a wait that began before the "
                   "window; waits for the GIL (Python's own stacks have them)",
             pays="a futex wait at an address that is asked for, while the window is open"),
)  # fmt: skip

TRACEPOINTS: Final[tuple[Tracepoint, ...]] = (
    Tracepoint("locks", "syscalls:sys_enter_futex", "tracepoint__syscalls__sys_enter_futex"),
    Tracepoint("locks", "syscalls:sys_exit_futex", "tracepoint__syscalls__sys_exit_futex"),
    Tracepoint("sched", "sched:sched_switch", "tracepoint__sched__sched_switch"),
    Tracepoint("sched", "sched:sched_wakeup", "tracepoint__sched__sched_wakeup"),
    Tracepoint("block_io", "block:block_rq_issue", "tracepoint__block__block_rq_issue"),
    Tracepoint("block_io", "block:block_rq_complete", "tracepoint__block__block_rq_complete"),
    Tracepoint("oom", "oom:mark_victim", "mark_victim"),
    Tracepoint("lock_stacks", "syscalls:sys_enter_futex", "tracepoint__syscalls__sys_enter_futex"),
    Tracepoint("xid", "nvidia:nvidia_dev_xid", "nvidia_dev_xid", optional=True),
)

_PERF_TYPE_SOFTWARE: Final = 1
_PERF_COUNT_SW_PAGE_FAULTS_MAJ: Final = 6

PERF_EVENTS: Final[tuple[PerfEvent, ...]] = (
    PerfEvent("faults", _PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_PAGE_FAULTS_MAJ, "major_fault"),
)

UPROBES: Final = CUDA_UPROBES

CUDA_SETS: Final = tuple(each.name for each in SETS if each.program.startswith("cuda_"))
"""The sets of uprobes on libcuda."""


def set_named(name: str) -> ProbeSet:
    """The set of that name. Raises KeyError."""
    return _BY_NAME[name]


_BY_NAME: Final = {each.name: each for each in SETS}
