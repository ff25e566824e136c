"""What an engine's allocator says of its memory, so that the agent can hold it against the physical memory of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from aie_hooks.emitter import Emitter
from aie_hooks.series import Gauge

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Of one device: bytes in live tensors, and bytes that the allocator holds from the system (live, cached, pools).

    Name devices without a colon ("cpu", "cuda0"), which StatsD could not say.
    """

    device: str
    allocated_bytes: int
    reserved_bytes: int


class AllocatorHook:
    """Reports what `read` returns. One hook a device; call `report` every few seconds, on the thread that may call `read`."""

    def __init__(self, emitter: Emitter, read: Callable[[], AllocatorStats]) -> None:
        self._emitter = emitter
        self._read = read
        self._gauges: dict[str, tuple[Gauge, Gauge]] = {}
        self._failing = False

    def report(self) -> None:
        """Sends both gauges. Whatever `read` raises is logged, once until it works again, and counted as dropped."""
        try:
            stats = self._read()
            allocated, reserved = self._gauges_of(stats.device)
        except Exception:  # noqa: BLE001 - the engine's reader may raise anything, and it is logged
            self._emitter.drop("invalid", 1)
            if not self._failing:
                self._failing = True
                _log.exception("the allocator's numbers could not be read; said once until they can")
            return
        self._failing = False
        allocated.set(stats.allocated_bytes)
        reserved.set(stats.reserved_bytes)

    def _gauges_of(self, device: str) -> tuple[Gauge, Gauge]:
        if device not in self._gauges:
            self._gauges[device] = (
                self._emitter.gauge("aie_engine_allocator_allocated_bytes", device=device),
                self._emitter.gauge("aie_engine_allocator_reserved_bytes", device=device),
            )
        return self._gauges[device]


def torch_cuda_stats(device: int = 0) -> AllocatorStats:
    """The numbers of torch's caching allocator on CUDA device `device`, by torch's index. Takes some 50 us, without a device sync.

    Raises RuntimeError where torch has no CUDA device of that index, and ImportError without torch.
    """
    import torch  # here, because an engine of another kind imports this module without having torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here; report your own allocator's numbers instead")
    if device >= torch.cuda.device_count():
        raise RuntimeError(f"torch sees {torch.cuda.device_count()} CUDA devices, none with index {device}")
    # Empty until the first use of CUDA, when nothing is allocated.
    stats = torch.cuda.memory_stats(device)
    return AllocatorStats(
        device=f"cuda{device}",
        allocated_bytes=stats.get("allocated_bytes.all.current", 0),
        reserved_bytes=stats.get("reserved_bytes.all.current", 0),
    )
