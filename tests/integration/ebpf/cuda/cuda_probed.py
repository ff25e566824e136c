"""A process with probes of the CUDA sets, read by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from aie_ebpf import attaching
from aie_ebpf.attaching import Attached
from aie_ebpf.cuda_probes import Uprobe
from aie_ebpf.door import Module
from aie_ebpf.elf import Elf
from aie_ebpf.host import HostProbes
from aie_ebpf.mappings import MappedFile, access_path, address_space
from aie_ebpf.messages import Cuda
from aie_ebpf.readers.cuda import CudaReader
from aie_ebpf.readers.lost import LostReader
from aie_ebpf.targets import attach_points
from aie_ebpf.uprobe_links import Way

BASE: Final = ("common.h", "watched.h", "watched_there.h")
"""What comes before the texts of a module."""


class Probed:
    """A process with probes, read by hand."""

    def __init__(self, host: HostProbes, module: Module, way: Way, tgid: int, rows: list[Uprobe], in_full: bool = False) -> None:
        """Resolves every row; attaches those that the process can call, or all: detaching takes up to 0.1 s a probe."""
        self.tgid = tgid
        self.module = module
        self._host = host
        host.watch(tgid, None, ())
        files = address_space(tgid).files
        points, self.unseen = attach_points(files, rows)
        self.symbols = {point.symbol for point in points}
        wanted = self.symbols if in_full else _called(files, self.symbols)
        attached = Attached()
        chosen = [point for point in points if point.symbol in wanted]
        for _ in attaching.attach_points(module, way, chosen, tgid, attached, lambda noted: None):
            pass
        assert attached.points == set(chosen)
        self.probes = attached.probes

    def hits(self) -> dict[str, int]:
        """How often programs ran since the last call, by set."""
        found = self._host.watched.hits().get(self.tgid, {})
        return {name: by_kind.total() for name, by_kind in found.items() if name.startswith("cuda")}

    def release(self) -> None:
        """As when a process is watched no more."""
        self._host.forget(self.tgid)


class ProbedCuda(Probed):
    """With the reader of the CUDA module."""

    def __init__(
        self,
        host: HostProbes,
        module: Module,
        way: Way,
        tgid: int,
        rows: list[Uprobe],
        from_start: bool = True,
        in_full: bool = False,
    ) -> None:
        super().__init__(host, module, way, tgid, rows, in_full)
        self.reader = CudaReader(module)
        self._lost = LostReader(module)
        self.read_lost()
        if from_start:
            self.reader.watch(tgid, "cuda_memory")

    def read(self) -> Cuda:
        """What the process did since the last call."""
        return self.reader.read(now_ns(), lambda tgid, address: address_space(tgid).module_at(address)).get(self.tgid, Cuda())

    def read_lost(self) -> dict[str, int]:
        """What could not be noted since the last call, by map."""
        return self._lost.read(now_ns())

    def release(self) -> None:
        """Drops what maps hold of it, too."""
        super().release()
        self.reader.forget(self.tgid)


def _called(files: Sequence[MappedFile], symbols: set[str]) -> set[str]:
    """Which functions some file imports, or the stand-in calls by itself."""
    called = {name for name in symbols if name.startswith("cuMemAllocFromPoolAsync")}
    for path in filter(None, map(access_path, files)):
        with Elf.open(path) as elf:
            called |= {name for name in symbols if elf.imports(name)}
    return called


ProbeCuda = Callable[..., ProbedCuda]
"""What the fixture `probe` is: of a program, and the names of sets."""


def now_ns() -> int:
    """The clock of the programs."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
