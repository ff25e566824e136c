"""A stand-in for the module `torch.cuda`, as far as the hooks ask it about memory: one GPU that is full.

Names and shapes are those of torch 2.13 (`tests/unit/hooks/test_oom.py` holds them against the real module's signatures and
documentation); the numbers are chosen so that everything a record says can be told apart.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

MIB = 2**20
UUID = "5c8e2a94-2f0c-4b9e-a7c1-0d6f3b1a9e55"
MESSAGE = (
    "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of 31.37 GiB of which 15.88 MiB is free. "
    "Including non-PyTorch memory, this process has 31.34 GiB memory in use. Of the allocated memory 30.74 GiB is allocated by "
    "PyTorch, and 19.41 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)

Block = tuple[int, str]


def segment(device: int, blocks: list[Block], pool: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """One segment of a snapshot, from the sizes and states of its blocks."""
    address = 0x7F00_0000_0000
    described = []
    for size, state in blocks:
        described.append({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})
        address += size
    used = sum(size for size, state in blocks if state == "active_allocated")
    return {
        "device": device,
        "address": 0x7F00_0000_0000,
        "total_size": sum(size for size, _ in blocks),
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": pool,
        "is_expandable": False,
        "frames": [],
        "blocks": described,
    }


class FakeTorchCuda:
    """The functions of `torch.cuda`. `breaks` names those that raise, as they may once the context is lost."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, *, breaks: frozenset[str] = frozenset(), used: bool = True) -> None:
        self.breaks = breaks
        self.used = used
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.breaks:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def mem_get_info(self, device: int = 0) -> tuple[int, int]:
        self._call("mem_get_info")
        return 15 * MIB, 32120 * MIB

    def memory_stats(self, device: int = 0) -> dict[str, int]:
        """Empty before the first use of CUDA."""
        self._call("memory_stats")
        if not self.used:
            return {}
        return {
            "active_bytes.all.current": 31480 * MIB,
            "allocated_bytes.all.current": 31480 * MIB,
            "allocated_bytes.all.peak": 31490 * MIB,
            "inactive_split_bytes.all.current": 12 * MIB,
            "num_alloc_retries": 3,
            "num_ooms": 2,
            "requested_bytes.all.current": 31470 * MIB,
            "reserved_bytes.all.current": 31500 * MIB,
        }

    def host_memory_stats(self) -> dict[str, int]:
        self._call("host_memory_stats")
        return {"active_bytes.current": 64 * MIB, "allocated_bytes.current": 96 * MIB, "num_host_alloc": 7} if self.used else {}

    def memory_snapshot(self, mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
        self._call("memory_snapshot")
        return [
            segment(0, [(10 * MIB, "active_allocated"), (7 * MIB, "inactive"), (3 * MIB, "active_pending_free")]),
            segment(0, [(2 * MIB, "inactive"), (30 * MIB, "active_allocated")]),
            segment(0, [(48 * MIB, "inactive"), (16 * MIB, "active_allocated")], pool=(0, 1)),
            segment(1, [(500 * MIB, "inactive")]),
        ]

    def get_device_properties(self, device: int = 0) -> Any:
        return SimpleNamespace(name="NVIDIA GeForce RTX 5090", uuid=UUID, total_memory=32120 * MIB)
