"""What the leak analysis reads of the store: a sample of an engine on a device, and how much memory is left there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from aie_agent.analysis.findings import View
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.within import BLOCKS, MALLOC_HELD, MALLOC_USED, MAPS, Inside, Maps
from aie_agent.store import Store

PHYSICAL: Final = "aie_engine_memory_physical_bytes"
ALLOCATED: Final = "aie_engine_allocator_allocated_bytes"
RESERVED: Final = "aie_engine_allocator_reserved_bytes"
MODULES: Final = "aie_cuda_memory_module_bytes"
CLASSES: Final = "aie_cuda_memory_class_bytes"

_OUTSTANDING: Final = "aie_cuda_memory_outstanding_bytes"
_ON_DEVICE: Final = frozenset({"device", "managed", "async", "vmm"})
_RESPONSE_CACHE: Final = "aie_engine_response_cache_bytes"
_SWAP: Final = "aie_process_swap_bytes"
_CPU: Final = "cpu"
_SAME_START_S: Final = 5.0
"""Two sources may tell the same start a little differently."""


class Identity(NamedTuple):
    """What makes an engine the same one still: its processes, when it says that it started, its model. Empty or None: not known."""

    tgids: frozenset[int] = frozenset()
    start_s: float | None = None
    model: str | None = None

    def became(self, now: Identity) -> bool:
        """Whether it is another one now, by what is known both times: none of its processes is left, or it started or swapped its
        model since."""
        if self.tgids and now.tgids and self.tgids.isdisjoint(now.tgids):
            return True
        if self.start_s is not None and now.start_s is not None and now.start_s - self.start_s > _SAME_START_S:
            return True
        return self.model is not None and now.model is not None and self.model != now.model

    @property
    def tells_restarts(self) -> bool:
        """Whether it would be noticed that it began anew."""
        return bool(self.tgids) or self.start_s is not None

    def joined(self, now: Identity) -> Identity:
        """What is known of it, the newer first."""
        start_s = self.start_s if now.start_s is None else now.start_s
        return Identity(now.tgids or self.tgids, start_s, self.model if now.model is None else now.model)


def identity(view: View, engine: str, now_s: float) -> Identity:
    """Of an engine now. One that serves several models is not told by them."""
    store = view.store
    starts = [each.value for each in store.scalars("aie_engine_start_time_seconds", engine=engine) if each.valid_until_s >= now_s]
    running = store.scalars("aie_engine_requests_running", engine=engine)
    models = {dict(each.tags).get("model") for each in running if each.valid_until_s >= now_s}
    tgids = frozenset(each.tgid for each in view.processes(engine))
    return Identity(tgids, min(starts, default=None), next(iter(models)) if len(models) == 1 else None)


def devices(store: Store, engine: str, now_s: float) -> list[str]:
    """Devices on which something is known of its memory."""
    names = {
        device
        for metric in (PHYSICAL, ALLOCATED, RESERVED)
        for series in store.scalars(metric, engine=engine)
        if series.valid_until_s >= now_s and (device := dict(series.tags).get("device"))
    }
    return sorted(names)


def sample(store: Store, engine: str, device: str, now_s: float, *, only_gpu: bool) -> Sample:
    """An engine's memory on a device now; on a CPU with what of it is swapped out, which is no less taken. `only_gpu` says that
    this is its only GPU: what was asked of CUDA's driver lies there."""

    def level(metric: str) -> float | None:
        return store.current(metric, now_s, engine=engine, device=device)

    def of_process(metric: str) -> float | None:
        return store.current(metric, now_s, engine=engine) if device == _CPU else None

    physical = level(PHYSICAL)
    swapped = of_process(_SWAP)
    return Sample(
        now_s,
        physical if physical is None or swapped is None else physical + swapped,
        level(ALLOCATED),
        level(RESERVED),
        _outstanding(store, engine, now_s) if only_gpu else None,
        load(store, engine, now_s),
        of_process(_RESPONSE_CACHE),
        requests(store, engine, now_s),
        python_blocks=of_process(BLOCKS),
        malloc_used_bytes=of_process(MALLOC_USED),
        malloc_held_bytes=of_process(MALLOC_HELD),
    )


def maps(store: Store, engine: str, now_s: float) -> Maps | None:
    """What the kernel tells of an engine's mappings now; None while nobody looks, or nobody may."""
    live = [each for each in store.scalars(MAPS, engine=engine) if each.valid_until_s >= now_s]
    held = {(tags.get("kind", ""), tags.get("size_class", "")): each.value for each in live for tags in (dict(each.tags),)}
    return Maps(live[0].last_time_s, held) if live else None


def inside(store: Store, engine: str, now_s: float, before: Inside) -> Inside:
    """What is known of an engine's processes, with what was known before since it is suspect."""
    count = store.current("aie_process_instances", now_s, engine=engine)
    now = maps(store, engine, now_s)
    first = now if before.first is None else before.first
    return Inside(before.processes if count is None else round(count), first, before.last if now is None else now)


def load(store: Store, engine: str, now_s: float) -> float | None:
    """Requests in flight."""
    running = store.current("aie_engine_requests_running", now_s, engine=engine)
    waiting = store.current("aie_engine_requests_waiting", now_s, engine=engine)
    return running if running is None or waiting is None else running + waiting


def requests(store: Store, engine: str, now_s: float) -> float | None:
    """Requests that ended so far, as its counters show."""
    return store.current("aie_engine_requests_total", now_s, engine=engine)


def _outstanding(store: Store, engine: str, now_s: float) -> float | None:
    """Device memory that was asked of CUDA's driver and not freed."""
    kinds = [
        each.value
        for each in store.scalars(_OUTSTANDING, engine=engine)
        if each.valid_until_s >= now_s and dict(each.tags).get("kind") in _ON_DEVICE
    ]
    return sum(kinds) if kinds else None


def free_bytes(view: View, engine: str, device: str, now_s: float) -> float | None:
    """How much memory is left on a device: on a CPU until the cgroup's limit or the host's end, whichever comes first; on GPUs on
    the fullest of those that the engine uses, since which of them a device is called is not told. None where it is not known."""
    store = view.store
    if device != _CPU:
        mine = [gpu for gpu in view.gpus() if any(each.engine == engine for each in gpu.processes)]
        return min((gpu.memory_free_bytes for gpu in mine if gpu.memory_free_bytes is not None), default=None)
    limit = store.current("aie_process_cgroup_memory_limit_bytes", now_s, engine=engine)
    used = store.current("aie_process_cgroup_memory_bytes", now_s, engine=engine)
    host = store.current("aie_host_memory_available_bytes", now_s)
    left = [] if limit is None or used is None else [max(limit - used, 0.0)]
    return min([*left, *([] if host is None else [host])], default=None)


def held_by(store: Store, metric: str, label: str, engine: str, now_s: float) -> dict[str, float]:
    """The current values of a metric of an engine, by one of its labels."""
    live: Iterable[tuple[str, float]] = (
        (dict(each.tags).get(label, ""), each.value) for each in store.scalars(metric, engine=engine) if each.valid_until_s >= now_s
    )
    return dict(live)
