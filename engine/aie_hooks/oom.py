"""When memory runs out, what the memory looked like at that moment: sent at once, because the engine may not live to be asked.

    with oom_forensics(emitter, device=0):     # around a step; also a decorator, of coroutines and generators as well
        step()

The error goes on as it was. One record every `PERIOD_S` a device: an engine that catches the error and tries again a hundred times
a second has one trouble, not a hundred. The rest are counted, and the next record says how many.

Of torch's CUDA allocator everything is read here. An allocator of your own is a `pool`: a function that returns its `PoolState`,
and the exceptions by which it says that it is full as `errors`.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from aie_hooks.allocator import torch_cuda
from aie_hooks.emitter import Emitter
from aie_hooks.reentrant import Tally, Turn

if TYPE_CHECKING:
    from aie_telemetry.api import Event

PERIOD_S: Final = 10.0
"""The least time between two records of one device."""

_MAX_HOLDERS: Final = 8
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO, the same on every Linux
_MAX_SUMMARY: Final = 200
_UNITS: Final = {"bytes": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
# torch on CUDA says "Tried to allocate 20.00 MiB", torch on a CPU "you tried to allocate 20971520 bytes".
_ASKED: Final = re.compile(r"tried to allocate ([0-9][0-9.]{0,30}) ?(bytes|[KMGT]iB|B)\b", re.IGNORECASE)
# Errors that are plain RuntimeErrors by class.
_SAY_OUT_OF_MEMORY: Final = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool of an engine's own when it could not serve a request. None is what is not known, and left out of the record."""

    asked_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    largest_free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


class Holder(NamedTuple):
    """A process with memory on the device; `used_bytes` None where the driver does not say, `perhaps_own` where the driver's pid
    cannot be told from this process's own."""

    tgid: int
    used_bytes: int | None
    perhaps_own: bool = False


def report_oom(
    emitter: Emitter,
    error: BaseException,
    device: int | str = 0,
    *,
    pool: Callable[[], PoolState] | None = None,
    cuda: Any = None,
    suppressed: int = 0,
    time_s: float | None = None,
) -> bool:
    """Sends one record of `error` now; whether it was sent. Never raises: what cannot be read is left out.

    `device` is torch's index of a CUDA device, or any other device's name, of which only `pool` and the error know more. `cuda` is
    `torch.cuda` unless told otherwise. Takes milliseconds, of which the allocator's snapshot and NVML are most: this is for when
    memory has run out, and for nothing else.
    """
    try:
        return emitter.event(_event(emitter.engine, error, device, pool, cuda, suppressed, time_s))
    except BaseException as broken:  # noqa: BLE001 - the engine has trouble enough, were it an exit that `pool` asks for
        emitter.failed("the record of memory that ran out", broken)
        return False


def oom_forensics(
    emitter: Emitter,
    device: int | str = 0,
    *,
    pool: Callable[[], PoolState] | None = None,
    errors: tuple[type[BaseException], ...] = (),
    cuda: Any = None,
    clock: Callable[[], float] = time.monotonic,
) -> OomForensics:
    """A context manager and decorator that reports an out-of-memory error on its way out. Make one at start and use it for every
    step: it costs less than a microsecond where nothing fails. Parameters as those of `report_oom`."""
    return OomForensics(emitter, device, pool=pool, errors=errors, cuda=cuda, clock=clock)


