"""What processes did with CUDA's driver API: the module of cuda_memory, cuda_sync and cuda_copy."""

from __future__ import annotations

from pathlib import Path

from aie_ebpf.door import Module
from aie_ebpf.messages import Cuda
from aie_ebpf.readers.cuda_calls import FailureReader
from aie_ebpf.readers.cuda_copy import CopyReader
from aie_ebpf.readers.cuda_memory import MemoryReader, MemoryUse, ModuleAt
from aie_ebpf.readers.cuda_sync import SyncReader

_NO_MEMORY: MemoryUse = MemoryUse((), None, 0)


class CudaReader:
    """Reads the module. Times are of the monotonic clock."""

    def __init__(self, module: Module, proc: Path = Path("/proc")) -> None:
        """Raises BpfError."""
        self._proc = proc
        self._memory = MemoryReader(module)
        self._syncs = SyncReader(module, proc)
        self._copies = CopyReader(module)
        self._failures = FailureReader(module)
        self._sets: dict[str, MemoryReader | SyncReader | CopyReader] = {
            "cuda_memory": self._memory,
            "cuda_sync": self._syncs,
            "cuda_copy": self._copies,
        }

    def watch(self, tgid: int, name: str) -> bool:
        """The probes of a set are attached to a process. Returns whether they will see all that it holds. Raises BpfError."""
        return name != "cuda_memory" or self._memory.watch(tgid, self._proc)

    def leave(self, tgid: int, name: str) -> None:
        """A set watches a process no more. Raises BpfError."""
        self._sets[name].forget(tgid)

    def read(self, now_ns: int, module_at: ModuleAt) -> dict[int, Cuda]:
        """Each process that used CUDA: increases since the reading before, and what is now. Raises BpfError."""
        memory, syncs, copies = self._memory.read(module_at), self._syncs.read(now_ns), self._copies.read()
        failures = self._failures.read()
        return {
            tgid: Cuda(
                allocations=memory.get(tgid, _NO_MEMORY).allocations,
                contexts=memory.get(tgid, _NO_MEMORY).contexts,
                unknown_frees=memory.get(tgid, _NO_MEMORY).unknown_frees,
                failures=failures.get(tgid, ()),
                syncs=syncs.get(tgid, ()),
                copies=copies.get(tgid, ()),
            )
            for tgid in memory.keys() | syncs.keys() | copies.keys() | failures.keys()
        }

    def forget(self, tgid: int) -> None:
        """A process ended or is released: all that is kept of it is dropped. Raises BpfError."""
        for reader in (*self._sets.values(), self._failures):
            reader.forget(tgid)
