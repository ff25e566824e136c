"""Which quantities are followed, what it means when one rises, and what must rise with it: a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

LeakClass = Literal[
    "live_tensors",
    "fragmentation",
    "outside_allocator",
    "python_objects",
    "native_heap",
    "anonymous_mappings",
    "another_process",
    "kv_accounting",
    "cache_growth",
    "unknown",
]
"""Whose memory it is that grows. Which of Python objects, native heap and mappings it is, a look into the process tells."""

IN_WORDS: Final[dict[LeakClass, str]] = {
    "live_tensors": "live tensors",
    "fragmentation": "fragmentation",
    "outside_allocator": "outside the allocator",
    "python_objects": "Python objects",
    "native_heap": "native heap",
    "anonymous_mappings": "anonymous mappings",
    "another_process": "another process",
    "kv_accounting": "KV accounting",
    "cache_growth": "a known cache",
    "unknown": "class unknown",
}


class Sample(NamedTuple):
    """What is known of an engine's memory on a device at a moment, in bytes; None where it is not. `load` is requests in flight,
    `requests` how many there were in all. `cache_bytes` are caches that are known and bounded, `evictable_bytes` what of them no
    request holds: it is kept on purpose, and given up when it is needed. `driver_bytes` is what was asked of the CUDA driver and
    not freed, as probes see it. `event` names what happened just then. `python_blocks` and what malloc has in use and holds are of
    the process's own account."""

    time_s: float
    physical_bytes: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    driver_bytes: float | None = None
    load: float | None = None
    cache_bytes: float | None = None
    requests: float | None = None
    event: str = ""
    evictable_bytes: float | None = None
    python_blocks: float | None = None
    malloc_used_bytes: float | None = None
    malloc_held_bytes: float | None = None


class LineSpec(NamedTuple):
    """A line: how it is made of a sample, the class of a leak in it, and in words. `grows` names the line that must rise by at
    least half as much, or, where `grows_not`, must not: free memory that an allocator keeps while less of it is in use is no
    fragmentation. A `total` says that something grows, and its parts say what. `tells` is False for what is kept only to compare
    with."""

    name: str
    leak_class: LeakClass
    value: Callable[[Sample], float | None]
    words: str
    metric: str
    grows: str = ""
    grows_not: bool = False
    total: bool = False
    tells: bool = True


def _cached(sample: Sample) -> float | None:
    return _difference(sample.reserved_bytes, sample.allocated_bytes)


def _outside(sample: Sample) -> float | None:
    known = sample.allocated_bytes if sample.reserved_bytes is None else sample.reserved_bytes
    return _difference(sample.physical_bytes, known)


def _driver(sample: Sample) -> float | None:
    """What the driver gave beyond the allocator's share; all of it where no allocator tells."""
    if sample.driver_bytes is None or sample.reserved_bytes is None:
        return sample.driver_bytes
    return sample.driver_bytes - sample.reserved_bytes


def _idle_cache(sample: Sample) -> float | None:
    """What a cache holds while no request is in flight, less what it keeps on purpose."""
    if sample.load != 0 or sample.cache_bytes is None:
        return None
    return sample.cache_bytes - (sample.evictable_bytes or 0.0)


_GIVEN_BACK: Final = 0.5
"""Of what a cache takes with requests that come: what it gives back when they end, if it does not keep it."""


class CacheUse:
    """Whether what a recorded cache holds at idle is held by nobody: its column of what it keeps on purpose says so; without
    one, that it shrinks by what it grew when requests end. A prefix cache grows with requests and keeps what it holds."""

    def __init__(self) -> None:
        self._is_told = False
        self._taken_bytes = self._given_bytes = 0.0
        self._before: Sample | None = None

    def add(self, sample: Sample) -> None:
        """Takes a sample."""
        self._is_told = self._is_told or sample.evictable_bytes is not None
        if sample.load is None or sample.cache_bytes is None:
            return
        before, self._before = self._before, sample
        if before is None or before.load is None or before.cache_bytes is None:
            return
        change = sample.cache_bytes - before.cache_bytes
        if sample.load > before.load:
            self._taken_bytes += change
        elif sample.load < before.load:
            self._given_bytes -= change

    @property
    def tells_lost(self) -> bool:
        """Whether what rises at idle is lost."""
        return self._is_told or 0 < _GIVEN_BACK * self._taken_bytes <= self._given_bytes


def _difference(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else whole - part


_ALLOCATED: Final = "aie_engine_allocator_allocated_bytes"
_RESERVED: Final = "aie_engine_allocator_reserved_bytes"
_PHYSICAL: Final = "aie_engine_memory_physical_bytes"
_UNACCOUNTED: Final = "aie_engine_memory_unaccounted_bytes"
_OUTSTANDING: Final = "aie_cuda_memory_outstanding_bytes"

_MALLOC_USED: Final = "aie_engine_malloc_used_bytes"
_MALLOC_HELD: Final = "aie_engine_malloc_held_bytes"

LINES: Final = (
    LineSpec("allocated", "live_tensors", lambda s: s.allocated_bytes, "allocated memory", _ALLOCATED),
    LineSpec("cached", "fragmentation", _cached, "reserved less allocated memory", _RESERVED, grows="reserved"),
    LineSpec("outside", "outside_allocator", _outside, "physical memory beyond the allocator's", _UNACCOUNTED, grows="physical"),
    LineSpec("driver", "outside_allocator", _driver, "memory asked of the CUDA driver beyond the allocator's", _OUTSTANDING),
    LineSpec("reserved", "unknown", lambda s: s.reserved_bytes, "reserved memory", _RESERVED, total=True),
    LineSpec("physical", "unknown", lambda s: s.physical_bytes, "physical memory", _PHYSICAL, total=True),
    LineSpec("python", "python_objects", lambda s: s.python_blocks, "blocks of Python", "aie_engine_python_blocks", tells=False),
    LineSpec("malloc", "native_heap", lambda s: s.malloc_used_bytes, "memory in use of malloc", _MALLOC_USED, tells=False),
    LineSpec("malloc_held", "native_heap", lambda s: s.malloc_held_bytes, "memory of malloc", _MALLOC_HELD, tells=False),
)
"""Parts first. What is kept to compare with (`within.py`) is no metric's line."""

CACHE_LINES: Final = ("allocated", "cached", "outside", "physical")
"""Where a known cache may lie: in the part that moves with it; where no parts are known, in the whole."""

ACCOUNTING: Final = LineSpec(
    "accounting", "kv_accounting", _idle_cache, "what the cache holds while no request runs", "aie_engine_kv_used_tokens",
    grows="physical", grows_not=True,
)  # fmt: skip
"""Of recordings: a pool of fixed size whose blocks get lost rises at idle, and no byte grows."""

CACHES: Final = LineSpec(
    "caches", "cache_growth", lambda s: s.cache_bytes, "what known caches hold", "aie_engine_response_cache_bytes"
)  # fmt: skip
"""Of recordings: what is taken off as known caches is no leak of the rest, and may be one by itself."""
