"""Memory over 72 h as engines show it, leaking and not: the patterns against which leak detection is compared (docs/leaks.md).

One sample a minute, noise of 30 MB, a leak of 2.8 MB a minute (12 GB in 72 h). What a pattern leaves open (phases, when steps come)
is drawn by the generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

HOURS: Final = 72
STEP_S: Final = 60.0
NOISE_MB: Final = 30.0
LEAK_MB: Final = 2.8
BASE_MB: Final = 12_000.0
_MINUTES: Final = HOURS * 60
_MB: Final = 1e6


class Trace(NamedTuple):
    """A recorded line: when, how much memory in bytes, how many requests in flight (None where load plays no part)."""

    times_s: Array
    size_bytes: Array
    load: Array | None = None


class Pattern(NamedTuple):
    """A pattern: whether it is a leak, and how it is made, in MB over minutes, with a load or without."""

    name: str
    is_leak: bool
    make: Callable[[Array, np.random.Generator], tuple[Array, Array | None]]


def trace(pattern: Pattern, random: np.random.Generator, noise_mb: float = NOISE_MB) -> Trace:
    """One run of a pattern."""
    minutes = np.arange(_MINUTES, dtype=np.float64)
    shape, load = pattern.make(minutes, random)
    sizes = BASE_MB + shape + random.normal(0.0, noise_mb, _MINUTES)
    return Trace(minutes * STEP_S, sizes * _MB, load)


def _saw(minutes: Array, period: float, random: np.random.Generator) -> Array:
    return 2000.0 * np.mod(minutes / period + random.random(), 1.0)


def _diurnal(minutes: Array, random: np.random.Generator) -> Array:
    """Requests in flight, 10 to 70 over a day."""
    mean = 40.0 - 30.0 * np.cos(2 * np.pi * (minutes / 1440 + random.random()))
    return np.maximum(np.round(mean + random.normal(0.0, 2.0, len(minutes))), 0.0)


def _steps(minutes: Array, random: np.random.Generator) -> Array:
    at = random.uniform(60.0, _MINUTES, 3)
    passed: Array = (minutes[:, None] >= at[None, :]).astype(np.float64)
    return np.asarray(512.0 * passed.sum(axis=1))


def _doubled(minutes: Array, random: np.random.Generator) -> Array:
    at = random.uniform(600.0, _MINUTES - 600.0)
    return np.maximum(np.round(np.where(minutes < at, 20.0, 40.0) + random.normal(0.0, 2.0, len(minutes))), 0.0)


_LOAD_MB: Final = 50.0
"""For each request in flight: 60 of them are 3 GB."""


def _host_cache(minutes: Array, random: np.random.Generator) -> Array:
    """KV blocks in a host's memory: 20 to 60 GB, full after 6 to 12 hours."""
    size, full = random.uniform(20_000.0, 60_000.0), random.uniform(360.0, 720.0)
    return np.asarray(size * np.minimum(minutes / full, 1.0))


def _flushed(minutes: Array, random: np.random.Generator) -> Array:
    """3 GB in a day, given back at the same hour each day."""
    return np.asarray(3000.0 * np.mod(minutes / 1440 + random.random(), 1.0))


def _per_request(minutes: Array, random: np.random.Generator) -> tuple[Array, Array]:
    load = _diurnal(minutes, random)
    return _LOAD_MB * load + LEAK_MB * np.cumsum(load) / 40.0, load


PATTERNS: Final = (
    Pattern("flat noise", False, lambda t, r: (0 * t, None)),
    Pattern("warm-up, tau 2 h", False, lambda t, r: (-4000 * np.exp(-t / 120), None)),
    Pattern("warm-up, tau 8 h", False, lambda t, r: (-4000 * np.exp(-t / 480), None)),
    Pattern("cache fills for 8 h", False, lambda t, r: (4000 * np.minimum(t / 480, 1.0), None)),
    Pattern("sawtooth 45 min, 2 GB", False, lambda t, r: (_saw(t, 45, r), None)),
    Pattern("sawtooth 6 h, 2 GB", False, lambda t, r: (_saw(t, 360, r), None)),
    Pattern("3 steps of 512 MB", False, lambda t, r: (_steps(t, r), None)),
    Pattern("diurnal load, 3 GB", False, lambda t, r: ((load := _diurnal(t, r)) * _LOAD_MB, load)),
    Pattern("traffic doubles", False, lambda t, r: ((load := _doubled(t, r)) * _LOAD_MB, load)),
    Pattern("host cache, 20 to 60 GB in 6 to 12 h", False, lambda t, r: (_host_cache(t, r), None)),
    Pattern("flushed each day, 3 GB", False, lambda t, r: (_flushed(t, r), None)),
    Pattern("slower and slower, tau 20 h, 8 GB", False, lambda t, r: (8000 * (1 - np.exp(-t / 1200)), None)),
    Pattern("LEAK", True, lambda t, r: (LEAK_MB * t, None)),
    Pattern("LEAK + sawtooth 45 min", True, lambda t, r: (LEAK_MB * t + _saw(t, 45, r), None)),
    Pattern("LEAK + sawtooth 6 h", True, lambda t, r: (LEAK_MB * t + _saw(t, 360, r), None)),
    Pattern("LEAK per request, diurnal", True, _per_request),
    Pattern("LEAK in steps of 504 MB a 3 h", True, lambda t, r: (504 * np.floor(t / 180 + r.random()), None)),
    Pattern("LEAK after 36 h", True, lambda t, r: (LEAK_MB * np.maximum(t - 2160, 0.0), None)),
)
"""The fifteen of the comparison, in its order, and three more that are normal: a host's cache, a daily flush, a slow curve."""
