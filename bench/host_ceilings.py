"""What this host can do at most, with as many threads as the engine gets: the figures that the engine's are held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

_READ_BYTES = 512 << 20  # far beyond any cache
_MATRIX = 1024


class Ceilings(NamedTuple):
    """The best of several runs: bytes read from memory, and fp32 operations of a square matrix product, both a second."""

    gigabytes_per_s: float
    gigaflops_per_s: float


def measure() -> Ceilings:
    """Takes about two seconds."""
    block = torch.ones(_READ_BYTES // 4)
    square = torch.rand(_MATRIX, _MATRIX)
    read_s = _best_s(lambda: block.sum())
    product_s = _best_s(lambda: square @ square)
    return Ceilings(_READ_BYTES / read_s / 1e9, 2 * _MATRIX**3 / product_s / 1e9)


def _best_s(work: Callable[[], object], runs: int = 10) -> float:
    best = float("inf")
    for _ in range(runs):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
