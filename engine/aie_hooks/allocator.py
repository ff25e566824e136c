"""What an engine's allocator says of its memory, so that the agent can hold it against the physical memory of the process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aie_hooks.process_memory import malloc_bytes, python_blocks

if TYPE_CHECKING:  # reading the allocator needs nothing but torch
    from aie_hooks.emitter import Emitter
    from aie_hooks.series import Counter, Gauge

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Of one device: bytes in live tensors, and bytes that the allocator holds from the system (live, cached, pools).

    Name devices without a colon ("cpu", "cuda0"), which StatsD could not say. What is None is not known, and not sent:
    `inactive_split_bytes` is reserved but free, in blocks that are partly in use; `private_pool_bytes` is reserved by private
    pools, such as those of CUDA graphs; `pinned_bytes` is pinned host memory of the whole process, which one device's report should
    carry; `largest_free_bytes` is the largest allocation that would need nothing from the system; `retries` are allocations that
    succeeded only after the cache was emptied, `ooms` those that failed, both since the process started.
    """

    device: str
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int | None = None
    private_pool_bytes: int | None = None
    pinned_bytes: int | None = None
    largest_free_bytes: int | None = None
    retries: int | None = None
    ooms: int | None = None


# By field of `AllocatorStats`.
_GAUGES: Final = {
    "allocated_bytes": "aie_engine_allocator_allocated_bytes",
    "reserved_bytes": "aie_engine_allocator_reserved_bytes",
    "inactive_split_bytes": "aie_engine_allocator_inactive_split_bytes",
    "private_pool_bytes": "aie_engine_allocator_private_pool_bytes",
    "pinned_bytes": "aie_engine_allocator_pinned_bytes",
    "largest_free_bytes": "aie_engine_allocator_largest_free_bytes",
}
_COUNTERS: Final = {"retries": "aie_engine_allocator_retries_total", "ooms": "aie_engine_allocator_ooms_total"}


PROCESS_PERIOD_S: Final = 1.0
"""What malloc and Python hold is read no more often: some 0.1 ms for each million of Python objects."""


class AllocatorHook:
    """Reports what `read` returns, and what of the process's memory malloc and Python hold. One hook a device; call `report` every
    few seconds, on the thread that may call `read`."""

    def __init__(self, emitter: Emitter, read: Callable[[], AllocatorStats]) -> None:
        self._emitter = emitter
        self._read = read
        self._gauges: dict[tuple[str, str], Gauge] = {}
        self._counters: dict[tuple[str, str], Counter] = {}
        self._then: dict[tuple[str, str], int] = {}
        self._failing = False
        self._next_s = float("-inf")

    def report(self) -> None:
        """Sends what is known. Whatever `read` raises is logged, once until it works again, and counted as dropped."""
        self._send_process(time.monotonic())
        try:
            self._send(self._read())
        except Exception as error:  # noqa: BLE001 - the engine's reader may raise anything, and it is logged
            self._emitter.drop("invalid", 1)
            if not self._failing:
                self._failing = True
                _log.error("the allocator's numbers could not be read; said once until they can", exc_info=error)
            return
        self._failing = False

    def _send_process(self, now_s: float) -> None:
        """What tells Python's objects, native heap and mappings apart, when the rest of the process grows."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + PROCESS_PERIOD_S
        malloc = malloc_bytes()
        self._emitter.gauge("aie_engine_python_blocks").set(python_blocks())
        if malloc is not None:
            self._emitter.gauge("aie_engine_malloc_used_bytes").set(malloc.used_bytes)
            self._emitter.gauge("aie_engine_malloc_held_bytes").set(malloc.held_bytes)

    def _send(self, stats: AllocatorStats) -> None:
        device = stats.device
        for field, metric in _GAUGES.items():
            value = getattr(stats, field)
            if value is None:
                continue
            if (field, device) not in self._gauges:
                self._gauges[field, device] = self._emitter.gauge(metric, device=device)
            self._gauges[field, device].set(value)
        for field, metric in _COUNTERS.items():
            value = getattr(stats, field)
            if value is None:
                continue
            if (field, device) not in self._counters:
                self._counters[field, device] = self._emitter.counter(metric, device=device)
            then = self._then.get((field, device), 0)
            # torch's counters can be reset; what it counts after that is new.
            self._counters[field, device].add(value - then if value >= then else value)
            self._then[field, device] = value


def torch_cuda_stats(device: int = 0, *, pinned: bool | None = None, cuda: Any = None) -> AllocatorStats:
    """The numbers of torch's caching allocator on CUDA device `device`, by torch's index, without a device sync.

    `pinned` is whether to add the process's pinned host memory; None means for device 0 only, so that it is reported once. `cuda`
    is `torch.cuda` unless told otherwise. Fields that this torch does not count are None. So are private pools and the largest free
    block, which only a snapshot knows, and that takes milliseconds: `aie_hooks.oom` takes one when memory has run out.

    Raises RuntimeError where torch has no CUDA device of that index, and ImportError without torch.
    """
    cuda = torch_cuda() if cuda is None else cuda
    if not cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here; report your own allocator's numbers instead")
    if device >= cuda.device_count():
        raise RuntimeError(f"torch sees {cuda.device_count()} CUDA devices, none with index {device}")
    # Empty until the first use of CUDA, when nothing is allocated, and nothing has failed.
    stats = cuda.memory_stats(device)
    unknown = None if stats else 0
    return AllocatorStats(
        device=f"cuda{device}",
        allocated_bytes=stats.get("allocated_bytes.all.current", 0),
        reserved_bytes=stats.get("reserved_bytes.all.current", 0),
        inactive_split_bytes=stats.get("inactive_split_bytes.all.current", unknown),
        pinned_bytes=_pinned_bytes(cuda) if pinned or (pinned is None and device == 0) else None,
        retries=stats.get("num_alloc_retries", unknown),
        ooms=stats.get("num_ooms", unknown),
    )


def _pinned_bytes(cuda: Any) -> int | None:
    """Pinned host memory that torch's host allocator holds; None for a torch that does not count it."""
    read = getattr(cuda, "host_memory_stats", None)
    if read is None:
        return None
    stats = read()
    value: int | None = stats.get("allocated_bytes.current", None if stats else 0)
    return value


def torch_cuda() -> Any:
    """`torch.cuda`. Raises ImportError without torch."""
    import torch  # here, because an engine of another kind imports this module without having torch

    return torch.cuda
