"""Memory as public issues tell of it, made again from their numbers: vLLM, SGLang, PyTorch, Triton, TGI and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aie_agent.analysis.leaks.lines import Sample

Array = NDArray[np.float64]

GIB: Final = float(1 << 30)
MIB: Final = float(1 << 20)
_BASE: Final = 12 * GIB


class Columns(NamedTuple):
    """A recording: a row a minute. What an issue tells nothing of is None."""

    minutes: Array
    physical: Array
    allocated: Array | None = None
    reserved: Array | None = None
    load: Array | None = None
    cache: Array | None = None
    events: dict[int, str] = {}  # noqa: RUF012  a constant of each scenario, never changed

    def samples(self) -> Iterator[Sample]:
        """Row by row."""
        for row, minute in enumerate(self.minutes):
            yield Sample(
                float(minute) * 60,
                physical_bytes=float(self.physical[row]),
                allocated_bytes=None if self.allocated is None else float(self.allocated[row]),
                reserved_bytes=None if self.reserved is None else float(self.reserved[row]),
                load=None if self.load is None else float(self.load[row]),
                cache_bytes=None if self.cache is None else float(self.cache[row]),
                event=self.events.get(row, ""),
            )


class Scenario(NamedTuple):
    """An issue, the verdict about it (and its class), and how it is made."""

    name: str
    verdict: str
    leak_class: str | None
    make: Callable[[np.random.Generator], Columns]


def _minutes(hours: float) -> Array:
    return np.arange(int(hours * 60), dtype=np.float64)


def _noise(random: np.random.Generator, minutes: Array, mib: float) -> Array:
    return random.normal(0.0, mib * MIB, len(minutes))


def _outside(hours: float, rise: Callable[[Array], Array], noise_mib: float = 10.0) -> Callable[[np.random.Generator], Columns]:
    """A process whose allocator is flat while memory beyond it rises."""

    def make(random: np.random.Generator) -> Columns:
        t = _minutes(hours)
        flat = np.full(len(t), 4 * GIB)
        return Columns(t, 6 * GIB + rise(t) + _noise(random, t, noise_mib), flat + 0.0, flat + GIB)

    return make


def _rounds(random: np.random.Generator) -> Columns:
    """A warm-up from 3.67 to 11.1 GB, then 1.74 GB a round of four hours that a rare collection gives back in part."""
    t = _minutes(40)
    round_ = np.floor(t / 240)
    within = np.mod(t, 240) / 240
    garbage = 0.6 * np.mod(t / 240 * 3, 1.0)
    shape = 3.67 + 7.43 * np.minimum(t / 30, 1.0) + 1.74 * (round_ + within) + garbage
    return Columns(t, shape * 1e9 + _noise(random, t, 15))


def _mix(random: np.random.Generator) -> Columns:
    """Only requests of one kind leak, and their share changes twice."""
    t = _minutes(60)
    share = np.where(t < 1200, 0.4, np.where(t < 2400, 1.0, 0.6))
    return Columns(t, _BASE + np.cumsum(5 * MIB * share) + _noise(random, t, 20))


def _grammar(random: np.random.Generator) -> Columns:
    """8 MiB of GPU memory for each request with a grammar, one in three minutes."""
    t = _minutes(30)
    kept = 8 * MIB * np.cumsum(random.random(len(t)) < 1 / 3)
    allocated = 10 * GIB + kept
    reserved = np.ceil((allocated + 256 * MIB) / (20 * MIB)) * 20 * MIB
    return Columns(t, reserved + 400 * MIB, allocated, reserved)


def _lost_blocks(random: np.random.Generator) -> Columns:
    """Requests that are aborted keep their blocks; the pool was allocated at the start, so no byte grows."""
    t = _minutes(36)
    load = np.maximum(np.round(8 + 8 * np.sin(t / 15)), 0.0)
    lost = 3 * MIB * np.cumsum(random.random(len(t)) < 0.5)
    flat = np.full(len(t), 20 * GIB)
    return Columns(t, flat + GIB + _noise(random, t, 5), flat - 2 * GIB, flat + 0.0, load, lost + load * 100 * MIB)


def _split_blocks(random: np.random.Generator) -> Columns:
    """Reserved memory grows by 138 MiB a cycle to 14 GiB and beyond, while 66 to 306 MiB are allocated."""
    t = _minutes(40)
    allocated = random.uniform(66, 306, len(t)) * MIB
    reserved = GIB + 138 * MIB * np.floor(t / 20)
    return Columns(t, reserved + 500 * MIB, allocated, reserved)


def _captures(step_mib: float, every_min: float) -> Callable[[Array], Array]:
    return lambda t: step_mib * MIB * np.floor(t / every_min)


def _aborts(random: np.random.Generator) -> Columns:
    """66 MiB for each 960 aborts; after 28 hours malloc_trim gives 1.87 of 3.07 GB back."""
    t = _minutes(40)
    kept = 3.07 * GIB * np.minimum(t / 1680, 1.0)
    kept = np.where(t >= 1680, 1.2 * GIB, kept)
    return Columns(t, 6 * GIB + kept + _noise(random, t, 10), events={1680: "malloc_trim"})


def _arena(random: np.random.Generator) -> Columns:
    """An arena that grows while what is in use of it does not, and that a trim cannot give back."""
    t = _minutes(40)
    used = np.full(len(t), 270 * MIB) + _noise(random, t, 1)
    arena = 300 * MIB + 2 * MIB * t - np.where(t >= 1800, 6 * MIB, 0.0)
    return Columns(t, arena + GIB, used, arena, events={1800: "malloc_trim"})


def _workspace(random: np.random.Generator) -> Columns:
    """A cuBLAS workspace of 8,519,680 bytes, taken once."""
    t = _minutes(40)
    allocated = 10 * GIB + np.where(t >= 700, 8_519_680.0, 0.0)
    return Columns(t, allocated + GIB + _noise(random, t, 2), allocated, allocated + 0.5 * GIB)


SCENARIOS: Final = (
    Scenario("vLLM #44175: 0.57 GiB in 12 h", "leak", "outside_allocator", _outside(36, lambda t: 0.57 * GIB * t / 720)),
    Scenario("vLLM #28726: 1.74 GB a round after the warm-up", "leak", "unknown", _rounds),
    Scenario("vLLM #24264: 400 MB a minute (hours only)", "suspect", "outside_allocator", _outside(6, lambda t: 4e8 * t)),
    Scenario("vLLM #50150: a worker to 64 GiB", "leak", "outside_allocator", _outside(30, lambda t: 58 * GIB * t / 1800)),
    Scenario("vLLM #13464: depends on the requests", "leak", "unknown", _mix),
    Scenario("SGLang #5375: 500 MB in 3 h", "leak", "outside_allocator", _outside(30, lambda t: 5e8 * t / 180)),
    Scenario("SGLang #6914: one process to 60 GB", "leak", "outside_allocator", _outside(48, lambda t: 54e9 * t / 2880)),
    Scenario("SGLang #19410: 8 MiB a grammar request", "leak", "live_tensors", _grammar),
    Scenario("SGLang #11970: pool tokens lost, bytes flat", "accounting", "kv_accounting", _lost_blocks),
    Scenario("PyTorch #123548: 138 MiB a cycle reserved", "fragmentation", "fragmentation", _split_blocks),
    Scenario("PyTorch #99196: a workspace a capture", "leak", "outside_allocator", _outside(30, _captures(128, 30))),
    Scenario("PyTorch #95668: one workspace (normal)", "none", None, _workspace),
    Scenario("PyTorch #155398: jumps at captures", "leak", "outside_allocator", _outside(30, _captures(700, 150))),
    Scenario("Triton #6270: linear with streaming", "leak", "outside_allocator", _outside(48, lambda t: 1.5 * MIB * t)),
    Scenario("Triton #6781: slow over days", "leak", "outside_allocator", _outside(96, lambda t: 0.8 * MIB * t)),
    Scenario("TGI #801: 3.9 MB a minute for 5 h (too short)", "not_enough_data", None, _outside(5, lambda t: 3.9e6 * t, 30)),
    Scenario("vllm-omni #6462: malloc_trim gave it back", "retention", "unknown", _aborts),
    Scenario("vllm-ascend #5262: 0.1 GB an inference (hours only)", "suspect", "outside_allocator", _outside(8, _captures(100, 2))),
    Scenario("omi #6938: an arena that a trim cannot free", "fragmentation", "fragmentation", _arena),
)  # fmt: skip
"""In the order of the reference; which engine and issue stands in the name."""