class OomForensics:
    """What `oom_forensics` returns. Holds no state of an entry, so that one object serves all threads."""

    def __init__(
        self,
        emitter: Emitter,
        device: int | str,
        *,
        pool: Callable[[], PoolState] | None,
        errors: tuple[type[BaseException], ...],
        cuda: Any,
        clock: Callable[[], float],
    ) -> None:
        self._emitter = emitter
        self._device = device
        self._pool = pool
        self._errors = errors
        self._cuda = cuda
        self._clock = clock
        self._turns = Turn()
        self._next_s = float("-inf")
        self._suppressed = Tally()

    @property
    def suppressed(self) -> int:
        """Errors of which no record was sent because one had just been, since the last record."""
        suppressed = self._suppressed.take()
        self._suppressed.add(suppressed)
        return int(suppressed)

    def __enter__(self) -> OomForensics:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            return
        try:
            self._consider(error)
        except BaseException as broken:  # noqa: BLE001 - whatever leaves here would take the place of the engine's own error
            self._emitter.failed("telling whether memory ran out", broken)

    def _consider(self, error: BaseException) -> None:
        if not (isinstance(error, self._errors) or is_out_of_memory(error, self._cuda)):
            return
        suppressed = self._turn()
        if suppressed is not None:
            report_oom(self._emitter, error, self._device, pool=self._pool, cuda=self._cuda, suppressed=suppressed)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """`function`, watched while it runs: of a coroutine or a generator that is later than its call. Raises TypeError for an
        asynchronous generator: put the `with` into it."""
        if inspect.isasyncgenfunction(function):
            raise TypeError(f"{function!r} is an asynchronous generator: put `with oom_forensics(...)` around what it does")
        watched: Any = self._watched_later(function)

        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return watched or guarded

    def _watched_later(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """For a function whose call returns before it runs; None for every other."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return awaited
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def iterated(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return (yield from function(*args, **kwargs))

            return iterated
        return None

    def _turn(self) -> int | None:
        """How many errors went by without a record; None when this one shall too."""
        if self._turns.take():  # else somebody sends a record at this very moment
            try:
                now_s = self._clock()
                if now_s >= self._next_s:
                    self._next_s = now_s + PERIOD_S
                    return int(self._suppressed.take())
            finally:
                self._turns.leave()
        self._suppressed.add(1)
        return None


def is_out_of_memory(error: BaseException, cuda: Any = None) -> bool:
    """Whether an error says that memory ran out: Python's, torch's, or one that says so in torch's words."""
    if isinstance(error, MemoryError):
        return True
    # Whoever raised torch's error has imported torch; nobody else shall import it for this.
    source = cuda if cuda is not None else sys.modules.get("torch")
    kind = getattr(source, "OutOfMemoryError", None)
    if isinstance(kind, type) and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAY_OUT_OF_MEMORY)


def asked_bytes(message: str) -> int | None:
    """How much an error's message says was asked for; None when it does not say."""
    match = _ASKED.search(message)
    if match is None:
        return None
    try:
        return round(float(match[1]) * _UNITS[match[2].lower()])
    except ValueError:
        return None


def largest_free_block_bytes(segments: Iterable[Mapping[str, Any]], device: int) -> int:
    """The largest free block in the reserved memory of `device`, from `torch.cuda.memory_snapshot`. Private pools apart: what is
    free in them serves only their own graphs."""
    blocks = (block for segment in _shared(segments, device) for block in segment["blocks"] if block["state"] == "inactive")
    return max((block["size"] for block in blocks), default=0)


def private_pool_bytes(segments: Iterable[Mapping[str, Any]], device: int) -> int:
    """What private pools reserve on `device`, from `torch.cuda.memory_snapshot`."""
    return sum(segment["total_size"] for segment in segments if segment["device"] == device and _is_private(segment))


def _shared(segments: Iterable[Mapping[str, Any]], device: int) -> Iterator[Mapping[str, Any]]:
    return (segment for segment in segments if segment["device"] == device and not _is_private(segment))


def _is_private(segment: Mapping[str, Any]) -> bool:
    return tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)


def _event(
    engine: str,
    error: BaseException,
    device: int | str,
    pool: Callable[[], PoolState] | None,
    cuda: Any,
    suppressed: int,
    time_s: float | None,
) -> Event:
    from aie_telemetry.api import Event  # here, because it is needed once memory has run out and not before

    message = str(error)
    name = f"cuda{device}" if isinstance(device, int) else device
    # The most telling first: what does not fit a packet is left out from the end.
    facts: dict[str, float | str | None] = {"device": name, "asked_bytes": asked_bytes(message)}
    if pool is not None:
        facts |= _of_pool(pool)
    elif isinstance(device, int):
        facts |= _of_cuda(torch_cuda() if cuda is None else cuda, device)
    facts["error"] = type(error).__name__
    facts["suppressed"] = suppressed
    details = {key: value for key, value in facts.items() if value is not None}
    summary = f"out of memory on {name}: {' '.join(message.split())[:_MAX_SUMMARY] or type(error).__name__}"
    return Event(time_s=time.time() if time_s is None else time_s, kind="oom", engine=engine, summary=summary, details=details)


