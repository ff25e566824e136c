"""Tracepoints that come later: a kernel module's, such as the NVIDIA driver's, are there from when it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_ebpf import tracepoints
from aie_ebpf.compilation import Compilation
from aie_ebpf.door import Bcc, BpfError, Module, Probe, Ring
from aie_ebpf.probes import Tracepoint
from aie_ebpf.readers.lost import LostReader

EVERY_S: Final = 30.0
"""How often it is looked whether the tracepoint is there: one file is opened."""


class LateTracepoint:
    """One program on one tracepoint, with a ring of records and a module of its own. Looked for until it is there; tried once."""

    def __init__(self, bcc: Bcc, row: Tracepoint, prefix: str, ring: str) -> None:
        """`prefix` is of the defines that tell where the tracepoint's fields lie."""
        self._bcc = bcc
        self._row = row
        self._prefix = prefix
        self._ring_name = ring
        self._look_at_s: float | None = None
        self._is_tried = False
        self._module: Module | None = None
        self.probe: Probe | None = None
        """What is attached."""
        self.ring: Ring | None = None
        """Its records, once it is attached."""
        self.lost: LostReader | None = None
        self.reason = ""
        """Why it could not be attached although it is there."""

    def is_due(self, now_s: float) -> bool:
        """Whether it is there, at last, and `attach` is to be run; asks the kernel every EVERY_S."""
        if self._is_tried or (self._look_at_s is not None and now_s < self._look_at_s):
            return False
        self._look_at_s = now_s + EVERY_S
        return tracepoints.format_of(self._row.tracepoint) is not None

    def attach(self) -> Iterator[None]:
        """Compiles beside the caller, and attaches, a step at a time."""
        self._is_tried = True
        defines = tracepoints.defines(self._prefix, tracepoints.format_of(self._row.tracepoint) or "")
        compilation = Compilation(self._bcc, ("common.h", self._row.set), defines)
        yield from compilation.wait()
        try:
            self._module = compilation.result()
            ring = self._module.ring(self._ring_name)
            lost = LostReader(self._module)
            self.probe = self._module.attach_tracepoint(self._row.tracepoint, self._row.handler)
        except BpfError as error:
            self.reason = str(error)
            self.close()
            return
        finally:
            self._bcc.trim()
        self.ring, self.lost = ring, lost

    def close(self) -> None:
        """Detaches it."""
        if self._module is not None:
            if self.probe is not None:
                self._module.detach(self.probe)
            self._module.close()
        self._module = self.probe = self.ring = self.lost = None