def _of_pool(pool: Callable[[], PoolState]) -> dict[str, float | str | None]:
    facts = {key: value for key, value in asdict(pool()).items() if value is not None}
    return {**facts, "reserved_unallocated_bytes": _less(facts.get("reserved_bytes"), facts.get("allocated_bytes"))}


def _of_cuda(cuda: Any, device: int) -> dict[str, float | str | None]:
    """Everything that torch and the driver say, each read by itself: after an error some calls may raise."""
    unreadable: list[str] = []
    free, total = _read(lambda: cuda.mem_get_info(device), "mem_get_info", unreadable) or (None, None)
    stats: Mapping[str, Any] = _read(lambda: cuda.memory_stats(device), "memory_stats", unreadable) or {}
    blocks = _read(lambda: _free_and_private(cuda.memory_snapshot(), device), "memory_snapshot", unreadable) or (None, None)
    holders = _read(lambda: other_holders(cuda, device), "NVML", unreadable)
    allocated, reserved = stats.get("allocated_bytes.all.current"), stats.get("reserved_bytes.all.current")
    return {
        "free_bytes": free,
        "total_bytes": total,
        "largest_free_bytes": blocks[0],
        "reserved_unallocated_bytes": _less(reserved, allocated),
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "inactive_split_bytes": stats.get("inactive_split_bytes.all.current"),
        "private_pool_bytes": blocks[1],
        "retries": stats.get("num_alloc_retries"),
        "ooms": stats.get("num_ooms"),
        "holders": _holders_text(holders),
        "unreadable": ", ".join(unreadable) or None,
    }


def _free_and_private(segments: Sequence[Mapping[str, Any]], device: int) -> tuple[int, int]:
    return largest_free_block_bytes(segments, device), private_pool_bytes(segments, device)


def _read(read: Callable[[], _R], what: str, unreadable: list[str]) -> _R | None:
    """What `read` gives; None for what cannot be read, of which the record then says so."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a CUDA context may be broken by now; the rest of the record is worth having
        unreadable.append(f"{what}: {type(error).__name__}")
        return None


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def other_holders(cuda: Any, device: int) -> list[Holder] | None:
    """The other processes on the GPU by the driver's account, those with most memory first; None without `pynvml` (the package
    `nvidia-ml-py`). The GPU is found by torch's UUID: torch and NVML number GPUs differently. The driver gives the host's pids:
    within a container nobody can tell which is this process, so all are listed, and marked. Raises what NVML raises."""
    try:
        import pynvml  # here, because it is asked when memory has run out, and many have no such package
    except ImportError:
        return None
    own = own_pids()
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(_nvml_uuid(cuda.get_device_properties(device)))
        found = [
            Holder(process.pid, process.usedGpuMemory, own is None)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if own is None or process.pid not in own
        ]
    finally:
        pynvml.nvmlShutdown()
    return sorted(found, key=lambda holder: holder.used_bytes or 0, reverse=True)


def own_pids(proc: Path = Path("/proc")) -> frozenset[int] | None:
    """The pids by which the host may know this process: those of every namespace that this `/proc` shows (`NSpid`). None where the
    host's is not among them: within a container, whose `/proc` begins at its own namespace; or where nothing can be read."""
    try:
        namespace = os.readlink(proc / "self/ns/pid")
        status = (proc / "self/status").read_text()
    except OSError:
        return None
    pids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    if namespace != _FIRST_PID_NAMESPACE and len(pids) < 2:
        return None
    return frozenset(map(int, pids)) or frozenset({os.getpid()})


def _nvml_uuid(properties: Any) -> str:
    text = str(properties.uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _holders_text(holders: Sequence[Holder] | None) -> str | None:
    """For the record; None when nobody knows, "none" when there is nobody else."""
    if holders is None:
        return None
    unsure = ["of all on the GPU one may be this process"] if any(holder.perhaps_own for holder in holders) else []
    some = [f"pid {holder.tgid}: {_size_text(holder.used_bytes)}" for holder in holders[:_MAX_HOLDERS]]
    more = [f"and {len(holders) - _MAX_HOLDERS} more"] if len(holders) > _MAX_HOLDERS else []
    return ", ".join(some + more + unsure) or "none"


def _size_text(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**20:.0f} MiB"
